"""A connection that has ended when its `close()` returns: a containment around the SDK's.

The SDK's `close()` ends the task that sends, and then cancels the handlers: one that answers its request all
the same waits forever. Here a stop takes these steps, and each has its share of the time for clean-up:

1. What we have asked the peer to do, and it is doing, is cancelled there (`session/cancel`), and its answer
   waited for. Meanwhile the peer's own requests are handled: its clean-up may need them.
2. The handlers that run are cancelled, once each, and waited for. Their requests are answered, since the
   connection still sends and reads: a prompt with the stop reason `cancelled`, as the protocol has it.
3. The SDK's own `close()`.
4. The containment stops whatever is left: tasks of handlers, their processes, and the SDK's tasks if one of
   those steps took too long, as when the peer does not read.

What users call in tasks of their own goes through a task of the connection (`_start`). So what the SDK starts
there belongs to the connection; and a call that the SDK would never finish, because nothing sends any more,
ends with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import CancelledError, Task
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Self

from acp import RequestError, connection

from quiesce import Grace, Reason, Remote, StopReport, remote
from quiesce.kernel.inner import OpenContainment, users_site
from quiesce.dropin.handing import replaces

PROMPT, ASK_PERMISSION = "session/prompt", "session/request_permission"
CANCEL_SESSION, CANCEL_REQUEST = "session/cancel", "$/cancel_request"

# How the protocol has a request answered that was cancelled; all others by the error -32800.
ANSWERS = {PROMPT: {"stopReason": "cancelled"}, ASK_PERMISSION: {"outcome": {"outcome": "cancelled"}}}


class _Request:
    """A request of the peer: its handler runs in `task`, which then sends the answer."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
        self.task: Task[Any] | None = asyncio.current_task()
        self.has_been_handled = False
        self.was_cancelled = False

    def cancel(self) -> None:
        """Cancel the handler, unless it has been cancelled before, or its answer is being sent."""
        assert self.task is not None
        if not (self.has_been_handled or self.task.cancelling()):
            self.was_cancelled = True
            self.task.cancel()

    def answer(self) -> Any:
        """What the peer gets for a request that was cancelled."""
        answer = ANSWERS.get(self.message["method"])
        if answer is None:
            raise RequestError(-32800, "Request cancelled")
        return answer


class _Prompt:
    """A prompt that we have sent; `task` has its answer when it is done."""

    task: Task[Any]

    def __init__(self, params: Any) -> None:
        self.session = _field(params, "sessionId")
        self.number: list[int] = []  # of its request, once that was sent

    async def sent(self) -> _Prompt:
        """The prompt, as what `remote` holds."""
        return self

    def label(self) -> object:
        """How a report names it."""
        return self.session


