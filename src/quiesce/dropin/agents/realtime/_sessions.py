"""Realtime sessions that have ended when `close()` returns.

The SDK's `close()` waits a second for its tools, closes the model under those that are still running, and
returns; and a cancelled `close()` leaves its clean-up behind. Here an owner task enters and closes the
session, in a containment: what the SDK leaves behind is waited for, within the grace, and otherwise named.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self, cast

from agents import realtime

from quiesce import StopReport, contain
from quiesce.dropin.connected import Connection
from quiesce.dropin.handing import replaces
from quiesce.dropin.signatures import with_arguments_of


@replaces(realtime.RealtimeSession)
class RealtimeSession(realtime.RealtimeSession):
    """A session that any task may close; when `close()` returns, its tasks and threads have ended."""

    _connection: Connection[Any] | None = None

    @property
    def report(self) -> StopReport | None:
        """What the end of the session has stopped, and what is left; None as long as it is open."""
        return self._connection.report if self._connection is not None else None

    async def __aenter__(self) -> Self:
        connection = Connection(super().__aenter__, super().close, name="realtime session")
        await connection.open()
        self._connection = connection
        return self

    async def _within(self, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, **kwargs: Any) -> None:
        if self._connection is None:
            await fn(*args, **kwargs)
        else:
            await self._connection.call(fn, *args, **kwargs)

    # What its users and the model call in tasks of their own. The tasks that this starts are the session's.

    async def on_event(self, event: realtime.RealtimeModelEvent) -> None:
        await self._within(super().on_event, event)

    @with_arguments_of(realtime.RealtimeSession.send_message)
    async def send_message(self, *args: Any, **kwargs: Any) -> None:
        await self._within(super().send_message, *args, **kwargs)

    @with_arguments_of(realtime.RealtimeSession.send_audio)
    async def send_audio(self, *args: Any, **kwargs: Any) -> None:
        await self._within(super().send_audio, *args, **kwargs)

    async def interrupt(self) -> None:
        await self._within(super().interrupt)

    @with_arguments_of(realtime.RealtimeSession.update_agent)
    async def update_agent(self, *args: Any, **kwargs: Any) -> None:
        await self._within(super().update_agent, *args, **kwargs)

    @with_arguments_of(realtime.RealtimeSession.approve_tool_call)
    async def approve_tool_call(self, *args: Any, **kwargs: Any) -> None:
        await self._within(super().approve_tool_call, *args, **kwargs)

    @with_arguments_of(realtime.RealtimeSession.reject_tool_call)
    async def reject_tool_call(self, *args: Any, **kwargs: Any) -> None:
        await self._within(super().reject_tool_call, *args, **kwargs)

    async def close(self) -> StopReport:  # type: ignore[override, unused-ignore]  # it returns nothing there
        """Close the session, wait until everything in it has ended, and report. From any task."""
        if self._connection is not None:
            return await self._connection.close()
        async with contain(name="realtime session") as box:  # it was never entered
            await super().close()
        assert box.report is not None
        return box.report


@replaces(realtime.RealtimeRunner)
class RealtimeRunner(realtime.RealtimeRunner):
    """Runs realtime agents, as the SDK's does; its sessions end when they are closed."""

    @with_arguments_of(realtime.RealtimeRunner.run)
    async def run(self, *args: Any, **kwargs: Any) -> RealtimeSession:
        session: Any = await super().run(*args, **kwargs)
        session.__class__ = RealtimeSession
        return cast(RealtimeSession, session)
