"""A client for many turns with one CLI."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from anyio.lowlevel import checkpoint

from quiesce import Reason
from quiesce.claude.types import ClaudeAgentOptions, CLIConnectionError, Message
from quiesce.kernel.inner import raise_unchanged, reason_of_block, users_site, without_cancels

from .connect import begin, connected, session_for
from .prompts import feed, say_all, user_message
from .session import Session

if TYPE_CHECKING:
    from quiesce import Grace, Held, Process, Scope, StopReport

_NOT_CONNECTED: Final = "Not connected: call connect() first, or use `async with`"


class ClaudeSDKClient:
    """One CLI, and as many prompts as you like.

    ```python
    async with ClaudeSDKClient(options) as client:
        await client.query("Look around.")
        async for message in client.receive_response():
            print(message)
        await client.query("And now?")
        ...
    ```

    Or `await client.connect()` … `await client.disconnect()`. Everything may be used from any task. Leaving the block, `disconnect()` and `close()` interrupt the
    CLI if it is at work, end its input, and end its whole process tree; that is done when control is back.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions | None = None,
        transport: object = None,
        *,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.options = options if options is not None else ClaudeAgentOptions()
        self._transport = transport
        self._grace = grace
        self._scope = scope
        self._made_at = users_site()
        self._session: Session | None = None
        self._held: Held[Session] | None = None

    # Opening and closing

    async def connect(self, prompt: str | AsyncIterable[dict[str, Any]] | None = None) -> None:
        """Start the CLI; `prompt` is said at once, or as it comes if it is a stream.

        The end of a stream ends neither its turn nor the session. A client that is connected already is a `CLIConnectionError`: `disconnect()` first. After that, and when
        the session has ended by itself, this starts a new one.

        If it fails, or you are cancelled, nothing is left of it. Another task may `disconnect()` meanwhile: then this is a `CLIConnectionError`.
        """
        if self._held is not None and not self._held.token.cancelled:
            how = "connected already" if self._is_open else "being connected"
            raise CLIConnectionError(f"this client is {how}: disconnect() first")
        session = session_for(self.options, self._transport, self._grace)
        held = begin(session, self._made_at, self._grace, self._scope)
        self._session, self._held = session, held
        try:
            await connected(session, held)
        except BaseException:
            if self._held is held and held.error is not None:
                self._held = None  # it has never been connected, and that was told here
            raise
        try:
            if isinstance(prompt, str):
                await self.query(prompt)
            elif prompt is not None:
                await feed(session, prompt)
        except BaseException as error:
            await held.close(reason=Reason("error", f"its first prompt could not be said: {error!r}"))
            raise

    async def disconnect(self) -> None:
        """End the session; nothing happens if it has ended. `close()` does the same, and reports."""
        if self._held is not None:
            await self.close()

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """End the session, wait until its whole process tree is gone, and report; from any task, also from a hook."""
        held, was_open = self._connected(), self._is_open
        try:
            return await held.close(deadline=deadline, grace=grace, reason=reason)
        except Exception as error:
            if was_open or error is not held.error or held.report is None:
                raise
            return held.report  # it could not be connected: that is for whoever is connecting

    @property
    def report(self) -> StopReport | None:
        """What the last `close()` or the end of the block reported; None before."""
        return self._held.report if self._held is not None else None

    @property
    def process(self) -> Process:
        """The CLI's process: `pid`, `returncode`, `stderr_tail`."""
        process: Process | None = getattr(self._open().transport, "process", None)
        if process is None:
            raise CLIConnectionError("this client is connected by a transport that has no process")
        return process

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._held is None:
            return
        try:
            await self.close(reason=reason_of_block(self._held._keeper.core, error))
        except (Exception, SystemExit) as failure:
            if error is None:
                raise
            if without_cancels(error) is not None:
                raise_unchanged(failure, error)
            error.__cause__ = failure  # the cancellation goes on, and carries it

    def _connected(self) -> Held[Session]:
        if self._held is None:
            raise CLIConnectionError(_NOT_CONNECTED)
        return self._held

    @property
    def _is_open(self) -> bool:
        return hasattr(self._session, "info")

    def _open(self) -> Session:
        held, session = self._connected(), self._session
        if session is None or not self._is_open:
            waits = "Not connected yet: wait for the connect() of another task"
            raise CLIConnectionError(_NOT_CONNECTED if held.token.cancelled else waits)
        return session

    # Talking

    async def query(self, prompt: str | AsyncIterable[dict[str, Any]], session_id: str = "default") -> None:
        """Say something; `receive_response()` then gives the messages of this turn."""
        session = self._open()
        if isinstance(prompt, str):
            await session.say(user_message(prompt, session_id))
            return
        await say_all(session, prompt, session_id=session_id)

    def receive_messages(self) -> MessageReader:
        """All messages, of all turns, until the session ends: those too of turns that the CLI has begun by itself.

        If the CLI ends in the middle of a turn, with whatever status, that is an error after its last message: `ProcessError`, or `CLIConnectionError` with a transport of your own.
        """
        return MessageReader(self, self._open(), None)

    def receive_response(self) -> MessageReader:
        """The messages of the turn that was asked for last, up to its result; of the next one, if that was read to its end.

        What is left of turns before it is passed over; whoever still reads one of those gets it. Without a prompt this waits for one, so that you may read one
        response after another in a loop. The end of the session ends the response; after it there cannot be another, which is a `CLIConnectionError`.
        """
        session = self._open()
        turn = session.mailbox.asked
        if not turn or session.mailbox.is_read(turn):
            session.check_open()
            turn += 1
        return MessageReader(self, session, turn)

    # Controlling

    async def interrupt(self) -> None:
        """Stop the turn that is on; its result follows. It is answered though nobody reads messages."""
        await self._ask("interrupt")

    async def set_permission_mode(self, mode: str) -> None:
        """Change what needs permission."""
        await self._ask("set_permission_mode", mode=mode)

    async def set_model(self, model: str | None = None) -> None:
        """Change the model, or go back to the default one."""
        await self._ask("set_model", model=model)

    async def rewind_files(self, user_message_id: str) -> None:
        """Put files back as they were at that message (with `enable_file_checkpointing`)."""
        await self._ask("rewind_files", user_message_id=user_message_id)

    async def reconnect_mcp_server(self, server_name: str) -> None:
        """Connect to an MCP server again."""
        await self._ask("mcp_reconnect", serverName=server_name)

    async def toggle_mcp_server(self, server_name: str, enabled: bool) -> None:
        """Switch an MCP server on or off."""
        await self._ask("mcp_toggle", serverName=server_name, enabled=enabled)

    async def stop_task(self, task_id: str) -> None:
        """Stop a background task."""
        await self._ask("stop_task", task_id=task_id)

    async def get_mcp_status(self) -> dict[str, Any]:
        """How its MCP servers are."""
        return await self._ask("mcp_status")

    async def get_context_usage(self) -> dict[str, Any]:
        """What fills its context."""
        return await self._ask("get_context_usage")

    async def get_server_info(self) -> dict[str, Any] | None:
        """What it said of itself when it started: commands, models, ..."""
        return self._open().info

    async def _ask(self, subtype: str, **fields: Any) -> dict[str, Any]:
        return await self._open().control.ask(subtype, fields)


class MessageReader(AsyncIterator[Message]):
    """An iterator, not a generator: breaking out of it leaves nothing to be finalised, and the next one goes on from there.

    Until it has come to its end it keeps its client, which would end the session if nobody held it.
    """

    def __init__(self, client: ClaudeSDKClient, session: Session, turn: int | None) -> None:
        self._client: ClaudeSDKClient | None = client
        self._session = session
        self._reading = session.mailbox.reading(turn) if turn is not None else None
        self._closed = False

    async def __anext__(self) -> Message:
        if self._closed:
            await checkpoint()
            raise StopAsyncIteration
        message: Message | None = await self._session.mailbox.next_of(self._reading, lambda: self._closed)
        if message is None:
            self._end()
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        """Give nothing any more; whoever waits for a message here gets the end of the iteration. The session goes on."""
        self._end()
        self._session.mailbox.poke()

    def _end(self) -> None:
        self._closed = True
        self._client = self._reading = None
