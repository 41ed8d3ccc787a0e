"""The judge of `make peers` sees each kind of leak where there is one, and none where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from peers.verdict import Verdict

pytestmark = pytest.mark.time_limit(60)


def judge(side: str, stop: str) -> Verdict:
    command = [sys.executable, "-m", "peers.judge", sys.executable, "known_leaks", "leaks", side, stop]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=50, check=True)
    return Verdict.of(json.loads(done.stdout))


def test_what_leaks_is_found_whatever_it_is() -> None:
    verdict = judge("without", "cancel")
    assert verdict.faults == ["swallowed the cancel"]
    assert sorted(verdict.left) == [
        "process: its child",
        "socket to the server",
        "task sleep_on",
        "thread in wait_in_a_thread",
    ]


def test_what_leaks_nothing_is_clean() -> None:
    assert judge("with", "cancel-3").is_clean


def test_a_close_that_raises_and_cancels_a_bystander_is_told_as_both() -> None:
    assert judge("without", "elsewhere").faults == ["raised KeyError", "cancelled an innocent task"]


def test_a_leftover_counts_as_named_only_if_a_report_names_its_kind_as_often() -> None:
    assert Verdict(left=["thread in count"], named=["thread 'count'"]).is_all_named
    assert not Verdict(left=["thread in count"] * 2, named=["thread 'count'"]).is_all_named
    assert not Verdict(left=["process: the server"], named=["task 'connect'"]).is_all_named
    assert not Verdict(faults=["hang"]).is_all_named


def test_the_words_of_the_table() -> None:
    assert str(Verdict()) == "nothing left"
    assert str(Verdict(left=["task a", "task a"], seconds=2.04)) == "2 × task a, 2.0 s"
    assert str(Verdict(not_run="no such server")) == "not run: no such server"
