"""A fake CLI for one test: where it is, what it did, and which of its processes are alive."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from quiesce.claude import ClaudeAgentOptions
from tests.kernel.processes import wait_until

ROOT = Path(__file__).parents[2]
MARKER = "FAKE_CLI_OF"  # the environment variable that every process of a test has, whatever becomes of it


class Cli:
    """The fake, with a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.token = uuid.uuid4().hex
        self.folder = folder
        self.path = folder / "claude"
        self.path.write_text(
            f"#!/bin/sh\nexec {_quoted(sys.executable)} -S -E -s -c "
            f"{_quoted(f'import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.claude.fake_cli import main; main()')}"
            ' "$@"\n'
        )
        self.path.chmod(0o755)

    # Before

    def file(self, name: str) -> str:
        """A file for ticks, or for a flag."""
        return str(self.folder / name)

    def environment(self, *turns: list[Any], **script: Any) -> dict[str, str]:
        """What makes it play this."""
        script = {"turns": turns, "record": self.file("record"), **script}
        return {"FAKE_CLI": json.dumps(script), MARKER: self.token}

    def options(
        self, *turns: list[Any], script: dict[str, Any] | None = None, **more: Any
    ) -> ClaudeAgentOptions:
        """Options for a CLI that plays this."""
        return ClaudeAgentOptions(
            cli_path=str(self.path), env=self.environment(*turns, **(script or {})), **more
        )

    def ticking(self, **options: Any) -> list[Any]:
        """A step: a tool that ticks until it is stopped."""
        return ["tool", {"ticks": self.file("ticks"), "ask": False, **options}]

    # Meanwhile, and after

    def ticks(self) -> int:
        """How often its tool has ticked."""
        try:
            return os.stat(self.file("ticks")).st_size
        except FileNotFoundError:
            return 0

    def is_up(self, flag: str) -> bool:
        return os.path.exists(self.file(flag))

    def raise_flag(self, name: str) -> None:
        Path(self.file(name)).touch()

    def happened(self, what: str | None = None) -> list[Any]:
        """What it has recorded: everything, as `[what, frame]`, or the frames of one kind."""
        try:
            lines = Path(self.file("record")).read_text().splitlines()
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in lines]
        return events if what is None else [frame for kind, frame in events if kind == what]

    def got(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """What it was sent, of one type, with these fields."""
        found = [frame for frame in self.happened("got") if frame["type"] == kind]
        return [frame for frame in found if fields.items() <= {**frame, **frame.get("request", {})}.items()]

    def answers(self) -> list[dict[str, Any]]:
        """How its questions were answered."""
        return [frame["response"] for frame in self.got("control_response")]

    def processes(self) -> list[int]:
        """The pids of all living processes of this test."""
        wanted, found = f"{MARKER}={self.token}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted in path.read_bytes():  # empty for a zombie
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    async def until_ticking(self, ticks: int = 2) -> None:
        """Wait for its tool."""
        with anyio.fail_after(15):
            while self.ticks() < ticks:
                await anyio.sleep(0.005)

    async def until(self, flag: str) -> None:
        """Wait until it has made this file."""
        with anyio.fail_after(15):
            while not self.is_up(flag):
                await anyio.sleep(0.005)

    def assert_gone(self) -> None:
        """Control is back: nothing of it is alive, and nothing ticks. No time is given for that."""
        left = self.processes()
        assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]

    def assert_interrupted_first(self) -> None:
        """It was told to interrupt before its input ended; it may have been signalled before it came to read that, or killed."""
        events = [
            frame["request"]["subtype"]
            if what in ("got", "unheard") and frame["type"] == "control_request"
            else what
            for what, frame in self.happened()
        ]
        ends = [what for what in events if what in ("eof", "interrupt")]
        if ends or "exit" in events:
            assert ends[:1] == ["interrupt"], events


@contextmanager
def fake_cli(folder: Path) -> Iterator[Cli]:
    """One for a test. None of its processes may be left at the end."""
    cli = Cli(folder)
    yield cli
    left = cli.processes()
    if left:  # behind a bare `break` the end may still be on its way
        wait_until(lambda: not cli.processes(), 5)
        left = cli.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
