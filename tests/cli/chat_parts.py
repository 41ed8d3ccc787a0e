"""What the tests of the chat share: a face that remembers, and scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from quiesce_chat.session.face import Approval, Call, Decision


class Recorder:
    """A face that keeps all that it is told, in order, and answers questions as it was told to."""

    def __init__(self, *answers: Decision) -> None:
        self.told: list[tuple[str, str]] = []
        self.answers = list(answers)
        self.asked: list[Approval] = []
        self._changed = anyio.Event()

    def _note(self, what: str, text: str = "") -> None:
        self.told.append((what, text))
        self.refresh()

    def text(self, piece: str) -> None:
        self._note("text", piece)

    def text_done(self, *, cut: bool) -> None:
        self._note("cut" if cut else "end")

    def called(self, call: Call) -> None:
        self._note("called", f"{call.name} {call.title}".strip())

    def program_output(self, call_id: str, text: str) -> None:
        self._note("heard", text)

    def returned(self, call: Call, outcome: str, elapsed: float | None, output: str) -> None:
        self._note("returned", f"{call.name} {outcome}")

    def stopped(self, line: str, *, clean: bool) -> None:
        self._note("said", line)

    def say(self, text: str) -> None:
        self._note("said", text)

    def show_error(self, text: str) -> None:
        self._note("complained", text)

    def refresh(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def ask(self, approval: Approval) -> Decision:
        self.asked.append(approval)
        self._note("asked", approval.call.name)
        if not self.answers:
            await anyio.sleep_forever()
        return self.answers.pop(0)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until that is so."""
        while not holds():
            await self._changed.wait()

    def all(self, what: str) -> list[str]:
        """Every text of one kind."""
        return [text for kind, text in self.told if kind == what]

    def printed(self) -> str:
        """All output of programs."""
        return "".join(self.all("heard"))


def write_script(path: Path, *turns: Any) -> str:
    """A script file for `--script`."""
    path.write_text(json.dumps(turns))
    return str(path)


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    """A turn that calls one tool."""
    return {"calls": [{"name": name, "arguments": arguments}]}
