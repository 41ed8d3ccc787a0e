"""`ClaudeSDKClient`: many turns with one CLI."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from anyio.lowlevel import checkpoint

from quiesce import Reason
from quiesce.claude.words import ClaudeAgentOptions, CLIConnectionError, Message
from quiesce.kernel.inner import SessionFace, raise_unchanged, users_site, without_cancels

from .connect import begin, connected, session_for
from .prompts import feed, send_all, user_message
from .session import Session

if TYPE_CHECKING:
    from quiesce import Grace, Process, Scope, StopReport

_NOT_CONNECTED: Final = "Not connected: call connect() first, or use `async with`"


class ClaudeSDKClient(SessionFace[Session]):
    """One CLI, for any number of prompts.

    ```python
    async with ClaudeSDKClient(options) as client:
        await client.query("Look around.")
        async for message in client.receive_response():
            print(message)
        await client.query("And now?")
        ...
    ```

    Or `await client.connect()` … `await client.disconnect()`. All methods may be called from any task.
    Exiting the block, `disconnect()` and `close()` interrupt the CLI if it is working, end its input, and
    stop its whole process tree. All of that is done when they return.
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

    # Opening and closing

    async def connect(self, prompt: str | AsyncIterable[dict[str, Any]] | None = None) -> None:
        """Start the CLI and send it `prompt`; messages of a stream are sent as they come.

        The end of a stream ends neither its turn nor the session. After `disconnect()`, or when the session
        has ended by itself, this starts a new session; a client that is still connected raises
        `CLIConnectionError`.

        If connecting fails or is cancelled, nothing is left running. If another task calls `disconnect()`
        meanwhile, this raises `CLIConnectionError`.
        """
        if self._holding is not None and not self._holding.token.cancelled:
            how = "connected already" if self._is_open else "being connected"
            raise CLIConnectionError(f"this client is {how}: disconnect() first")
        session = session_for(self.options, self._transport, self._grace)
        held = begin(session, self._made_at, self._grace, self._scope)
        # Before the first await: another task may call disconnect() while this one is still connecting.
        self._session, self._holding = session, held
        try:
            await connected(session, held)
        except BaseException:
            if self._holding is held and held.error is not None:
                # It never connected, and this call raises why: a later close() has nothing to add.
                self._holding = None
            raise
        try:
            if isinstance(prompt, str):
                await self.query(prompt)
            elif prompt is not None:
                await feed(session, prompt)
        except BaseException as error:
            await held.close(reason=Reason("error", f"the first prompt could not be sent: {error!r}"))
            raise

    async def disconnect(self) -> None:
        """Close the session, if there is one. `close()` does the same, and returns a report."""
        if self._holding is not None:
            await self.close()

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Close the session, wait until its whole process tree has exited, and return a report.

        It may be called from any task, also from a hook.
        """
        held, was_open = self._held(), self._is_open
        try:
            return await held.close(deadline=deadline, grace=grace, reason=reason)
        except Exception as error:
            if was_open or error is not held.error or held.report is None:
                raise
            # It failed to connect. The task in connect() gets that error; the closer only wants it stopped.
            return held.report

    @property
    def process(self) -> Process:
        """The CLI's process: `pid`, `returncode`, `stderr_tail`."""
        process = self._open().process
        if process is None:
            raise CLIConnectionError("the transport of this client has no process")
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
        if self._holding is None:
            return
        try:
            await super().__aexit__(kind, error, traceback)
        except (Exception, SystemExit) as failure:
            if error is None:
                raise
            if without_cancels(error) is not None:
                raise_unchanged(failure, error)
            # The block is being cancelled: to raise the failure would swallow that, so it becomes the cause.
            error.__cause__ = failure

    def _how_to_open(self) -> Exception:
        return CLIConnectionError(_NOT_CONNECTED)

    @property
    def _is_open(self) -> bool:
        return self._session is not None and self._session.is_open

    def _open(self) -> Session:
        held, session = self._held(), self._session
        if session is None or not self._is_open:
            connecting = "Not connected yet: wait for the connect() of another task"
            raise CLIConnectionError(_NOT_CONNECTED if held.token.cancelled else connecting)
        return session

    # Prompts and messages

    async def query(self, prompt: str | AsyncIterable[dict[str, Any]], session_id: str = "default") -> None:
        """Send a prompt; `receive_response()` then gives the messages of its turn."""
        session = self._open()
        if isinstance(prompt, str):
            await session.send(user_message(prompt, session_id))
            return
        await send_all(session, prompt, session_id=session_id)

    def receive_messages(self) -> MessageReader:
        """Iterate over all messages until the session ends, also those of turns that the CLI began by itself.

        If the CLI exits during a turn, with any status, an error follows the last message: `ProcessError`, or
        `CLIConnectionError` with a transport of your own.
        """
        return MessageReader(self, self._open(), None)

    def receive_response(self) -> MessageReader:
        """Iterate over the messages of the last prompt's turn, up to its result.

        If that turn was read to its end, this waits for the next prompt, so that you can read one response
        after another in a loop. Unread messages of earlier turns are skipped, unless another reader still
        reads them. The end of the session ends the iteration; after that, this raises `CLIConnectionError`.
        """
        session = self._open()
        turn = session.mailbox.prompt_count
        # Decided here and not at the first `anext`: a prompt that is sent in between belongs to the next
        # response.
        if not turn or session.mailbox.is_read(turn):
            session.check_open()
            turn += 1
        return MessageReader(self, session, turn)

    # Control requests

    async def interrupt(self) -> None:
        """Interrupt the current turn; its result follows. This returns even if no task reads messages."""
        await self._ask("interrupt")

    async def set_permission_mode(self, mode: str) -> None:
        """Change what needs permission."""
        await self._ask("set_permission_mode", mode=mode)

    async def set_model(self, model: str | None = None) -> None:
        """Change the model, or go back to the default one."""
        await self._ask("set_model", model=model)

    async def rewind_files(self, user_message_id: str) -> None:
        """Restore files as they were at that message; needs `enable_file_checkpointing`."""
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
        """Return the status of its MCP servers."""
        return await self._ask("mcp_status")

    async def get_context_usage(self) -> dict[str, Any]:
        """Return what fills its context window."""
        return await self._ask("get_context_usage")

    async def get_server_info(self) -> dict[str, Any] | None:
        """Return what the CLI reported about itself when it started: commands, models, ..."""
        return self._open().info

    async def _ask(self, subtype: str, **fields: Any) -> dict[str, Any]:
        return await self._open().control.ask(subtype, fields)


class MessageReader(AsyncIterator[Message]):
    """The messages of one turn, or of all.

    An iterator, not a generator: if you break out of the loop, nothing has to be finalised, and the next
    reader continues from there. It keeps its client alive until its end, because a client without references
    closes its session.
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
        """End the iteration, also for a task that is waiting for a message. The session goes on."""
        self._end()
        self._session.mailbox.wake_readers()

    def _end(self) -> None:
        self._closed = True
        self._client = self._reading = None
