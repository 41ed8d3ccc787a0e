"""Code of an SDK, contained: what it starts ends with it, and what went wrong in its stop is said.

`call` is for one async function. It runs in a task of its own, because a cancel of the caller must reach it
once and not as often as the caller is cancelled: the second would interrupt its clean-up. Inside that task is
a `contain` block, which finds the tasks that the SDK started, and its threads and processes. The caller
waits, through any cancels, until all of that has ended or its time is over.

`Contained` is for what is opened, used and closed: an async context manager of an SDK in a `contain` block.
It is meant to be held by `own`, so that any task can close it.

asyncio only, as `contain` is.
"""

from __future__ import annotations

from asyncio import CancelledError, Task
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from quiesce import ChildCancelled, Grace, Reason, Scope, StopReport, contain
from quiesce.kernel.inner import GuardedCall, leave_processes, procfs, users_site

T = TypeVar("T")


class Call(Generic[T]):
    """One call of an SDK's function: `await Call(fn, name="run").result(...)`, then `report`.

    `keep`: as for `contain`, the tasks that may outlive the call; `leaves`: the processes that may, since they
    belong to something else. `grace` and `scope`: by default those of the current scope.
    """

    __slots__ = ("_box", "_face", "_fn", "_grace", "_reason", "_scope", "_site", "name")

    def __init__(
        self,
        fn: Callable[..., Awaitable[T]],
        *,
        name: str,
        keep: Callable[[Task[Any]], bool] | None = None,
        leaves: Callable[[procfs.Proc], bool] | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        self._fn = fn
        self.name = name
        self._grace = grace
        self._scope = scope
        self._site = users_site()
        self._box = contain(keep=keep, grace=grace, name=name)
        if leaves is not None:
            leave_processes(self._box, leaves)
        self._face: Scope | None = None
        self._reason: Reason | None = None

    @property
    def report(self) -> StopReport | None:
        """What the end of the call has stopped, and what is left; None as long as the call has not ended."""
        return self._box.report

    def cancel(self, reason: Reason) -> None:
        """Stop it, without waiting, from any thread; a second time makes the stop faster."""
        self._reason = self._reason or reason
        if self._face is not None:
            self._face.cancel(reason)

    async def result(self, *args: Any, **kwargs: Any) -> T:
        """Call it, and wait until all that it started has ended; its error is raised as itself."""
        inside = partial(self._inside, *args, **kwargs)
        call = GuardedCall.begin(self.name, inside, (), self._scope, self._grace, self._site)
        self._face = call.face()
        if self._reason is not None:
            self._face.cancel(self._reason)
        try:
            return cast(T, await call.result())
        except ChildCancelled:
            # The function was cancelled, and not by its caller: for the caller that is what it always was.
            raise CancelledError from None
        except BaseException as error:
            note_leftovers(error, self._box.report)
            raise

    async def _inside(self, *args: Any, **kwargs: Any) -> T:
        async with self._box:
            return await self._fn(*args, **kwargs)
        # The scope around it has stopped the block, which ends the cancel of its body there.
        raise CancelledError(str(self._box.report.reason) if self._box.report is not None else "")


class Contained(Generic[T]):
    """An async context manager of an SDK, in a `contain` block of its own."""

    __slots__ = ("_box", "_cm")

    def __init__(
        self,
        cm: AbstractAsyncContextManager[T],
        *,
        name: str,
        keep: Callable[[Task[Any]], bool] | None = None,
        grace: Grace | None = None,
    ) -> None:
        self._cm = cm
        self._box = contain(keep=keep, grace=grace, name=name)

    @property
    def report(self) -> StopReport | None:
        """What was left over when the context manager had exited; None before that."""
        return self._box.report

    async def __aenter__(self) -> T:
        await self._box.__aenter__()
        try:
            return await self._cm.__aenter__()
        except BaseException as error:
            # Whatever the block makes of it, there is nothing to hold.
            await self._box.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            suppressed = bool(await self._cm.__aexit__(kind, error, traceback))
        except BaseException as failure:
            if not await self._box.__aexit__(type(failure), failure, failure.__traceback__):
                raise
            return True
        if suppressed:
            kind = error = traceback = None
        return await self._box.__aexit__(kind, error, traceback) or suppressed


def note_leftovers(error: BaseException, report: StopReport | None) -> None:
    """Have `error` say what the stop that it has caused could not end."""
    if report is not None and not report.clean:
        error.add_note(str(report))


def reason_of_end(error: BaseException | None) -> Reason:
    """Why what an SDK was doing has ended: it has raised `error`, if anything."""
    if error is None or isinstance(error, StopAsyncIteration | GeneratorExit):
        return Reason("parent", "it ended")
    if isinstance(error, Exception):
        return Reason("error", f"it failed: {error!r}", error)
    return Reason("cancelled", str(error))


async def close_after(error: BaseException, close: Callable[..., Awaitable[StopReport]]) -> None:
    """Close what has raised `error`, which the caller raises again then; `error` names what is left."""
    try:
        report = await close(reason=reason_of_end(error))
    except CancelledError:
        if isinstance(error, CancelledError):
            return  # the first one is raised
        raise
    note_leftovers(error, report)
