"""Who talks with whom: a client and an agent, each by a library, and at least one of them ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])

HERE = Path(__file__).parent
ROOT = HERE.parent
NODE_PACKAGES = Path(os.environ.get("QUIESCE_INTEROP_NODE", ROOT / "build" / "interop"))
PROGRAMS = HERE / "programs"


@dataclass(frozen=True)
class Side:
    """One end: a library, and for ours the backend that it runs on."""

    library: str
    backend: str = ""

    @property
    def ours(self) -> bool:
        return self.library == "quiesce"

    def __str__(self) -> str:
        return f"{self.library}-{self.backend}" if self.backend else self.library

    def _command(self, role: str) -> list[str]:
        if self.library == "typescript":
            # Node 20 has a WebSocket, and hides it.
            return ["node", "--experimental-websocket", "--no-warnings", str(PROGRAMS / f"{role}.mjs")]
        command = [sys.executable, "-m", f"interop_tests.programs.{role}"]
        if self.library == "python":
            return [*command, "--library", "acp"]
        return [*command, "--library", "quiesce.acp", "--backend", self.backend]

    def agent_command(self) -> list[str]:
        return self._command("agent")

    def client_command(self, control: str, agent: list[str]) -> list[str]:
        command = self._command("client")
        return [*command, "--control", control, "--", *agent]


TYPESCRIPT = Side("typescript")
PYTHON = Side("python")
OURS = (Side("quiesce", "asyncio"), Side("quiesce", "trio"))


@dataclass(frozen=True)
class Pair:
    client: Side
    agent: Side

    def __str__(self) -> str:
        return f"{self.client}-to-{self.agent}"


def only(suits: Callable[[Pair], bool]) -> Callable[[Test], Test]:
    """Run a test only with pairs that can do what it is about."""

    def mark(test: Test) -> Test:
        test.suits = suits  # type: ignore[attr-defined]  # read by conftest.py
        return test

    return mark


def newest(pair: Pair) -> bool:
    """Both know all of the stable protocol.

    agent-client-protocol 0.12.1 neither sends nor hears `$/cancel_request`, routes neither `session/delete`
    nor `logout`, and refuses kinds of updates that are newer than it is.
    """
    return "python" not in (pair.client.library, pair.agent.library)


def pairs() -> list[Pair]:
    """All of them; for QUIESCE_INTEROP=each, each library each way once, and each backend of ours twice."""
    if os.environ.get("QUIESCE_INTEROP") == "each":
        asyncio, trio = OURS
        return [
            Pair(TYPESCRIPT, asyncio),
            Pair(PYTHON, trio),
            Pair(trio, TYPESCRIPT),
            Pair(asyncio, PYTHON),
        ]
    found = [Pair(theirs, ours) for theirs in (TYPESCRIPT, PYTHON) for ours in OURS]
    found += [Pair(ours, theirs) for theirs in (TYPESCRIPT, PYTHON) for ours in OURS]
    if os.environ.get("QUIESCE_INTEROP_BASELINE"):  # what do they make of each other?
        found += [Pair(TYPESCRIPT, PYTHON), Pair(PYTHON, TYPESCRIPT)]
    return found
