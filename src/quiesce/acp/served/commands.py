"""Runs the commands of a session: in a terminal of the client, or else as a process tree of our own.

However a command ends (by itself, by its time limit, by a stop of the turn), nothing of it is left over when
the tool returns, and the output up to that moment is known.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from quiesce import Process, Scope, shielded
from quiesce.acp.helpers import tool_terminal_ref
from quiesce.kernel.inner import Tail
from quiesce.wire import RpcError

from .session import client_answer

if TYPE_CHECKING:
    from quiesce.agents import ToolContext

    from .session import Session

SHELL: Final = "/bin/sh"
# How many bytes of output the model is given: the last ones.
OUTPUT_LIMIT: Final = 64_000


@dataclass(slots=True)
class Ran:
    """The result of a command."""

    output: str = ""
    truncated: bool = False
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False

    def text(self, seconds: float) -> str:
        """Return the result as text for the model; `seconds` was the time limit."""
        lines = [self.output.rstrip("\n")] if self.output else []
        if self.truncated:
            lines.insert(0, "[the beginning of the output is left out]")
        if self.timed_out:
            lines.append(f"[stopped after {seconds:g} s, its time limit]")
        elif self.signal is not None:
            lines.append(f"[killed by {self.signal}]")
        elif self.exit_code:
            lines.append(f"[exit code {self.exit_code}]")
        return "\n".join(lines) or "[no output]"


async def run_here(context: ToolContext[Any], command: str, cwd: str, seconds: float) -> Ran:
    """Run the command as a process of our own."""
    tail, size = Tail(OUTPUT_LIMIT), 0
    ran = Ran()

    async def read(process: Process) -> None:
        nonlocal size
        while data := await process.read():
            tail.add(data)
            size += len(data)

    try:
        async with Process([SHELL, "-c", command], cwd=cwd, stderr="stdout", name=command[:60]) as process:
            async with Scope("output") as scope:
                scope.spawn(read, process)
                with anyio.move_on_after(seconds) as limit:
                    # Not until the end of the output: a background process that the command started may keep
                    # it open forever.
                    await process.wait()
                ran.timed_out = limit.cancelled_caught
                await process.close()
            code = process.returncode
    finally:
        # Also when the turn is stopped: the output so far goes into the history.
        ran.output, ran.truncated = bytes(tail).decode(errors="replace"), size > OUTPUT_LIMIT
        context.progress(ran.output)
    if code is not None and code < 0:
        ran.signal = _signal_name(-code)
    else:
        ran.exit_code = code
    return ran


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # not every signal has a name
        return f"signal {number}"


async def run_in_terminal(
    session: Session, context: ToolContext[Any], command: str, cwd: str, seconds: float
) -> Ran:
    """Run the command in a terminal of the client, where the user sees it."""
    client = session.client
    created = await client_answer(
        client.create_terminal(session.id, SHELL, ["-c", command], cwd=cwd, output_byte_limit=OUTPUT_LIMIT)
    )
    terminal = _Terminal(session, created.terminal_id)
    try:
        await session.show(context.tool_call_id, content=[tool_terminal_ref(terminal.id)])
        with anyio.move_on_after(seconds) as limit:
            exited = await client_answer(client.wait_for_terminal_exit(session.id, terminal.id))
            terminal.ran.exit_code, terminal.ran.signal = exited.exit_code, exited.signal
        terminal.ran.timed_out = limit.cancelled_caught
    finally:
        try:
            await shielded(terminal.close)
        finally:
            context.progress(terminal.ran.output)
    return terminal.ran


class _Terminal:
    """One terminal of the client."""

    def __init__(self, session: Session, terminal_id: str) -> None:
        self._session = session
        self.id = terminal_id
        self.ran = Ran()

    async def close(self) -> None:
        """Stop the command if it is still running, fetch its output, and release the terminal."""
        client, session_id, ran = self._session.client, self._session.id, self.ran
        try:
            if ran.exit_code is None and ran.signal is None:
                await client.kill_terminal(session_id, self.id)
            current = await client.terminal_output(session_id, self.id)
            ran.output, ran.truncated = current.output, current.truncated
        except (RpcError, ConnectionError):
            # The client cannot say, or has disconnected: the output stays unknown.
            pass
        finally:
            try:
                await client.release_terminal(session_id, self.id)
            except (RpcError, ConnectionError):
                # A client that has disconnected no longer has the terminal either.
                pass
