"""Commands of a session: in a terminal of the client, if it has some, else as a process tree of ours.

However a command ends (by itself, by its time limit, by a stop of the turn), nothing of it is left when the tool
returns, and what it had written by then is known.
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

from .session import client_says

if TYPE_CHECKING:
    from quiesce.agents import ToolContext

    from .session import Session

SHELL: Final = "/bin/sh"
OUTPUT_LIMIT: Final = 64_000  # bytes of output that the model is given: the last ones


@dataclass(slots=True)
class Ran:
    """What came of a command."""

    output: str = ""
    truncated: bool = False
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False

    def text(self, seconds: float) -> str:
        """For the model."""
        lines = [self.output.rstrip("\n")] if self.output else []
        if self.truncated:
            lines.insert(0, "[the beginning of the output is left out]")
        if self.timed_out:
            lines.append(f"[ended after {seconds:g} s, which was its time limit]")
        elif self.signal is not None:
            lines.append(f"[ended by {self.signal}]")
        elif self.exit_code:
            lines.append(f"[exit code {self.exit_code}]")
        return "\n".join(lines) or "[no output]"


async def run_here(context: ToolContext[Any], command: str, cwd: str, seconds: float) -> Ran:
    """Run it as a process of ours."""
    kept, size = Tail(OUTPUT_LIMIT), 0
    ran = Ran()

    async def read(process: Process) -> None:
        nonlocal size
        while data := await process.read():
            kept.add(data)
            size += len(data)

    try:
        async with Process([SHELL, "-c", command], cwd=cwd, stderr="stdout", name=command[:60]) as process:
            async with Scope("output") as scope:
                scope.spawn(read, process)
                with anyio.move_on_after(seconds) as limit:
                    await process.wait()  # what it has left in the background may hold its output for ever
                ran.timed_out = limit.cancelled_caught
                await process.close()
            code = process.returncode
    finally:
        ran.output, ran.truncated = bytes(kept).decode(errors="replace"), size > OUTPUT_LIMIT
        context.progress(ran.output)
    if code is not None and code < 0:
        ran.signal = _signal_name(-code)
    else:
        ran.exit_code = code
    return ran


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # there are more than have names
        return f"signal {number}"


async def run_in_terminal(
    session: Session, context: ToolContext[Any], command: str, cwd: str, seconds: float
) -> Ran:
    """Run it in a terminal of the client, where the user sees it."""
    client = session.client
    created = await client_says(
        client.create_terminal(session.id, SHELL, ["-c", command], cwd=cwd, output_byte_limit=OUTPUT_LIMIT)
    )
    terminal = _Terminal(session, created.terminal_id)
    try:
        await session.show(context.tool_call_id, content=[tool_terminal_ref(terminal.id)])
        with anyio.move_on_after(seconds) as limit:
            ended = await client_says(client.wait_for_terminal_exit(session.id, terminal.id))
            terminal.ran.exit_code, terminal.ran.signal = ended.exit_code, ended.signal
        terminal.ran.timed_out = limit.cancelled_caught
    finally:
        try:
            await shielded(terminal.end)
        finally:
            context.progress(terminal.ran.output)
    return terminal.ran


class _Terminal:
    """One terminal of the client's."""

    def __init__(self, session: Session, terminal_id: str) -> None:
        self._session = session
        self.id = terminal_id
        self.ran = Ran()

    async def end(self) -> None:
        """End its command if need be, see what it has written, and let go of it."""
        client, session_id, ran = self._session.client, self._session.id, self.ran
        try:
            if ran.exit_code is None and ran.signal is None:
                await client.kill_terminal(session_id, self.id)
            shown = await client.terminal_output(session_id, self.id)
            ran.output, ran.truncated = shown.output, shown.truncated
        except (RpcError, ConnectionError):  # then there is nothing more to see
            pass
        finally:
            try:
                await client.release_terminal(session_id, self.id)
            except (RpcError, ConnectionError):  # a client that is gone has let go of it too
                pass
