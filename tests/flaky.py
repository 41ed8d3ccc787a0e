"""Tests that failed first and passed when they were run again, alone: how they are kept between the stages of a gate.

Written by `tests.second_try` and by `scripts/gate.py`, read by the latter, which has no pytest: so nothing is imported here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD = "QUIESCE_FLAKY"  # the environment variable that names the file
MOST = 5  # a gate accepts this many


@dataclass(frozen=True)
class Flaky:
    """One such test, or a stage that runs programs, and the text of its first failure."""

    name: str
    first_failure: str


def keep(flaky: Flaky, record: Path) -> None:
    with record.open("a") as file:
        file.write(json.dumps(asdict(flaky)) + "\n")


def kept(record: Path) -> list[Flaky]:
    lines = record.read_text().splitlines() if record.exists() else []
    return [Flaky(**json.loads(line)) for line in lines]
