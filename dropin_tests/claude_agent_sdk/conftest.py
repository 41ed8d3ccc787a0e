from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.claude.clis import Cli, fake_cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """A made-up CLI. None of its processes may outlive the test."""
    monkeypatch.setenv("CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK", "1")  # old releases first run it for that
    with fake_cli(tmp_path) as cli:
        yield cli
