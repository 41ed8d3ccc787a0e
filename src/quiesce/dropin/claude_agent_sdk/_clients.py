"""`ClaudeSDKClient`, connected and disconnected by an owner task, in a containment.

- **In the middle of a turn**, the CLI is first interrupted, so that its transcript stays in order, and then
  disconnected by the SDK. If it does not answer the interrupt, its whole tree gets SIGTERM at once: the SDK ends
  its input first, and waits for five seconds, while the agent works on.
- **Requests that wait for their answer** (`interrupt()`, `get_mcp_status()`) fail when the client is closed. The
  SDK has them wait for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from functools import partial
from typing import Any, Self

import claude_agent_sdk
from claude_agent_sdk import ClaudeAgentOptions, CLIConnectionError, Message, ResultMessage

from quiesce import Grace, NotHeld, Reason, Scope, StopReport
from quiesce._safe.printed import logger
from quiesce.dropin.connected import Connection
from quiesce.dropin.handing import replaces
from quiesce.kernel.inner import core_of

from ._callbacks import check_loop, with_own_tasks
from ._looks import Looks
from ._queries import EOF_SHARE

_INTERRUPT_SHARE = 1 / 3  # of `Grace.cancel`


@replaces(claude_agent_sdk.ClaudeSDKClient)
class ClaudeSDKClient(claude_agent_sdk.ClaudeSDKClient):
    """A client that any task may close; when it is closed, the CLI and all that it started have ended."""

    options: ClaudeAgentOptions
    _connection: Connection[None] | None = None
    _looks: Looks
    _prompts = 0  # those that were sent, without those whose result was read

    @property
    def report(self) -> StopReport | None:
        """What the end of the connection has stopped, and what is left; None as long as it is open."""
        return self._connection.report if self._connection is not None else None

    async def connect(self, prompt: str | AsyncIterable[dict[str, Any]] | None = None) -> None:
        """Start the CLI. If this raises, or you are cancelled, nothing is left half open."""
        check_loop()
        await self.disconnect()
        self._prompts = int(prompt is not None)
        self._connection = connection = Connection(
            partial(self._connect, prompt), self._disconnect, name="claude"
        )
        self._looks = Looks(connection.look_at_processes, lambda: self._prompts > 0)
        try:
            await connection.open()
        except NotHeld as error:
            raise CLIConnectionError("the client was closed while it was connecting") from error

    async def _connect(self, prompt: str | AsyncIterable[dict[str, Any]] | None) -> None:
        theirs, self.options = self.options, with_own_tasks(self.options)
        try:
            await super().connect(prompt)
        finally:
            self.options = theirs

    async def _disconnect(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            if self._prompts > 0 and not await self._has_been_interrupted():
                connection.stop_processes()
        finally:
            await self._hang_up(connection)

    async def _hang_up(self, connection: Connection[None]) -> None:
        requests, seconds = self._query, core_of().grace.cancel * EOF_SHARE
        later = asyncio.get_running_loop().call_later(seconds, connection.stop_processes)
        try:
            await super().disconnect()
        finally:
            later.cancel()
            self._looks.end()
            _fail(requests)

    async def _has_been_interrupted(self) -> bool:
        try:
            async with asyncio.timeout(core_of().grace.cancel * _INTERRUPT_SHARE):
                await super().interrupt()
        except Exception as error:
            logger.debug("the CLI was not interrupted: %r", error)
            return False
        return True

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def disconnect(self) -> None:
        """Disconnect, and wait until everything that the client has started has ended. From any task."""
        connection = self._connection
        if connection is None:
            await super().disconnect()
        elif connection.is_inside() and not connection.is_open:
            await self._hang_up(connection)  # the SDK calls this itself when it could not connect
        else:
            await connection.close()

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """As `disconnect`; returns what it has stopped, and what is left.

        Bounded by `deadline` seconds, or its `Grace`. If you are cancelled meanwhile, the stop goes on, and your
        cancellation is raised after it; the report is then in `report`.
        """
        if self._connection is None:
            return await (await Scope.open("claude")).close(reason=reason)
        return await self._connection.close(deadline=deadline, grace=grace, reason=reason)

    # What tells whether a turn is under way.

    async def query(self, prompt: str | AsyncIterable[dict[str, Any]], session_id: str = "default") -> None:
        """As the SDK's."""
        self._prompts += 1
        if self._connection is not None:
            self._looks.look_soon()
        await super().query(prompt, session_id)

    async def receive_messages(self) -> AsyncIterator[Message]:
        """As the SDK's."""
        async for message in super().receive_messages():
            if isinstance(message, ResultMessage):
                self._prompts = max(0, self._prompts - 1)
            self._looks.look_soon()
            yield message


def _fail(requests: Any) -> None:
    """Have those who wait for an answer of the CLI, or for a message, know that none will come."""
    results: dict[str, Any] = getattr(requests, "pending_control_results", {})
    for number, answered in list(getattr(requests, "pending_control_responses", {}).items()):
        results.setdefault(number, CLIConnectionError("the client was closed"))
        answered.set()
    if requests is not None:
        requests.close_receive_stream()  # as the SDK does, unless its time was over before
