"""The scope as its users hold it.

This public object and the scope itself (`ScopeCore`) are two objects, so that a scope which was dropped
without `close()` can be noticed: children, callbacks and owners refer to the core only.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Awaitable, Callable
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple, Unpack, cast, overload

from quiesce.kernel.base import (
    LEAVES_PROGRAM,
    OPEN,
    SETTLED,
    CancelToken,
    Grace,
    Reason,
    Site,
    as_reason,
    check_grace,
    raise_leaving,
    without_cancels,
)

from .backend import Backend, current_backend
from .child import failure_below
from .closing import close
from .current import Node, current_node, sync_token
from .lifecycle import OnChildError, Policy, ScopeCore
from .reporting import UNNAMED
from .stop_listeners import log_report

if TYPE_CHECKING:
    from quiesce.kernel.base import StopReport

    from .child import Handle

T = TypeVar("T")
Args = TypeVarTuple("Args")

_getframe = sys._getframe
_CLOSED = Reason("user", "closed")


class Scope:
    """Owns tasks: none outlives it, and when it has closed you know how each of them ended.

    Used as a block, it waits for its children at the end, and an exception in the body cancels them:

    ```python
    async with Scope("crawl") as scope:
        for url in urls:
            scope.spawn(fetch, url)
    ```

    Or open it in one place, use it in another, and close it from anywhere:

    ```python
    scope = await Scope.open("session")
    handle = scope.spawn(serve)                 # from any task
    report = await scope.close()                # from any other: cancels, waits, reports
    ```

    `on_error="stop"` (the default): the first child that fails stops the others and the body, and the errors
    are raised at the end of the block in an ExceptionGroup. `on_error="report"`: a supervisor; the other
    children go on, and each error goes to `on_child_error(handle, error)` (or the log) and into the report.

    `grace` holds the deadlines of its stop (by default its owner's), `token` is an outer token whose
    cancellation stops the scope, and `scope` is its owner: by default, the current scope.
    """

    __slots__ = (
        "__weakref__",
        "_core",
        "_grace",
        "_name",
        "_on_child_error",
        "_on_error",
        "_outer_token",
        "_owner",
    )

    def __init__(
        self,
        name: str | None = None,
        *,
        on_error: Policy = "stop",
        on_child_error: OnChildError | None = None,
        grace: Grace | None = None,
        token: CancelToken | None = None,
        scope: Scope | None = None,
    ) -> None:
        self._core: ScopeCore | None = None
        if on_error != "stop" and on_error != "report":
            raise ValueError(f'on_error must be "stop" or "report", not {on_error!r}')
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of a scope must be a str, not {type(name).__name__}")
        if grace is not None:
            check_grace(grace)
        if on_child_error is not None and not callable(on_child_error):
            raise TypeError(f"on_child_error must be a function, not {type(on_child_error).__name__}")
        if token is not None and not isinstance(token, CancelToken):
            raise TypeError(f"token must be a CancelToken, not {type(token).__name__}")
        if scope is not None and not isinstance(scope, Scope):
            raise TypeError(f"scope must be a Scope, not {type(scope).__name__}")
        self._name = name
        self._on_error: Policy = on_error
        self._on_child_error = on_child_error
        self._grace = grace
        self._outer_token = token
        self._owner = scope

    @staticmethod
    async def open(
        name: str | None = None,
        *,
        on_error: Policy = "stop",
        on_child_error: OnChildError | None = None,
        grace: Grace | None = None,
        token: CancelToken | None = None,
        scope: Scope | None = None,
    ) -> Scope:
        """A scope without a block: close it yourself, from any task."""
        # Not `OpenScope(...)`: a call of a class with keywords takes a much slower way in CPython.
        made = OpenScope.__new__(OpenScope)
        Scope.__init__(
            made,
            name,
            on_error=on_error,
            on_child_error=on_child_error,
            grace=grace,
            token=token,
            scope=scope,
        )
        backend = current_backend()
        parent = scope._opened() if scope is not None else current_core(backend)
        opened_by = _getframe(1)
        made._bind(backend, parent, (opened_by.f_code, opened_by.f_lasti))
        return made

    def _bind(self, backend: Backend, parent: ScopeCore | None, site: Site) -> ScopeCore:
        """Make the core, which does not keep this object alive."""
        if self._core is not None:
            self._check_unused()
        self._core = core = backend.core_type(
            backend,
            self._name,
            site,
            self._on_error,
            self._on_child_error,
            self._grace,
            parent,
            self._outer_token,
        )
        core.face = weakref.ref(self)
        if self._outer_token is not None:
            _stop_with(core, self._outer_token)
        return core

    def _check_unused(self) -> None:
        if self._core is not None:
            raise RuntimeError(f"scope {self.name!r} was opened before; a scope is used once: make a new one")

    def _opened(self) -> ScopeCore:
        if self._core is None:
            raise RuntimeError(
                f"scope {self.name!r} is not open yet: enter it with `async with`, "
                "or make it with `await Scope.open()`"
            )
        return self._core

    # Looking

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self._core.label if self._core is not None else self._name or UNNAMED

    @property
    def state(self) -> str:
        """`"new"`, `"open"`, `"stopping"`, `"expired"` (out of time, something is left) or `"settled"`."""
        return self._core.state if self._core is not None else "new"

    @property
    def children(self) -> tuple[Handle, ...]:
        """The child tasks that have not ended."""
        from .child import Handle

        return tuple(c for c in self._opened().children if isinstance(c, Handle))

    @property
    def token(self) -> CancelToken:
        """A token that is cancelled, with the reason, as soon as the scope is being stopped."""
        return self._opened().token

    @property
    def reason(self) -> Reason | None:
        """Why it is being stopped, or was; None if nothing stopped it."""
        return self._core.reason if self._core is not None else None

    @property
    def report(self) -> StopReport | None:
        """What the last `close()`, or the end of the block, has reported; None before."""
        core = self._core
        if core is None:
            return None
        if core.last_report is None and core.state is SETTLED:
            return core.report()
        return core.last_report

    # Using

    @overload
    def spawn(
        self,
        fn: Callable[[Unpack[Args]], Awaitable[T]],
        *args: *Args,
        name: str | None = None,
        context: Context | None = None,
    ) -> Handle[T]: ...

    # For `to_thread`, which is generic itself: type checkers do not infer its result from the first overload.
    @overload
    def spawn(
        self,
        fn: Callable[[Callable[[Unpack[Args]], T], Unpack[Args]], Awaitable[T]],
        work: Callable[[Unpack[Args]], T],
        /,
        *args: *Args,
        name: str | None = None,
        context: Context | None = None,
    ) -> Handle[T]: ...

    def spawn(  # type: ignore[misc]  # mypy and pyright do not see that `*args: Any` takes a TypeVarTuple
        self,
        fn: Callable[..., Awaitable[Any]],
        *args: Any,
        name: str | None = None,
        context: Context | None = None,
    ) -> Handle:
        """Start `fn(*args)`, an async function, as a child task.

        It takes a function, not a coroutine: if the scope raises `ScopeClosed`, nothing was started that
        would have to be closed. A function that is not declared async is called at once, to see whether it
        returns something to await; if not, that is a `TypeError`.

        `context` is the `contextvars.Context` that the child runs in, as for `asyncio.create_task`; on trio
        it runs in a copy of it. By default it runs in a copy of the caller's context.
        """
        core = self._core
        if core is None:
            core = self._opened()
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of a child must be a str, not {type(name).__name__}")
        if context is not None and not isinstance(context, Context):
            raise TypeError(f"context must be a contextvars.Context, not {type(context).__name__}")
        caller = _getframe(1)
        return core.spawn(fn, args, name, (caller.f_code, caller.f_lasti), context)

    def cancel(self, reason: Reason | str | None = None, *, grace: Grace | None = None) -> None:
        """Begin to stop; from any thread, without waiting.

        Cancels every child once, and the body of the block if there is one. Calling it again makes the stop
        faster: it halves the time that is left, or shortens it to `grace`.
        """
        core = self._opened()
        check_grace(grace)
        why = as_reason(reason, Reason("user"))
        if not core.backend.is_current():
            # Cancel the token here, in this thread: children see it even while the loop is blocked. Reading
            # it makes it, in case nothing has read it yet.
            _ = core.token
            core._note_reason(why)
        again = core.closed and grace is None
        core.backend.run_from_anywhere(lambda: core.stop(why, grace, hurry=again))

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Cancel every child, wait until each has cleaned up, and report.

        Bounded by `deadline` seconds (or the scope's `Grace`): what has not ended then is named in the
        report, stays owned, and can be waited for by closing again. It never raises a child's error. If you
        are cancelled meanwhile, the clean-up goes on and your cancellation is raised after it; the report is
        then in `scope.report`. Closing twice, or from several tasks at once, waits for the same stop.
        """
        core = self._core
        if core is None:
            core = self._opened()
        if not core.backend.is_current():
            core.check_loop("close", "from another thread use cancel()")
        if grace is not None:
            check_grace(grace)
        if deadline is not None:
            grace = (grace or core.grace).within(deadline)
        return await close(core, _CLOSED if reason is None else as_reason(reason, _CLOSED), grace)

    # The block

    async def __aenter__(self) -> Self:
        if self._core is not None:
            self._check_unused()
        backend = current_backend()
        entered_by = _getframe(1)
        if self._owner is not None:
            parent: ScopeCore | None = self._owner._opened()
        else:
            node = current_node.get()
            # Outside of any scope there is no owner but the root, and registering with that would add
            # nothing: the block itself ends the scope.
            parent = _live_core(node, backend) if node is not None else None
        self._core = core = backend.open_block(self, parent, entered_by)
        core.face = self  # until the block is left
        if self._outer_token is not None:
            _stop_with(core, self._outer_token)
        if parent is None and core.host is not None and core.host.generator is not None and not core.closed:
            # Except in an async generator: if its consumer drops it, nothing refers to the block any more,
            # and the garbage collector would take the children along. Owned by the root, they are stopped.
            core.parent = root_core(backend)
            core.parent.nested[core] = None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        core = self._core
        host = core.host if core is not None else None
        if core is None or host is None:
            raise RuntimeError(f"the block of scope {self.name!r} is not entered, or was exited before")
        if not host.may_leave():
            return False
        waiting: BaseException | None = None
        try:
            if error is None:
                try:
                    while core.children and core.state is OPEN:
                        waiter = core.backend.make_waiter()
                        core.waiters.add(waiter)
                        await waiter.signal
                except BaseException as exc:
                    if not core.backend.is_current():
                        raise
                    waiting = exc
                else:
                    if core.leave_if_empty():
                        return False
            cancelled = await host.leave(waiting if error is None else error)
        finally:
            if core.host is not None:
                host.restore_context()
                host.let_go()
                core.host = None
                core.face = None if core.state is SETTLED else weakref.ref(self)
        if waiting is not None and cancelled is None and not _holds_only_cancels(waiting):
            raise waiting
        return self._finish(core, error, cancelled)

    def _finish(self, core: ScopeCore, error: BaseException | None, cancelled: BaseException | None) -> bool:
        """Raise what is to be raised at the end of the block: a cancel from outside first, then the errors.

        Returns whether `error`, which the body has raised, is to be suppressed.
        """
        if core.state is not SETTLED:
            log_report(core.report())
        failures: list[BaseException] = []
        if core.failures is not None:
            core.failures.was_reported = True
            if core.on_error == "stop":
                failures = core.failures.errors
        if cancelled is None and error is not None and _holds_only_cancels(error):
            # Our own cancel has ended a block inside this one, and a child failed there while it cleaned up.
            below = failure_below(error)
            failures += [below] if below is not None else []
        leaving = next((failure for failure in failures if isinstance(failure, LEAVES_PROGRAM)), None)
        if leaving is not None and not isinstance(error, LEAVES_PROGRAM):
            raise_leaving(leaving, core.label, failures)
        if cancelled is not None:
            if failures:
                cancelled.__cause__ = _group(core, failures)
            if cancelled is error:
                return False
            raise cancelled
        if isinstance(error, Exception) and core.on_error == "stop":
            # In the order in which they happened: first the error that was the reason of the stop.
            is_first = core.reason is not None and core.reason.error is error
            failures = [error, *failures] if is_first else [*failures, error]
        elif error is not None and not (core.reason is not None and _holds_only_cancels(error)):
            for failure in failures:
                error.add_note(f"also failed in scope {core.label!r}: {failure!r}")
            return False
        if failures:
            raise _group(core, failures)
        return error is not None

    def __repr__(self) -> str:
        return f"<Scope {self.name!r} {self.state}>"


class OpenScope(Scope):
    """What `Scope.open` returns: no block ends it, so it has to notice when it is dropped."""

    __slots__ = ()

    def __del__(self) -> None:
        core = self._core
        if core is None:
            return
        if core.state is not OPEN:
            if core.failures is not None:
                core.log_unreported()
            return
        backend = core.backend
        if not backend.is_current():
            backend.run_from_anywhere(core.dropped)
        elif core.is_run_by_its_last_child():
            # The child had the last reference, and drops it because it is ending. By the next turn of the
            # loop it has ended, and the scope settled: no reason to warn.
            backend.call_at(backend.now(), core.dropped)
        else:
            core.dropped()


def _stop_with(core: ScopeCore, token: CancelToken) -> None:
    def stop() -> None:
        why = token.reason or Reason("cancelled")
        core.backend.run_from_anywhere(lambda: core.stop(why))

    core.when_settled(token.on_cancel(stop))


def _holds_only_cancels(error: BaseException) -> bool:
    """Whether `error` is a cancellation, or a group of nothing else."""
    return not isinstance(error, Exception) and without_cancels(error) is None


def _group(core: ScopeCore, errors: list[BaseException]) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup(f"unhandled errors in scope {core.label!r}", errors)


def face_of(core: ScopeCore) -> Scope:
    """The `Scope` of `core`; a new one if its users have dropped theirs, or there was none."""
    face = core.face
    if isinstance(face, weakref.ref):
        face = face()
    if face is None:
        face = Scope(core.name)
        face._core = core
        core.face = weakref.ref(face)
    return cast(Scope, face)


def core_of(scope: Scope | None = None) -> ScopeCore:
    """The core of `scope`, which must be open; without one, that of the scope of the work at hand."""
    return scope._opened() if scope is not None else current_core(current_backend())


def bind_scope(scope: Scope, site: Site) -> ScopeCore:
    """Open `scope`, which was made but not entered, without a block; reports say it was made at `site`."""
    backend = current_backend()
    owner = scope._owner
    return scope._bind(backend, owner._opened() if owner is not None else current_core(backend), site)


def root_core(backend: Backend) -> ScopeCore:
    """The scope of the whole event loop, which `run` closes."""
    if backend.root is None:
        before = current_node.set(None)
        try:
            backend.root = backend.make_core(name="root", on_error="report")
        finally:
            current_node.reset(before)
    return backend.root


def current_core(backend: Backend) -> ScopeCore:
    """The scope that owns what the caller opens without naming an owner."""
    node = current_node.get()
    live = _live_core(node, backend) if node is not None else None
    return live or backend.root or root_core(backend)


def _live_core(node: Node, backend: Backend) -> ScopeCore | None:
    """The scope of `node`, or the nearest scope around it that has not settled: its task may outlive it."""
    core: ScopeCore | None = node._core
    if core is not None and core.backend is not backend:  # inherited by a thread that runs a loop of its own
        return None
    while core is not None and core.state is SETTLED:
        core = core.parent
    return core


def root_scope() -> Scope:
    """The scope of the whole event loop, which `run` closes: for what has to outlive everything else."""
    return face_of(root_core(current_backend()))


def spawn_unnamed(scope: Scope, fn: Callable[..., Awaitable[T]], *args: Any) -> Handle[T]:
    """Start `fn(*args)` as a child that reports do not name: a helper of something that they do name."""
    handle = scope.spawn(fn, *args)
    handle._label = None
    return handle


def current_scope() -> Scope:
    """The scope that the caller runs in; outside of any, the root scope of the event loop.

    ```python
    async def tool() -> None:
        current_scope().spawn(refresh_cache)    # owned by whoever runs the tool
    ```
    """
    return face_of(current_core(current_backend()))


def current_token() -> CancelToken:
    """The token of the current work: of the child task, the thread, or the body of a scope's block.

    Outside of all of these there is nothing that quiesce could cancel, and the token is a new one that is
    never cancelled.
    """
    node, around = current_node.get(), sync_token.get()
    if around is not None and around[0] is node:
        return around[1]
    return node.token if node is not None else CancelToken()


def is_cleaning_up() -> bool:
    """Whether the work at hand was cancelled, and what it does now is its clean-up."""
    node = current_node.get()
    return node is not None and node._is_cleaning_up()


def stop_asked_for() -> Reason | None:
    """Why the current work has to stop, if it does: it should then start nothing new.

    This holds however deeply nested the work is, and also in scopes that were opened to clean up, whose own
    tokens are not cancelled. Work that runs `shielded` is exempt: it is meant to be completed.
    """
    node = current_node.get()
    while node is not None:
        reason = node._reason_to_stop()
        if reason is not None:
            return reason
        core: ScopeCore | None = node._core
        while core is not None and not core.in_clean_up:
            core = core.parent if not core.shielded else None
        node = core.opener if core is not None else None
    return None
