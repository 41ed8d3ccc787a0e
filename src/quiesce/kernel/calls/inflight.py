"""Handlers by id: what a server is working on, and may be asked to stop working on.

An id is known from before its handler's first step (eager handlers may cancel themselves in it) until the
handler's last, when the handle calls its `_Entry`. That one hook sees every end: a
handler that returned, failed, was cancelled, or never ran because the cancel came first. The id is free again
before anybody hears of the end, so that whoever hears of it may use the id again.

Children refer to the table and the callback, not to the `Inflight`: if its users drop it, its scope notices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, TypeVarTuple, Unpack

from quiesce._safe.printed import logger
from quiesce.kernel.base import Reason, Site, caller_site, check_function, label_of
from quiesce.kernel.scope import (
    FAILED,
    PENDING,
    RUNNING,
    Handle,
    OpenScope,
    Scope,
    ScopeCore,
    current_backend,
    is_trouble,
    log_report,
)

from .calling_task import CallingTask, owner_of

if TYPE_CHECKING:
    from quiesce.kernel.base import Grace, StopReport

T = TypeVar("T")
Args = TypeVarTuple("Args")
OnError: TypeAlias = Callable[[Any, BaseException], object]  # Any: ids are whatever the user's protocol has


class DuplicateId(ValueError):
    """Raised by `Inflight.start` for an id whose handler still runs."""


class Inflight:
    """The handlers that are at work, each by the id of its request.

    ```python
    async with Inflight("requests") as inflight:
        async for message in connection:
            if message.kind == "request":
                inflight.start(message.id, handle, message)
            elif message.kind == "cancel":
                inflight.cancel(message.id)     # unknown, or done already: nothing happens
    ```

    An id is forgotten when its handler is done, and may then be used again. A handler that fails disturbs
    nobody: its error goes to `on_error(id, error)`, or to the log, and into the report. The end of the block
    cancels whoever is left and waits for the clean-up; or `await Inflight.open()` … `await inflight.close()`.
    """

    __slots__ = ("_handles", "_on_error", "_owner", "_scope")

    def __init__(
        self,
        name: str | None = None,
        *,
        scope: Scope | None = None,
        grace: Grace | None = None,
        on_error: OnError | None = None,
    ) -> None:
        if on_error is not None and not callable(on_error):
            raise TypeError(f"on_error must be a function of an id and an error, not {on_error!r}")
        self._scope = OpenScope(
            name or "inflight", on_error="report", on_child_error=_told_already, grace=grace, scope=scope
        )
        self._owner = scope
        self._on_error = on_error
        self._handles: dict[Hashable, Handle] = {}

    @classmethod
    async def open(
        cls,
        name: str | None = None,
        *,
        scope: Scope | None = None,
        grace: Grace | None = None,
        on_error: OnError | None = None,
    ) -> Self:
        """One without a block: whoever holds it closes it, from any task."""
        made = cls(name, scope=scope, grace=grace, on_error=on_error)
        made._bind()
        return made

    def _bind(self) -> ScopeCore:
        backend = current_backend()
        return self._scope._bind(backend, owner_of(backend, self._owner), caller_site())

    # Looking

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return self._scope.name

    @property
    def state(self) -> str:
        """As a scope's: `"new"`, `"open"`, `"stopping"`, `"expired"` or `"settled"`."""
        return self._scope.state

    @property
    def report(self) -> StopReport | None:
        """What the last `close()` or the end of the block reported; None before."""
        return self._scope.report

    def get(self, id: Hashable) -> Handle | None:  # noqa: A002
        """The handle of the handler at work on `id`; None if there is none."""
        return self._handles.get(_hashable(id))

    def __contains__(self, id: Hashable) -> bool:  # noqa: A002
        return _hashable(id) in self._handles

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._handles))  # of this moment: handlers come and go

    def __bool__(self) -> bool:
        return True  # an empty one is still one

    # Using

    def start(
        self,
        id: Hashable,  # noqa: A002
        fn: Callable[[Unpack[Args]], Awaitable[T]],
        *args: *Args,
    ) -> Handle[T]:
        """Start `fn(*args)`, an async function, as the handler of `id`.

        Raises `DuplicateId` if there is one at work, `ScopeClosed` if this is closed; nothing was started then.
        """
        check_function("start", fn)
        core, handles = self._scope._opened(), self._handles
        if _hashable(id) in handles:
            raise DuplicateId(
                f"{self.name!r} is still working on id {id!r}, with {handles[id].name!r}, "
                f"started at {handles[id].made_at}: wait for it, cancel it, or use another id"
            )
        if core.closed:
            raise core.refusal(f"start {label_of(fn)!r} for id {id!r} in")
        if not core.backend.is_current():
            raise RuntimeError(f"{self.name!r} belongs to another event loop: start from a task of its own")
        handle = core.backend.make_handle(core, f"{label_of(fn)} {id!r}", caller_site())
        handle._on_end(_Entry(handles, id, handle, self._on_error))
        handles[id] = handle
        try:
            core.start_now(handle, fn, args)
        except BaseException:
            handles.pop(id, None)
            raise
        return handle

    def _start(
        self,
        core: ScopeCore,
        id: Hashable,  # noqa: A002
        label: str,
        site: Site,
        fn: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
        never_begun: Callable[[], object],
    ) -> None:
        """The same, for those in the house who know that the id is free, the scope open, and the loop this one.

        `fn` says itself that it has begun (`_begun`) and that it is done (`_done`), which is quicker than to be watched. If it ends without
        having begun, `never_begun` is called.
        """
        handle = core.spawn(fn, args, label, site)
        state = handle.state
        if state == PENDING:
            handle._on_end(never_begun)
        if state in (PENDING, RUNNING):  # an eager one may have ended
            self._handles[id] = handle

    def _begun(self, id: Hashable) -> None:  # noqa: A002
        handle = self._handles.get(id)
        if handle is not None:
            handle._at_end = None

    def _done(self, id: Hashable) -> None:  # noqa: A002
        self._handles.pop(id, None)

    def cancel(self, id: Hashable, reason: Reason | str | None = None) -> bool:  # noqa: A002
        """Cancel the handler of `id`, from any thread; False, and nothing else, if there is none."""
        handle = self.get(id)
        if handle is None or handle.done:
            return False
        handle.cancel(reason)
        return True

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Cancel every handler, wait until each has cleaned up, and report; as `Scope.close()`."""
        return await self._scope.close(deadline=deadline, grace=grace, reason=reason)

    async def __aenter__(self) -> Self:
        CallingTask(self._bind())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core = self._scope._opened()
        host = core.host
        if host is None or not host.may_leave():  # the loop is gone, and the collector closes what it left
            return
        try:
            why = Reason("parent", f"the block of {self.name!r} ended")
            if error is not None:
                why = host.reason_of(error)
            await self._scope.close(reason=why)
        finally:
            core.host = None
            if core.last_report is not None and is_trouble(core.last_report):
                log_report(core.last_report)

    def __repr__(self) -> str:
        return f"<Inflight {self.name!r} {self.state}, {len(self)} at work>"


class _Entry:
    """Called when the handler has ended: strikes the id off, and passes its error on."""

    __slots__ = ("handle", "handles", "key", "on_error")

    def __init__(
        self,
        handles: dict[Hashable, Handle],
        key: Hashable,
        handle: Handle,
        on_error: OnError | None,
    ) -> None:
        self.handles = handles
        self.key = key
        self.handle = handle
        self.on_error = on_error

    def __call__(self) -> None:
        if self.handles.get(self.key) is self.handle:
            del self.handles[self.key]
        if self.handle.state != FAILED:
            return
        error: BaseException = self.handle._value
        if self.on_error is None:
            logger.error("%s in %r failed", self.handle.name, self.handle._core.label, exc_info=error)
            return
        try:
            self.on_error(self.key, error)
        except Exception:
            logger.exception("on_error of %r failed for id %r", self.handle._core.label, self.key)


def _told_already(handle: Handle, error: BaseException) -> None:
    """The entry has told it, with the id."""


def _hashable(id: Hashable) -> Hashable:  # noqa: A002
    try:
        hash(id)
    except TypeError:
        raise TypeError(
            f"an id must be hashable, such as a str or an int; {type(id).__name__} is not"
        ) from None
    return id
