"""What a case has to do with: the options for the CLI, the tool that ticks, and who is alive."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from quiesce.claude import ClaudeAgentOptions

from .loopback import everybody

START = 45.0  # seconds for the CLI to start and to have its tool at work
PATIENCE = 10.0  # for what is on its way out, where nobody waits for it
GUARD = "guardian_main.py"  # the guard process of quiesce, which lives as long as the program


class Stage:
    """One CLI with a folder of its own, and what was seen of its stop."""

    def __init__(
        self, folder: Path, cli: str, strangers: set[int], say: Callable[[dict[str, Any]], None]
    ) -> None:
        self.folder = folder
        self.cli = cli
        self.say = say
        self.seen: dict[str, Any] = {}
        self._strangers = strangers  # processes of the judge
        self._asked: tuple[float, int] | None = None

    def options(self, **more: Any) -> ClaudeAgentOptions:
        """The real CLI, with Bash allowed."""
        settings: dict[str, Any] = {"allowed_tools": ["Bash"], "setting_sources": [], **more}
        return ClaudeAgentOptions(cli_path=self.cli, cwd=str(self.folder), **settings)

    def file(self, name: str) -> Path:
        """A file for a tool to write."""
        return self.folder / name

    @property
    def ticking(self) -> str:
        """A prompt that has Bash tick into a file until it is stopped."""
        command = f"while :; do printf . >> {self.file('ticks')}; sleep 0.05; done"
        return bash(command)

    def ticks(self) -> int:
        """How often it has ticked."""
        try:
            return os.stat(self.file("ticks")).st_size
        except FileNotFoundError:
            return 0

    async def at_work(self) -> None:
        """Wait until the tool ticks."""
        with anyio.fail_after(START):
            while self.ticks() < 3:  # noqa: ASYNC110  # it is another program that ticks
                await anyio.sleep(0.01)

    def asked(self) -> None:
        """The stop begins."""
        self._asked = time.monotonic(), self.ticks()

    def look(self) -> None:
        """Control is back: who is alive at this moment, with no time given to anybody?"""
        left, now, ticks = self.left(), time.monotonic(), self.ticks()
        began, before = self._asked or (now, ticks)
        self.seen = {"left": left, "seconds": now - began, "worked on": ticks - before, "ticks": ticks}

    def look_on(self) -> None:
        """What was signalled is on its way out: see how long that takes.

        Nothing else in this program runs meanwhile, so the dead are unburied.
        """
        until = time.monotonic() + PATIENCE
        while any(command != "zombie" for command in self.left()) and time.monotonic() < until:
            time.sleep(0.005)
        self.look()
        self.seen["left"] = [command for command in self.seen["left"] if command != "zombie"]

    def left(self) -> list[str]:
        """The processes that this program has started, and that are alive."""
        return [
            command[:80]
            for pid, command in everybody()
            if pid not in self._strangers and GUARD not in command
        ]


def bash(command: str) -> str:
    """A prompt to which the model answers with a call of Bash."""
    return f"call Bash {json.dumps({'command': command, 'description': 'Do as told'})}"
