"""A client for many turns with one CLI."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quiesce.kernel._own import Held, own
from quiesce.kernel._reason import Reason
from quiesce.kernel._scope import Scope

from ._connect import session_for
from ._errors import CLIConnectionError
from ._messages import Message
from ._options import ClaudeAgentOptions
from ._query import feed, user_message
from ._session import Session

if TYPE_CHECKING:
    from quiesce.kernel._grace import Grace
    from quiesce.kernel._process import Process
    from quiesce.kernel._report import StopReport


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
        self._session: Session | None = None
        self._held: Held[Session] | None = None
        self._prompts: Scope | None = None

    # Opening and closing

    async def connect(self, prompt: str | AsyncIterable[dict[str, Any]] | None = None) -> None:
        """Start the CLI; `prompt` is said at once, or as it comes if it is a stream."""
        if self._held is not None and not self._held.token.cancelled:
            raise CLIConnectionError("this client is connected already: disconnect() first")
        self._session = session = session_for(self.options, self._transport, self._grace)
        held = await own(session, name="claude", grace=self._grace, scope=self._scope).open()
        self._held = held
        if isinstance(prompt, str):
            await self.query(prompt)
        elif prompt is not None:
            self._prompts = await Scope.open("prompts", on_error="report", scope=self._scope)
            self._prompts.spawn(feed, session, prompt, name="prompts")

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
        held = self._connected()
        try:
            return await held.close(deadline=deadline, grace=grace, reason=reason)
        finally:
            prompts, self._prompts = self._prompts, None
            if prompts is not None:
                await prompts.close()

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
        why = Reason("parent", "its block ended")
        if isinstance(error, Exception):
            why = Reason("error", f"the body raised {error!r}", error)
        if self._held is not None:
            await self.close(reason=why)

    def _connected(self) -> Held[Session]:
        if self._held is None:
            raise CLIConnectionError("Not connected: call connect() first, or use `async with`")
        return self._held

    def _open(self) -> Session:
        self._connected()
        assert self._session is not None
        return self._session

    # Talking

    async def query(self, prompt: str | AsyncIterable[dict[str, Any]], session_id: str = "default") -> None:
        """Say something; `receive_response()` then gives the messages of this turn."""
        session = self._open()
        if isinstance(prompt, str):
            await session.say(user_message(prompt, session_id))
            return
        async for message in prompt:
            await session.say({"session_id": session_id, **message})

    def receive_messages(self) -> AsyncIterator[Message]:
        """All messages, of all turns, until the session ends."""
        return _Messages(self._open(), None)

    def receive_response(self) -> AsyncIterator[Message]:
        """The messages of the turn that was asked for last, up to its result. What is left of turns before it is passed over."""
        session = self._open()
        return _Messages(session, max(session.mailbox.asked, 1))

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


class _Messages:
    """An iterator, not a generator: breaking out of it leaves nothing to be finalised, and the next one goes on from there."""

    def __init__(self, session: Session, turn: int | None) -> None:
        self._session = session
        self._turn = turn

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Message:
        message: Message | None = await self._session.mailbox.next_of(self._turn)
        if message is None:
            raise StopAsyncIteration
        return message
