"""The five situations: what happens in each, where it was reported, and which module plays it."""

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
    """One situation. Its module is imported only when it is played."""

    name: str
    title: str
    story: str
    seed: str  # the issue or pull request that reported it
    thread: str  # the URL of that
    how: dict[Side, str]
    lasts: float  # about how many seconds
    module: str
    shows: str  # the function or class in the module that `--code` shows for the ordinary way

    def program(self, side: Side) -> Program:
        module = import_module(f"{__package__}.{self.module}")
        found: Program = module.ordinary if side == "ordinary" else module.with_quiesce
        return found

    def code(self, side: Side) -> str:
        """The source of what is played."""
        module = import_module(f"{__package__}.{self.module}")
        return getsource(getattr(module, self.shows if side == "ordinary" else "with_quiesce")).rstrip()


SITUATIONS = (
    Situation(
        "guardrail",
        "A guardrail fails, and the model call next to it continues",
        "A guardrail checks the question while the model is already answering it. The service that it calls is down.",
        "openai-agents #3564",
        "https://github.com/openai/openai-agents-python/pull/3564",
        {
            "ordinary": "asyncio.gather, with an except only for the tripwire",
            "quiesce": "the same two, with Runner.run of quiesce.agents",
        },
        1.45,
        "guardrail",
        "run_agent",
    ),
    Situation(
        "session",
        "A session is closed before its tasks are",
        "A realtime session runs a tool call and a guardrail in the background. "
        "Each needs a moment, and the connection, to clean up.",
        "openai-agents #3334",
        "https://github.com/openai/openai-agents-python/issues/3334",
        {
            "ordinary": "close() cancels its tasks, but does not await them",
            "quiesce": "the same two, with a RealtimeSession of quiesce.realtime",
        },
        2.0,
        "session",
        "Session",
    ),
    Situation(
        "tool",
        "A tool in a thread loses its cancel signal",
        "A tool renames files in a thread, and checks its token before each one. The user presses Esc.",
        "openhands-sdk #3395",
        "https://github.com/OpenHands/software-agent-sdk/pull/3395",
        {
            "ordinary": "the interrupted run throws its token away",
            "quiesce": "the same tool, with a Conversation of quiesce.agents",
        },
        1.6,
        "tool",
        "Conversation",
    ),
    Situation(
        "stream",
        "Breaking out of a stream cancels an innocent task and leaves a process",
        "A query streams what an agent in a child process does. "
        "After a few messages you have seen enough, and break.",
        "claude-agent-sdk #746",
        "https://github.com/anthropics/claude-agent-sdk-python/pull/746",
        {
            "ordinary": "break out of a generator that contains a task group",
            "quiesce": "the same break, with query of quiesce.claude",
        },
        1.6,
        "stream",
        "query",
    ),
    Situation(
        "connection",
        "A cancelled connection leaves its loops behind",
        "An agent serves an editor over a connection that has its own loops. "
        "The editor disconnects, and the server is cancelled.",
        "agent-client-protocol #108",
        "https://github.com/agentclientprotocol/python-sdk/issues/108",
        {
            "ordinary": "await connection.listen(), but nothing closes it",
            "quiesce": "the same messages, with a connection of quiesce.acp",
        },
        1.6,
        "connection",
        "run_agent",
    ),
)
