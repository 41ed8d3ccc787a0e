"""`query()`: its messages come from an owner task, in a containment.

The SDK's generator closes the CLI in its `finally`, in the task that iterates it: a second cancel interrupts
that, and `break` only starts it. Here an owner task iterates it (`stream`), and around that is a containment,
which waits for what the SDK leaves: hooks that clean up, threads, descendants of the CLI.

- **In the middle of a turn**, a stop sends SIGTERM to the CLI's tree at once. The SDK ends its input first,
  and waits for five seconds: the agent works on meanwhile.
- **After a result**, it is left to the SDK for half of the time for clean-up: the CLI can finish what it writes.
- **`break`** drops the iterator, which notices that: before the consumer's next line the CLI gets its signal.
  The rest is done behind; `close()` waits for it, as does the scope around.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import claude_agent_sdk
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, Message, ResultMessage, UserMessage
from claude_agent_sdk._internal.client import InternalClient
from claude_agent_sdk.types import StreamEvent

from quiesce import Grace, Reason, Scope, Stream, StopReport, stream
from quiesce.dropin.contained import close_after
from quiesce.dropin.handing import replaces
from quiesce.dropin.signatures import with_arguments_of
from quiesce.kernel.inner import (
    OpenContainment,
    Site,
    look_at_processes,
    stop_orphans,
    stop_processes,
    users_site,
)

from ._callbacks import check_loop, with_own_tasks
from ._looks import Looks


EOF_SHARE = 1 / 2  # of `Grace.cancel`, for a CLI whose input has ended


@replaces(claude_agent_sdk.query)
@with_arguments_of(claude_agent_sdk.query)
def query(**arguments: Any) -> MessageStream:
    claude_agent_sdk.query(
        **arguments
    )  # it starts nothing, and raises what is to be raised for wrong arguments
    options = with_own_tasks(arguments.pop("options", None) or ClaudeAgentOptions())
    # The generator inside the SDK's `query`: to close that one closes nothing further in.
    messages = InternalClient().process_query(options=options, **arguments)
    return MessageStream(messages, users_site())


class MessageStream(AsyncIterator[Message]):
    """What `query` returns: its messages. Leaving the loop over them stops the query.

    ```python
    messages = query(prompt="Look around.")
    async for message in messages:
        break                                   # the agent is being stopped
    report = await messages.close()             # now it has ended
    ```
    """

    def __init__(self, messages: AsyncIterator[Message], made_at: Site) -> None:
        self._messages: Any = messages  # an async generator, which its annotation does not say
        self._made_at = made_at
        self._run: _Run | None = None

    @property
    def report(self) -> StopReport | None:
        """What the end of the query has stopped, and what is left; None as long as it runs."""
        return self._run.containment.report if self._run is not None else None

    async def __anext__(self) -> Message:
        if self._run is None:
            self._run = await _Run.begin(self._messages, self._made_at)
        try:
            return await self._run.next()
        except GeneratorExit:  # the consumer is being closed, and cannot wait: see `__del__`
            raise
        except BaseException as error:
            await close_after(error, self.close)  # wait until all else of the query has ended, too
            raise

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop the query, wait until everything that it started has ended, and report.

        From any task, any number of times. Bounded by `deadline` seconds, or its `Grace`. If you are cancelled
        meanwhile, the stop goes on, and your cancellation is raised after it; the report is then in `report`.
        """
        if self._run is None:
            await self._messages.aclose()
            return await (await Scope.open("query")).close(reason=reason)
        return await self._run.containment.close(deadline=deadline, grace=grace, reason=reason)

    async def aclose(self) -> None:
        """As `close()`, under the name that async generators use."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if (run := self.__dict__.get("_run")) is not None:
            run.abandon()


class _Run:
    """A query that has begun. It does not refer to the object that users hold, so that a drop is noticed."""

    def __init__(self, messages: Any, made_at: Site) -> None:
        self.containment = OpenContainment("query", made_at)
        self._stream: Stream[Message] = self.containment.run(stream, messages, name="query")
        self._looks = Looks(self._look, lambda: True)
        self._is_in_turn = True
        self.containment.stop_with(self._stop)

    @classmethod
    async def begin(cls, messages: Any, made_at: Site) -> _Run:
        """Enter the stream, and never leave its block: we close it ourselves."""
        check_loop()
        run = cls(messages, made_at)
        await run._stream.__aenter__()
        loop = asyncio.get_running_loop()
        # The next turn of the loop: the stop that cancels the token is just beginning.
        run._stream.token.on_cancel(
            lambda: run.containment.run_in_loop(lambda: loop.call_soon(run._stop_processes))
        )
        return run

    async def next(self) -> Message:
        message = await anext(self._stream)
        if isinstance(message, (AssistantMessage, UserMessage, StreamEvent)):
            self._is_in_turn = True
        elif isinstance(message, ResultMessage):  # others may follow it, which say something of the session
            self._is_in_turn = False
        # After the last result the CLI exits by itself, and what it leaves could not be found any more.
        self._looks.look_soon() if self._is_in_turn else self._looks.look_now()
        return message

    def _look(self) -> None:
        look_at_processes(self._stream)
        stop_orphans(self._stream)

    def abandon(self) -> None:
        """Stop it without waiting: the object that users read from is gone."""
        if not self.containment.closed:
            self.containment.run_in_loop(self._stop_processes)
            self.containment.cancel(Reason("user", "the iteration was left"))

    def _stop(self) -> list[asyncio.Task[Any]]:
        self._looks.end()
        self._stop_processes()
        return [asyncio.create_task(self._close())]

    async def _close(self) -> None:
        seconds = self.containment.grace.cancel * EOF_SHARE
        later = asyncio.get_running_loop().call_later(seconds, stop_processes, self._stream)
        try:
            await self._stream.close()
        finally:
            later.cancel()

    def _stop_processes(self) -> None:
        if self._is_in_turn:
            stop_processes(self._stream)
