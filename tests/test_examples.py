"""`make run` plays the tour. It must work without a terminal and without input, say what happened, and leave nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.test_docs import wait_until_gone

ROOT = Path(__file__).parent.parent
TOUR = ROOT / "examples" / "kernel_tour.py"
SCENES = 6


@pytest.fixture(scope="module")
def tour() -> str:
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, "-W", "default", TOUR],
        env={**os.environ, "QUIESCE_TEST_MARK": mark},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    left = wait_until_gone(mark)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert not left, f"the tour left processes behind: {left}"
    return done.stdout


def scene(tour: str, number: int) -> tuple[str, str]:
    """What a scene printed: the ordinary way, and ours."""
    text = re.split(r"^\d+\. ", tour, flags=re.MULTILINE)[number]
    ordinary, ours = text.split("   with quiesce:\n")
    return ordinary.split("   plain asyncio:\n")[1], ours.split("\n\n")[0]


@pytest.mark.time_limit(60)
def test_the_tour_shows_the_trouble_and_then_that_it_is_gone(tour: str) -> None:
    assert len(re.findall(r"^\d+\. ", tour, flags=re.MULTILINE)) == SCENES
    assert "Left behind: 4 by plain asyncio, 0 with quiesce." in tour
    assert "Innocent tasks cancelled: 2 and 0." in tour


@pytest.mark.parametrize(
    ("number", "trouble", "instead"),
    [
        (1, r"still running: model call", r"still running: no task"),
        (1, r"has spent [1-9]\d* more tokens", r"has spent 0 more tokens"),
        (2, r"closed\n +still running: writer\n.*written", r"written\n +closed\n +still running: no task"),
        (3, r"the thread has not ended", r"the thread has ended"),
        (3, r"it has written [1-9]\d* more lines", r"nothing left"),
        (4, r"cancelled [1-5] times in 5 awaits", r"cancelled 0 times in 5 awaits\n.*\n.*nothing left"),
        (5, r"process \d+ is alive", r"process \d+ is gone\n.*nothing left"),
        (6, r"RuntimeError: .*different task", r"left alone\n +still running: no task\n.*nothing left"),
    ],
)
def test_each_scene_shows_it(tour: str, number: int, trouble: str, instead: str) -> None:
    ordinary, ours = scene(tour, number)
    assert re.search(trouble, ordinary), ordinary
    assert re.search(instead, ours), ours
    assert not re.search(trouble, ours), ours
