"""The lines of a CLI's stderr, of whatever pieces it comes in."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.claude.process.stderr_lines import LONGEST, StderrLines


def told(*pieces: bytes) -> list[str]:
    lines: list[str] = []
    stderr = StderrLines(lines.append)
    for piece in pieces:
        stderr(piece)
    stderr.finish()
    return lines


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.lists(st.integers(0, 160), max_size=5))
def test_however_it_is_cut_the_lines_are_the_same(text: str, cuts: list[int]) -> None:
    data = text.encode()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in pairwise(bounds)]
    assert told(*pieces) == [line.rstrip() for line in text.split("\n") if line.strip()]


def test_the_last_line_needs_no_end_and_is_told_once() -> None:
    assert told(b"one\ntwo") == ["one", "two"]
    assert told(b"one\n") == ["one"]
    assert told() == []


def test_a_character_that_is_cut_off_is_told_as_one_that_is_unknown() -> None:
    assert told("é".encode()[:1]) == ["\ufffd"]


def test_a_line_without_end_is_told_in_pieces_and_not_kept() -> None:
    lines: list[str] = []
    stderr = StderrLines(lines.append)
    for _ in range(40):
        stderr(b"x" * 10_000)
        assert len(stderr._incomplete) <= LONGEST
    stderr.finish()
    assert "".join(lines) == "x" * 400_000
    assert max(map(len, lines)) == LONGEST


def test_whoever_fails_when_told_is_told_the_rest_once(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        raise LookupError("no")

    stderr = StderrLines(tell)
    with pytest.raises(LookupError):  # whoever reads stderr logs that
        stderr(b"one\ntw")
    with caplog.at_level(logging.ERROR, "quiesce"):
        stderr(b"o")
        stderr.finish()
    assert lines == ["one", "two"]
    assert "options.stderr failed" in caplog.text
