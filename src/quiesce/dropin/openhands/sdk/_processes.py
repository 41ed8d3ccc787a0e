"""The processes that a conversation keeps between its runs: terminals, and servers of its tools.

They are started in any thread, in event loops of the SDK's, or by a tmux server, which is a daemon. So they
are looked up where the SDK keeps them, and held by their pids.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from quiesce import Grace
from quiesce.kernel.inner import HeldTrees, known_starts

Found: TypeAlias = "tuple[int, Callable[[], object]]"  # a pid, and what takes note of its exit

LOOK_EVERY = 0.02  # seconds
FOR_CTRL_C = 0.3  # seconds that a command has to end by it, as at a terminal


class ConversationProcesses(HeldTrees):
    """The process trees of one conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._pids_of_servers: dict[int, int] = {}  # by the id of the object that stands for a tmux server

    def find(self, agent: Any) -> None:
        """Hold what `agent` and its tools have started, and note the descendants of that."""
        tools = list(getattr(agent, "_tools", {}).values())
        for owner in (agent, *(getattr(tool, "executor", None) for tool in tools)):
            for pid, reap in (*_of_terminals(owner), *self._of_tmux(owner), *_of_loops(owner)):
                self.hold(pid, reap)
        self.look()

    def end_commands(self, grace: Grace) -> None:
        """End what runs in the foreground of the terminals; the shells stay. It blocks the thread."""
        ladder = (
            (signal.SIGINT, FOR_CTRL_C),
            (signal.SIGTERM, grace.terminate),
            (signal.SIGKILL, grace.kill),
        )
        for number, seconds in ladder:
            commands = self.commands()
            for tree in commands:
                tree.signal(number)
            give_up_at = time.monotonic() + seconds
            while any(tree.members() for tree in commands) and time.monotonic() < give_up_at:
                time.sleep(LOOK_EVERY)

    def _of_tmux(self, executor: Any) -> Iterator[Found]:
        terminal = getattr(getattr(executor, "_session", None), "terminal", None)
        for owner, name in ((getattr(executor, "_pool", None), "_server"), (terminal, "server")):
            server = getattr(owner, name, None)
            if server is None:
                continue
            pid = self._pids_of_servers.get(id(server))
            if pid is None:
                try:
                    pid = int(server.cmd("display-message", "-p", "#{pid}").stdout[0])
                except Exception:  # it has ended, or was never started: then there is nothing to hold
                    continue
                self._pids_of_servers[id(server)] = pid
            yield pid, lambda: None


def _of_terminals(executor: Any) -> Iterator[Found]:
    process = getattr(getattr(getattr(executor, "_session", None), "terminal", None), "process", None)
    if process is not None:
        yield process.pid, process.poll


def _of_loops(owner: Any) -> Iterator[Found]:
    """The processes in the event loops that the SDK has for MCP clients, browsers and ACP agents."""
    for holder in (owner, getattr(owner, "client", None)):
        for name in ("_executor", "_async_executor"):
            loop = getattr(getattr(getattr(holder, name, None), "_portal", None), "_loop", None)
            for pid in known_starts(loop) if loop is not None else ():
                yield pid, lambda: None
