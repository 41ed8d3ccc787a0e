"""What the tests of the commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chat_programs import Here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """`quiesce` in this process, with a data directory of its own."""
    return Here(tmp_path, monkeypatch, capsys)
