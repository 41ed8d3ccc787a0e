"""The five situations: what happens in each, where it was reported, and the modules that play them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import getsource
from typing import Literal, TypeAlias

from quiesce.cli.tour.stage import Stage

Side: TypeAlias = Literal["ordinary", "quiesce"]
Program: TypeAlias = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Situation:
    """One of them. Nothing is imported to know of it."""

    name: str
    title: str
    story: str
    seed: str  # the thread where it was reported
    thread: str  # its address
    how: dict[Side, str]
    lasts: float  # seconds, about
    module: str
    shows: str  # what of the module is the ordinary way

    def program(self, side: Side) -> Program:
        module = import_module(f"{__package__}.{self.module}")
        found: Program = module.ordinary if side == "ordinary" else module.with_quiesce
        return found

    def code(self, side: Side) -> str:
        """What is played, as it stands in the module."""
        module = import_module(f"{__package__}.{self.module}")
        return getsource(getattr(module, self.shows if side == "ordinary" else "with_quiesce")).rstrip()


SITUATIONS = (
    Situation(
        "guardrail",
        "A guardrail fails, and the model call beside it goes on",
        "A guardrail checks the question while the model already answers it. The service that it asks is down.",
        "openai-agents #3564",
        "https://github.com/openai/openai-agents-python/pull/3564",
        {
            "ordinary": "asyncio.gather, and an except for the tripwire alone",
            "quiesce": "the same two, and Runner.run of quiesce.agents",
        },
        1.45,
        "guardrail",
        "run_agent",
    ),
    Situation(
        "session",
        "A session is closed before its tasks are",
        "A realtime session has a tool call and a guardrail in the background. Each needs a moment to clean up, and the connection to do it.",
        "openai-agents #3334",
        "https://github.com/openai/openai-agents-python/issues/3334",
        {
            "ordinary": "close() cancels its tasks, and does not await them",
            "quiesce": "the same two, and a RealtimeSession of quiesce.realtime",
        },
        2.0,
        "session",
        "Session",
    ),
    Situation(
        "tool",
        "A tool in a thread loses its cancel signal",
        "A tool renames files in a thread, and looks at its token before each of them. The user presses Esc.",
        "openhands-sdk #3395",
        "https://github.com/OpenHands/software-agent-sdk/pull/3395",
        {
            "ordinary": "the run that is interrupted throws its token away",
            "quiesce": "the same tool, and a Conversation of quiesce.agents",
        },
        1.6,
        "tool",
        "Conversation",
    ),
    Situation(
        "stream",
        "Breaking out of a stream cancels an innocent task, and leaves a process",
        "A query streams what an agent in a child process does. You have seen enough after a few messages, and break.",
        "claude-agent-sdk #746",
        "https://github.com/anthropics/claude-agent-sdk-python/pull/746",
        {
            "ordinary": "a generator with a task group inside, and a break",
            "quiesce": "the same break, and query of quiesce.claude",
        },
        1.6,
        "stream",
        "query",
    ),
    Situation(
        "connection",
        "A cancelled connection leaves its loops behind",
        "An agent serves an editor over a connection with loops of its own. The editor goes away, and the server is cancelled.",
        "agent-client-protocol #108",
        "https://github.com/agentclientprotocol/python-sdk/issues/108",
        {
            "ordinary": "await connection.listen(), and nothing closes it",
            "quiesce": "the same messages, and a connection of quiesce.acp",
        },
        1.6,
        "connection",
        "run_agent",
    ),
)
