from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.claude.clis import Cli, fake_cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A fake CLI. None of its processes may outlive the test."""
    with fake_cli(tmp_path) as cli:
        yield cli
