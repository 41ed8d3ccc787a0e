"""An ACP client that a test drives: it spawns the agent named in its arguments and does what it is told over a socket.

A line in is a command, `{"id", "do", ...}`; a line out is an event, written the moment it is seen, so that the order
of the lines is the order in which this client saw things. `client.mjs` speaks the same.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from interop_tests.programs.library import Command, Library, parse

BLOCKS = {
    "text": "TextContentBlock",
    "image": "ImageContentBlock",
    "resource_link": "ResourceContentBlock",
    "resource": "EmbeddedResourceContentBlock",
}


class Control:
    """The socket to the test. Writing blocks, for the order of events is what is at stake; the test always reads."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._unread = b""

    def emit(self, event: str, **fields: Any) -> None:
        try:
            self._socket.sendall(json.dumps({"event": event, **fields}).encode() + b"\n")
        except OSError:
            pass  # the test has gone; its commands end, and so shall we

    async def next_command(self) -> dict[str, Any] | None:
        while b"\n" not in self._unread:
            await anyio.wait_readable(self._socket)
            piece = self._socket.recv(65536)
            if not piece:
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command


class Terminal:
    """A command that an agent runs here, until it is released."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.output = b""
        self.cut = False
        self.status: int | None = None
        self.command: Command | None = None
        self.exited = anyio.Event()
        self.gone = anyio.Event()
        self.scope = anyio.CancelScope()

    async def run(
        self, library: Library, argv: list[str], env: dict[str, str], cwd: str | None, owner: Any
    ) -> None:
        with self.scope:
            try:
                async with library.command(argv, env, cwd, owner) as self.command:
                    while piece := await self.command.read():
                        self.output += piece
                        if self.limit is not None and len(self.output) > self.limit:
                            self.output = self.output[-self.limit :]
                            self.cut = True
                    self.status = await self.command.wait()
                    self.exited.set()
                    await anyio.sleep_forever()  # until it is released
            finally:
                self.exited.set()
                self.gone.set()


class DrivenClient:
    def __init__(self, library: Library, control: Control, tasks: anyio.abc.TaskGroup) -> None:
        self.library = library
        self.acp = library.acp
        self.schema = library.schema
        self.control = control
        self.tasks = tasks
        self.owner = library.here()  # terminals outlive the request that makes them
        self.permission = "yes"
        self.delays: Iterator[float] | None = None  # before each update is taken note of
        self.held: dict[str, anyio.Event] = {}  # session: asked to settle what is held open for it
        self.terminals: dict[str, Terminal] = {}

    def on_connect(self, conn: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        if self.delays is not None:
            await anyio.sleep(next(self.delays))
        self.control.emit("update", session=session_id, update=self.library.plain(update))

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **kwargs: Any
    ) -> Any:
        self.control.emit(
            "permission",
            session=session_id,
            call=self.library.plain(tool_call),
            options=[self.library.plain(option) for option in options],
        )
        if self.permission == "hold":
            settle = self.held.setdefault(session_id, anyio.Event())
            try:
                await settle.wait()
            except anyio.get_cancelled_exc_class():
                self.control.emit("withdrawn", session=session_id)
                raise
            outcome = self.schema.DeniedOutcome(outcome="cancelled")
        elif self.permission == "cancelled":
            outcome = self.schema.DeniedOutcome(outcome="cancelled")
        else:
            outcome = self.schema.AllowedOutcome(outcome="selected", option_id=self.permission)
        return self.schema.RequestPermissionResponse(outcome=outcome)

    def settle(self, session_id: str) -> None:
        """What a client owes an agent whose turn it cancels. Our connection does so by itself."""
        if not self.library.ours and (held := self.held.pop(session_id, None)) is not None:
            held.set()

    # Files

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> Any:
        try:
            lines = Path(path).read_text().splitlines(keepends=True)  # noqa: ASYNC240  a small local file
        except FileNotFoundError:
            raise self.acp.RequestError.resource_not_found(path) from None
        first = (line or 1) - 1
        chosen = lines[first : None if limit is None else first + limit]
        return self.schema.ReadTextFileResponse(content="".join(chosen))

    async def write_text_file(self, session_id: str, path: str, content: str, **kwargs: Any) -> Any:
        Path(path).write_text(content)  # noqa: ASYNC240
        return self.schema.WriteTextFileResponse()

    # Terminals

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[Any] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **kwargs: Any,
    ) -> Any:
        terminal = Terminal(output_byte_limit)
        name = f"terminal-{len(self.terminals) + 1}"
        self.terminals[name] = terminal
        environment = {**os.environ, **{one.name: one.value for one in env or ()}}
        argv = [command, *(args or ())]
        self.tasks.start_soon(terminal.run, self.library, argv, environment, cwd, self.owner)
        self.control.emit("terminal", session=session_id, terminal=name)
        return self.schema.CreateTerminalResponse(terminal_id=name)

    async def terminal_output(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        terminal = self._terminal(terminal_id)
        status = None if terminal.status is None else self.schema.TerminalExitStatus(**_how(terminal.status))
        return self.schema.TerminalOutputResponse(
            output=terminal.output.decode(), truncated=terminal.cut, exit_status=status
        )

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        terminal = self._terminal(terminal_id)
        await terminal.exited.wait()
        if terminal.status is None:
            raise self.acp.RequestError.internal_error({"details": f"{terminal_id} was released"})
        return self.schema.WaitForTerminalExitResponse(**_how(terminal.status))

    async def kill_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        terminal = self._terminal(terminal_id)
        assert terminal.command is not None
        terminal.command.kill()
        return self.schema.KillTerminalResponse()

    async def release_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        terminal = self._terminal(terminal_id)
        terminal.scope.cancel()
        await terminal.gone.wait()
        terminal.command = None
        self.control.emit("released", session=session_id, terminal=terminal_id)
        del self.terminals[terminal_id]
        self.terminals[f"{terminal_id} (released)"] = terminal  # so that names are not used again
        return self.schema.ReleaseTerminalResponse()

    def _terminal(self, terminal_id: str) -> Terminal:
        try:
            return self.terminals[terminal_id]
        except KeyError:
            raise self.acp.RequestError.resource_not_found(terminal_id) from None

    async def create_elicitation(self, message: str, mode: Any, **kwargs: Any) -> Any:
        asked = self.library.plain(mode)
        self.control.emit(
            "elicitation", session=asked["sessionId"], message=message, schema=asked["requestedSchema"]
        )
        return self.schema.AcceptElicitationResponse(
            action="accept", content={"name": "nobody", "sure": True}
        )

    # Extensions

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "interop/echo":
            return {"echo": params}
        raise self.acp.RequestError.method_not_found(f"_{method}")

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        self.control.emit("note", method=method, params=params)


def _how(status: int) -> dict[str, Any]:
    return {"exit_code": status} if status >= 0 else {"signal": signal.Signals(-status).name}


class Driver:
    """Commands of the test, each in a task of its own."""

    def __init__(self, library: Library, control: Control, client: DrivenClient, conn: Any) -> None:
        self.library = library
        self.control = control
        self.client = client
        self.conn = conn
        self.calls: dict[int, anyio.CancelScope] = {}

    async def obey(self) -> None:
        async with anyio.create_task_group() as tasks:
            while (command := await self.control.next_command()) is not None:
                number, do = command.pop("id"), command.pop("do")
                if do == "close":
                    break
                if do == "permission":
                    self.client.permission = command["answer"]
                elif do == "linger":
                    # Uneven, so that updates which are handled at the same time overtake each other.
                    self.client.delays = itertools.cycle([0.02, 0.0, 0.01]) if command["on"] else None
                elif do == "abort":
                    self.calls[command["call"]].cancel()
                else:
                    tasks.start_soon(self.call, number, do, command)
                    continue
                self.control.emit("result", id=number, result=None)
            tasks.cancel_scope.cancel()

    async def call(self, number: int, do: str, arguments: dict[str, Any]) -> None:
        with anyio.CancelScope() as self.calls[number]:
            try:
                result = await self.send(do, arguments)
            except self.library.acp.RequestError as error:
                self.control.emit("error", id=number, code=error.code, message=str(error), data=error.data)
            except Exception as error:
                self.control.emit("error", id=number, code=None, message=repr(error), kind=_kinds(error))
            else:
                self.control.emit("result", id=number, result=result)
        if self.calls.pop(number).cancelled_caught:
            self.control.emit("aborted", id=number)

    async def send(self, do: str, arguments: dict[str, Any]) -> Any:
        if do == "initialize":
            s = self.library.schema
            files = s.FileSystemCapabilities(read_text_file=True, write_text_file=True)
            arguments = {
                "protocol_version": self.library.acp.PROTOCOL_VERSION,
                "client_capabilities": s.ClientCapabilities(
                    fs=files,
                    terminal=True,
                    elicitation=s.ElicitationCapabilities(form=s.ElicitationFormCapabilities()),
                ),
                "client_info": s.Implementation(name="interop", version="1.0"),
            }
        elif do == "prompt":
            blocks = [self.library.message(BLOCKS[one["type"]], one) for one in arguments["prompt"]]
            arguments = {**arguments, "prompt": blocks}
        method: Callable[..., Awaitable[Any]] = getattr(self.conn, do)
        answer = await method(**arguments)
        if do == "cancel":
            self.client.settle(arguments["session_id"])
        return answer if answer is None or isinstance(answer, dict) else self.library.plain(answer)


def _kinds(error: Exception) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


async def drive(library: Library, control: Control, argv: list[str]) -> None:
    async with anyio.create_task_group() as tasks:
        client = DrivenClient(library, control, tasks)
        async with library.connected(client, argv) as (conn, pid):
            control.emit("started", agent=pid)
            await Driver(library, control, client, conn).obey()
            report = await conn.close() if library.ours else None
            control.emit("closed", report=None if report is None else str(report), left=_left(report))
        tasks.cancel_scope.cancel()
    control.emit("ended")


def _left(report: Any) -> list[str]:
    return [] if report is None else [str(one) for one in report.left]


def main() -> None:
    library, arguments, argv = parse(__doc__ or "", "--control")
    control = Control(arguments.control)

    async def run() -> None:
        await drive(library, control, argv)

    library.run(run, arguments.backend)


if __name__ == "__main__":
    main()
