"""`quiesce` for tests: in this process, or, where signals, exits and paths matter, in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

import quiesce
from quiesce.cli import main

SOURCE = str(Path(quiesce.__file__).parent.parent)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


class CommandLine:
    """A folder to write scenarios in, and the command run there."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, name: str, source: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    def __call__(self, *words: str) -> Answer:
        """Run it in this process."""
        self._capsys.readouterr()
        code = main(words)
        captured = self._capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    def audit(self, *words: str) -> Answer:
        return self("audit", "--no-progress", *words)

    def apart(self, *words: str, **environment: str) -> Answer:
        """Run it in a process of its own, which must end within seconds."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "quiesce", *words],
            cwd=self.folder,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=18,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def shell(self, command: str) -> Answer:
        """Paste a command into a shell where `quiesce` is this one."""
        quoted = f'quiesce() {{ "{sys.executable}" -m quiesce "$@"; }}\n{command}\n'
        done = subprocess.run(
            ["/bin/sh", "-c", quoted],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=18,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        return {**kept, "PYTHONPATH": SOURCE, **more}