@replaces(connection.Connection)
class Connection(connection.Connection):
    """A connection that any task may close; when `close()` returns, its tasks and processes have ended."""

    def __init__(self, handler: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> None:
        self._requests: dict[Task[Any] | None, _Request] = {}  # by their tasks
        self._prompts: set[Remote[_Prompt, Task[Any]]] = set()
        self._refuses_requests = False
        self._containment = containment = OpenContainment("ACP connection", users_site())
        containment.stop_with(lambda: [asyncio.create_task(self._stop())])
        try:
            containment.run(super().__init__, partial(self._handle, handler), *args, **kwargs)
        except BaseException:
            containment.cancel(Reason("error", "it was not made"))
            raise

    @property
    def report(self) -> StopReport | None:
        """What the end of the connection has stopped, and what is left; None as long as it is open."""
        return self._containment.report

    async def __aenter__(self) -> Self:
        return self

    async def close(
        self, *, deadline: float | None = None, grace: Grace | None = None, reason: Reason | str | None = None
    ) -> StopReport:
        """Stop what runs in it, answer the peer's requests, wait until all of it has ended, and report.

        From any task, any number of times. Bounded by `deadline` seconds, or its `Grace`. If you are cancelled
        meanwhile, the stop goes on, and your cancellation is raised after it; the report is then in `report`.
        A handler that closes its own connection is not waited for: it is cancelled at its next `await`.
        """
        return await self._containment.close(deadline=deadline, grace=grace, reason=reason)

    async def _stop(self) -> None:
        # Half of the time for clean-up is for the peer: it may not answer at all.
        asked = [asyncio.create_task(prompt.close()) for prompt in self._prompts]
        await _wait(asked, timeout=self._containment.grace.cancel / 2)
        self._refuses_requests = True
        for request in self._requests.values():
            request.cancel()
        await _wait(task for task in self._requests if task is not None)
        await super().close()

    async def main_loop(self) -> None:
        """Handle what the peer sends, until the connection ends; if you are cancelled, it is closed first."""
        listening = self._start(super().main_loop)
        try:
            await _wait([listening])
        except CancelledError as error:
            await self.close(reason=Reason("cancelled", str(error)))
            raise
        if not listening.cancelled():
            listening.result()

    # What the peer asks of us

    async def _run_request(self, message: dict[str, Any]) -> Any:
        request = _Request(message)
        self._requests[request.task] = request
        try:
            return await super()._run_request(message)
        finally:
            del self._requests[request.task]

    async def _handle(
        self, handler: Callable[..., Awaitable[Any]], method: str, params: Any, is_notification: bool
    ) -> Any:
        if method == CANCEL_REQUEST and is_notification:
            for cancelled in self._requests.values():
                if cancelled.message["id"] == _field(params, "requestId"):
                    cancelled.cancel()
            return None
        if is_notification:
            return await handler(method, params, is_notification)
        request = self._requests[asyncio.current_task()]
        if self._refuses_requests:
            raise RequestError.internal_error({"details": "the connection is being closed"})
        try:
            return await handler(method, params, is_notification)
        except CancelledError:
            task = request.task
            if task is not None and task.cancelling() and not request.was_cancelled:
                raise  # the event loop is ending: nothing will send an answer
            return request.answer()
        finally:
            request.has_been_handled = True

    # What we ask of the peer

    async def send_request(self, method: str, params: Any = None) -> Any:
        """Ask, and return the answer; if you are cancelled, the peer is told."""
        if method != PROMPT:
            return await self._call(self._ask, method, params)
        prompt = _Prompt(params)
        prompt.task = self._start(self._ask, PROMPT, params, prompt.number)
        job = remote(prompt.sent, self._cancel_prompt, _answered, name="prompt", id=_Prompt.label)
        try:
            async with job:
                self._prompts.add(job)
                answer = await job.wait()
        finally:
            if job not in self._prompts:
                prompt.task.cancel()  # it could not even be owned
            self._prompts.discard(job)
        return _result_of(answer)

    async def send_notification(self, method: str, params: Any = None) -> None:
        """As the SDK's."""
        await self._call(super().send_notification, method, params)

    async def _ask(self, method: str, params: Any, number: list[int] | None = None) -> Any:
        numbers = number if number is not None else []
        numbers.append(self._next_request_id)
        try:
            return await super().send_request(method, params)
        except CancelledError:
            if not self._closed:
                self._start(self._tell, CANCEL_REQUEST, {"requestId": numbers[0]})
            raise

    async def _cancel_prompt(self, prompt: _Prompt) -> None:
        for request in self._requests.values():
            # The agent may be waiting for this answer, before it can end its turn.
            session = _field(request.message.get("params"), "sessionId")
            if request.message["method"] == ASK_PERMISSION and session == prompt.session:
                request.cancel()
        if not prompt.task.done():
            await self._call(self._tell, CANCEL_SESSION, {"sessionId": prompt.session})
            for number in prompt.number:
                await self._call(self._tell, CANCEL_REQUEST, {"requestId": number})

    async def _tell(self, method: str, params: Any) -> None:
        with contextlib.suppress(Exception):  # if the connection is lost, all calls end with that
            await super().send_notification(method, params)

    async def _call(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        us = asyncio.current_task()
        assert us is not None
        cancels = us.cancelling()
        task = self._start(fn, *args)
        try:
            return await task
        except CancelledError:
            if us.cancelling() > cancels:
                raise
            return _result_of(task)

    def _start(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Task[Any]:
        """A task of the connection."""
        if self._closed or self._containment.has_ended:
            raise ConnectionError("Connection closed")
        return self._containment.run(asyncio.ensure_future, fn(*args))


async def _answered(prompt: _Prompt) -> Task[Any]:
    await _wait([prompt.task])
    if not prompt.task.cancelled():
        prompt.task.exception()  # it is raised where the answer is used, if there is anyone to use it
    return prompt.task


def _result_of(task: Task[Any]) -> Any:
    if task.cancelled():  # by the end of the connection
        raise ConnectionError("Connection closed")
    return task.result()


def _field(params: Any, name: str) -> Any:
    return params.get(name) if isinstance(params, dict) else None


async def _wait(tasks: Any, *, timeout: float | None = None) -> None:
    tasks = list(tasks)
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)
