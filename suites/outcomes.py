"""A pytest plugin that writes how each test ended to the file that OUTCOMES names: `{"test id": "passed", ...}`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from suites.table import GARBAGE

_ENDED: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if hasattr(report, "wasxfail"):
        outcome = f"x{report.outcome}"
    elif report.failed and "PytestUnraisableExceptionWarning" in report.longreprtext:
        outcome = GARBAGE
    elif report.outcome == "failed" and report.when != "call":
        outcome = f"error in {report.when}"
    else:
        outcome = report.outcome
    if outcome != "passed":
        _ENDED[report.nodeid] = " and ".join(
            filter(None, [_ENDED.get(report.nodeid, "").replace("passed", ""), outcome])
        )
    else:
        _ENDED.setdefault(report.nodeid, "passed")


def pytest_sessionfinish() -> None:
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(_ENDED))
