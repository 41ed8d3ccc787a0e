"""Handlers by id: the requests that a server is working on, and may have to cancel.

An id is in the table from before the first step of its handler, because an eager handler may cancel itself in
that step, until the handle calls its `_Entry` at the end of the handler. That callback sees every end: a
handler that returned, failed, was cancelled, or never ran because the cancel came first. A `finally` in the
handler would miss the last of these. The id is free again before any other code learns of the end, so that
such code may use the id again.

Handlers refer to the table and the callback, not to the `Inflight`: so its scope notices when it is dropped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, TypeVarTuple, Unpack

from quiesce._safe.printed import logger
from quiesce.kernel.base import SETTLED, Reason, caller_site, check_function, label_of
from quiesce.kernel.scope import (
    FAILED,
    Closable,
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
    from quiesce.kernel.base import Grace

T = TypeVar("T")
Args = TypeVarTuple("Args")
OnError: TypeAlias = Callable[[Any, BaseException], object]  # Any: ids are whatever the user's protocol has


class DuplicateId(ValueError):
    """Raised by `Inflight.start` for an id whose handler is still running."""


class Inflight(Closable):
    """The handlers that are running, each by the id of its request.

    ```python
    async with Inflight("requests") as inflight:
        async for message in connection:
            if message.kind == "request":
                inflight.start(message.id, handle, message)
            elif message.kind == "cancel":
                inflight.cancel(message.id)     # does nothing if the id is unknown, or done
    ```

    An id is forgotten when its handler has ended, and may then be used again. A handler that fails does not
    affect the others: its error goes to `on_error(id, error)`, or to the log, and into the report. The end of
    the block cancels the handlers that are still running and waits for their clean-up. Without a block, use
    `await Inflight.open()` and `await inflight.close()`.
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
            name or "inflight", on_error="report", on_child_error=_ignore_error, grace=grace, scope=scope
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
        """An `Inflight` without a block: close it yourself, from any task."""
        made = cls(name, scope=scope, grace=grace, on_error=on_error)
        made._bind()
        return made

    def _bind(self) -> ScopeCore:
        backend = current_backend()
        return self._scope._bind(backend, owner_of(backend, self._owner), caller_site())

    def _find_core(self) -> ScopeCore | None:
        return self._scope._core

    def _how_to_open(self) -> Exception:
        return RuntimeError(
            f"{self.name!r} is not open yet: use `async with Inflight(...)` or `await Inflight.open(...)`"
        )

    # Looking

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self._scope.name

    @property
    def state(self) -> str:
        """The state of its scope: `"new"`, `"open"`, `"stopping"`, `"expired"` or `"settled"`."""
        return self._scope.state

    def get(self, id: Hashable) -> Handle | None:  # noqa: A002
        """The handle of the handler that is running for `id`; None if there is none."""
        return self._handles.get(_hashable(id))

    def __contains__(self, id: Hashable) -> bool:  # noqa: A002
        return _hashable(id) in self._handles

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._handles))  # a copy: handlers start and end during the iteration

    def __bool__(self) -> bool:
        return True  # even if empty: `if inflight:` asks whether there is one

    # Using

    def start(
        self,
        id: Hashable,  # noqa: A002
        fn: Callable[[Unpack[Args]], Awaitable[T]],
        *args: *Args,
    ) -> Handle[T]:
        """Start `fn(*args)`, an async function, as the handler of `id`.

        Raises `DuplicateId` if one is running for `id`, and `ScopeClosed` if this is closed. Nothing was
        started then.
        """
        check_function("start", fn)
        core, handles = self._open_core(), self._handles
        if _hashable(id) in handles:
            raise DuplicateId(
                f"{self.name!r} is still working on id {id!r}, with {handles[id].name!r}, "
                f"started at {handles[id].made_at}: wait for it, cancel it, or use another id"
            )
        if core.closed:
            raise core.refusal(f"start {label_of(fn)!r} for id {id!r} in")
        if not core.backend.is_current():
            raise RuntimeError(f"{self.name!r} belongs to another event loop: start from a task of its own")
        # The entry before the start: an eager handler may end in its first step, and remove the entry there.
        handle = core.backend.make_handle(core, f"{label_of(fn)} {id!r}", caller_site())
        handle._on_end(_Entry(handles, id, handle, self._on_error))
        handles[id] = handle
        try:
            core.start_now(handle, fn, args)
        except BaseException:
            handles.pop(id, None)
            raise
        return handle

    def cancel(self, id: Hashable, reason: Reason | str | None = None) -> bool:  # noqa: A002
        """Cancel the handler of `id`; from any thread. False if there is none, and nothing happens."""
        handle = self.get(id)
        if handle is None or handle.done:
            return False
        handle.cancel(reason)
        return True

    async def __aenter__(self) -> Self:
        CallingTask(self._bind())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core = self._open_core()
        try:
            await super().__aexit__(kind, error, traceback)
        finally:
            core.leave_block()
            report = core.last_report
            if report is not None and core.state is SETTLED and is_trouble(report):
                log_report(report)  # a clean-up failed; leftovers were logged already

    def __repr__(self) -> str:
        return f"<Inflight {self.name!r} {self.state}, {len(self)} at work>"


class _Entry:
    """The callback for the end of a handler: removes the id from the table, and passes on the error."""

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
        # First the id, then the error: `on_error` may start another handler with the same id.
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


def _ignore_error(handle: Handle, error: BaseException) -> None:
    """Do nothing: the `_Entry` has passed the error on, with the id."""


def _hashable(id: Hashable) -> Hashable:  # noqa: A002
    try:
        hash(id)
    except TypeError:
        raise TypeError(
            f"an id must be hashable, such as a str or an int; {type(id).__name__} is not"
        ) from None
    return id
