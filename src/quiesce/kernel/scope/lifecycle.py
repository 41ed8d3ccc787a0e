"""The life of a scope.

Rules
-----
- Children are added only while the scope is open, and leave it only by ending.
- A scope is stopped once. A further request can only make the stop faster; the first reason stays.
- Each child is cancelled once, and once more when its time is over. Nothing else is ever cancelled, except
  the task that runs the body of the scope's `async with`, while it is inside that body.
- Children, and the body of the block, end before the things they use: nested scopes (owned resources,
  processes) are stopped when children and body have ended, the last opened first, one after the other. When
  the time for that is over, the rest are stopped all at once.
- Settled means empty. A scope whose time ran out is not settled: it keeps what is left over, and can be
  closed again.

Theory of operation
-------------------
There is no owner task. A scope is a dict of children, a dict of nested scopes and a queue of waiting tasks,
all touched only in the loop's own thread; each child reports its own end (`child_ended`). So a scope is bound
to no task: any task may spawn, any task may close, and the task that opened it may have ended long ago.

Closers wait for a wake-up of the scope, never for a child. Awaiting the children, as a task group does, has
two faults: a child that never ends hangs the closer, and a `CancelledError` out of that wait may be the
child's or the closer's own. Here it is always the closer's.

One ladder (`Grace`) per scope drives a stop, however many tasks wait for it; the backend calls `ring` when a
rung is due.

The table of states is in `states`, the arithmetic of the rungs in `rungs`, closing in `closing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from quiesce._safe.printed import logger
from quiesce.kernel.base import (
    CANCEL,
    COOPERATE,
    DEFAULT_GRACE,
    EXPIRED,
    NO_ENDS,
    OPEN,
    SETTLED,
    STALLED,
    STOPPING,
    TERMINATE,
    CancelToken,
    Ends,
    Grace,
    Leftover,
    Reason,
    Rung,
    Site,
    StartedCall,
    StopReport,
    TokenCancelled,
    TokenHolder,
    WaitQueue,
    after_a_stall,
    check_function,
    describe,
    earlier,
    entered_at,
    fitted,
    halved,
    is_async,
    label_of,
    warn_of_leak,
)

from .child import FAILED, Child, Handle
from .closing import close, needed_later, who_waits_for
from .current import Node, current_node
from .failures import Failures
from .reporting import UNNAMED, leftovers_of, report_of
from .stop_listeners import listeners, notify_began, notify_ended
from .stop_state import StopState

if TYPE_CHECKING:
    from .backend import Backend
    from .block import BlockTask


Policy: TypeAlias = Literal["stop", "report"]
OnChildError: TypeAlias = Callable[[Handle, BaseException], object]

NEXT = (CANCEL, TERMINATE, Rung.KILL, Rung.EXPIRED)


class ScopeClosed(RuntimeError):
    """Raised by `spawn`, and by opening something, in a scope that is stopping or settled."""


def _call_early(handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...]) -> StartedCall:
    """Call `fn(*args)`, in the context that the child will run in, to see whether it is async."""
    before = current_node.set(handle)
    try:
        return StartedCall(fn, args)
    finally:
        current_node.reset(before)


class ScopeCore(TokenHolder):
    """The scope itself, without the public `Scope` that users hold.

    Only this room and the event loops' write its attributes; other rooms call its methods.
    """

    __slots__ = (
        "__weakref__",
        "_site",
        "_token",
        "backend",
        "children",
        "closers",
        "ended",
        "face",
        "failures",
        "grace",
        "host",
        "in_clean_up",
        "last_report",
        "name",
        "nested",
        "notes",
        "on_child_error",
        "on_error",
        "on_settled",
        "opener",
        "parent",
        "reason",
        "shielded",
        "state",
        "stop_state",
        "token_above",
        "unseen",
        "waiters",
    )

    def __init__(
        self,
        backend: Backend,
        name: str | None = None,
        site: Site | None = None,
        on_error: Policy = "stop",
        on_child_error: OnChildError | None = None,
        grace: Grace | None = None,
        parent: ScopeCore | None = None,
        token_above: CancelToken | None = None,
        shielded: bool = False,
    ) -> None:
        while shielded and parent is not None and parent.state is SETTLED:
            parent = parent.parent
        self.backend = backend
        self.name = name
        self._site = site
        self.on_error = on_error
        self.on_child_error = on_child_error
        # Closes a pipe, for example, or unsubscribes from an outer token.
        self.on_settled: Callable[[], object] | None = None
        self.grace: Grace = grace or (parent.grace if parent is not None else DEFAULT_GRACE)
        self.parent: ScopeCore | None = parent
        self.token_above = token_above
        # Accepted even while the parent is stopping, and not stopped by it.
        self.shielded = shielded
        self.opener: Node | None = current_node.get()
        # Opened by clean-up code of a child that is being stopped: see `takes_clean_up`.
        self.in_clean_up = False
        self.host: BlockTask | None = None
        # The `Scope` that users hold: itself while its block lasts, else a weak reference to it. So a scope
        # that was dropped without `close()` is noticed.
        self.face: Any = None
        self.children: dict[Child, None] = {}
        self.nested: dict[ScopeCore, None] = {}
        self.waiters = WaitQueue()
        # The children and bodies that are inside a `close()` of this scope, and how often.
        self.closers: dict[Node, int] = {}
        self.state: str = OPEN
        self.reason = None
        self._token = None
        self.ended = 0
        self.failures: Failures | None = None
        self.stop_state: StopState | None = None
        self.notes: Sequence[str] = ()
        self.unseen: tuple[str, ...] = ()  # in this scope and those nested in it
        self.last_report: StopReport | None = None
        if parent is not None:
            if parent.backend is not backend:
                parent.check_loop("open a scope in", "open it in a scope of this loop")
            if not shielded and self.opener is not None and parent.takes_clean_up():
                self.in_clean_up = True
                # Not the opener's token, which is cancelled: everything in the new scope would stop at once.
                self.token_above = token_above or CancelToken()
            elif parent.state is not OPEN and not shielded:
                raise parent.refusal("open a scope in")
            parent.nested[self] = None

    # What it is

    @property
    def _core(self) -> ScopeCore:
        """Itself: in the body of an `async with`, the current node is the scope."""
        return self

    @property
    def closed(self) -> bool:
        """Whether it accepts no more children: it is stopping, expired or settled."""
        return self.state is not OPEN

    @property
    def token_if_made(self) -> CancelToken | None:
        """Its token, if anybody has ever asked for it."""
        return self._token

    @property
    def label(self) -> str:
        """Its name in reports."""
        return self.name or UNNAMED

    def _holder_above(self) -> TokenHolder | CancelToken | None:
        # The opener, or the owner if another scope owns this one.
        if self.token_above is not None:
            return self.token_above
        opener, parent = self.opener, self.parent
        if opener is not None and (
            parent is None or opener._core is parent or opener._core.backend is not self.backend
        ):
            return opener
        return parent

    def _is_cleaning_up(self) -> bool:
        """Whether the body of the block, which is running, was cancelled: by this scope or with its task."""
        if self.host is not None and self.host.requested:
            return True
        # These were opened *by* clean-up code. What runs in them is not itself being cancelled.
        if self.shielded or self.in_clean_up:
            return False
        if self.state is not OPEN and self.backend.is_adopted_and_cancelled():
            return True
        return self.opener is not None and self.opener._is_cleaning_up()

    def takes_clean_up(self) -> bool:
        """Whether the caller belongs to this scope and is cleaning up: it was cancelled, and has time left.

        It may then open scopes here: a clean-up that has to post a last message needs a client, which needs
        tasks. Such a scope has a token that is not cancelled. It is stopped when the time to clean up is
        over, or when everything that cleans up has ended.
        """
        node = current_node.get()
        if node is None or (self.state is not OPEN and self.state is not STOPPING):
            return False
        core: ScopeCore | None = node._core
        while core is not None and core.state is SETTLED:
            core = core.parent
        return core is self and node._is_cleaning_up()

    def check_takes(self, verb: str) -> None:
        """Raise `ScopeClosed` if the caller may not open anything in this scope any more."""
        if self.state is not OPEN and not self.takes_clean_up():
            raise self.refusal(verb)

    def refusal(self, verb: str) -> ScopeClosed:
        """The error for a caller that comes too late."""
        why = f" ({self.reason})" if self.reason is not None else ""
        what_to_do = "open a new scope"
        if self.state is not SETTLED:
            what_to_do = (
                "nothing new can start in it; clean-up code that was cancelled may open a scope of its own"
            )
        return ScopeClosed(
            f"cannot {verb} scope {self.label!r}, made at {describe(self._site)}: "
            f"it is {self.state}{why}; {what_to_do}"
        )

    def check_loop(self, verb: str, instead: str) -> None:
        """Raise a `RuntimeError` that says what to do instead, if called outside the scope's event loop."""
        if not self.backend.is_current():
            raise RuntimeError(
                f"cannot {verb} scope {self.label!r} from here: it belongs to another event loop; {instead}"
            )

    @property
    def rung(self) -> Rung:
        """The rung that the stop has reached; the first if there is no stop."""
        return self.stop_state.rung if self.stop_state is not None else COOPERATE

    # For the code that makes a scope

    def when_settled(self, fn: Callable[[], object]) -> None:
        """Call `fn()` when the scope has settled, instead of a function that was set before."""
        self.on_settled = fn

    def when_child_fails(self, fn: OnChildError | None) -> None:
        """Call `fn(handle, error)` for each child that fails; None logs the error, which is the default."""
        self.on_child_error = fn

    def allow(self, grace: Grace) -> None:
        """Use `grace` for its stop, and for scopes that are opened in it from now on."""
        self.grace = grace

    def disown_opener(self) -> None:
        """Forget which child or body opened it: the scope has nothing to do with that."""
        self.opener = None

    def enter_block(self, host: BlockTask) -> None:
        """A task has entered the block of this scope: a stop cancels it there."""
        self.host = host

    def leave_block(self) -> None:
        """The task has exited the block."""
        self.host = None

    def add_notes(self, notes: Collection[str], instead_of: Collection[str] = ()) -> None:
        """Add `notes` to the report, and remove those of `instead_of`. Callable from any thread."""
        self.notes = [*(note for note in self.notes if note not in instead_of), *notes]

    # Children

    def add(self, child: Child) -> None:
        """Own `child`, which has started or is about to start. It leaves the scope by ending."""
        self.children[child] = None

    def discard(self, child: Child) -> None:
        """Stop owning `child`: it never started, or belongs to another scope now."""
        self.children.pop(child, None)

    def include_in_report(self, children: Iterable[Child]) -> None:
        """List these children, too, in the report of the stop that is under way."""
        if self.stop_state is not None:
            self.stop_state.children = [*self.stop_state.children, *children]

    def forget_children(self) -> None:
        """Stop owning all children: they have ended, or their ends will not be reported."""
        self.children.clear()

    def spawn(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        name: str | None,
        site: Site,
        context: Context | None = None,
    ) -> Handle:
        """Start a child task."""
        check_function("spawn", fn)
        if self.closed:
            raise self.refusal(f"spawn {name or label_of(fn)!r} in")
        self.check_loop("spawn in", "spawn from a task of the loop it was opened in")
        handle = self.backend.make_handle(self, name or fn, site)
        self.start_now(handle, fn, args, context)
        return handle

    def start_now(
        self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...], context: Context | None = None
    ) -> None:
        """Register a child and start its task; raise here, not in the child, if `fn` is not async."""
        if not is_async(fn):  # perhaps it wraps an async function: only a call can tell
            context = copy_context() if context is None else context
            fn, args = context.run(_call_early, handle, fn, args), ()
        self.children[handle] = None
        self.start(handle, fn, args, context)

    def start(
        self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...], context: Context | None = None
    ) -> None:
        """Start the task of a child that is already registered."""
        try:
            self.backend.start(handle, fn, args, context)
        except BaseException:
            self.children.pop(handle, None)
            raise

    def child_ended(self, child: Child) -> None:
        """A child has ended and has left `children`. Called in the loop's thread, once per child."""
        self.ended += 1
        if child._at_end is not None:
            child._settle()
        if child.state is FAILED:
            self._child_failed(child)
        if self.closers:
            self.progress()
        elif not self.children:
            if self.state is OPEN:
                if self.waiters:
                    self.waiters.wake_all()
            else:
                self.progress()

    def _child_failed(self, child: Child) -> None:
        error: BaseException = child._value
        # A `TokenCancelled` only means that the child has responded to the stop.
        while_stopping = self.closed and not isinstance(error, TokenCancelled)
        self._failures().add(child.name, error, while_stopping=while_stopping)
        if self.on_error == "stop":
            if not self.closed:
                self.stop(Reason("error", f"{child.name} failed: {error!r}", error))
        elif self.on_child_error is not None and isinstance(child, Handle):
            try:
                self.on_child_error(child, error)
            except Exception:
                logger.exception("on_child_error of scope %r failed", self.label)
        else:
            logger.error("%s in scope %r failed", child.name, self.label, exc_info=error)

    def _failures(self) -> Failures:
        if self.failures is None:
            self.failures = Failures(only_latest=self.on_error == "report")
            # A caller that was given a report knows that this child was left over, and will not come back for
            # its error. If it counted as unreported, it would be logged when the scope is dropped.
            self.failures.was_reported = self.last_report is not None
        return self.failures

    # Stopping

    def stop(
        self, reason: Reason, grace: Grace | None = None, *, hurry: bool = False, body: bool = True
    ) -> None:
        """Begin the stop, or make it faster: `hurry` halves the time that is left, `grace` may shorten it.

        `body=False` leaves the body of the block alone: it is the body that stops the scope.
        """
        now = self.backend.now()
        if self.state is not OPEN:
            stop = self.stop_state
            if self.state is STOPPING and stop is not None:
                if hurry:
                    self._hasten(stop, halved(stop.ends, now))
                elif grace is not None:
                    self._hasten(stop, entered_at(stop.rung, stop.ends, grace, now))
            return
        children, ends = [*self.children], NO_ENDS
        if children or self.nested:
            ends, parent = (grace or self.grace).ends(now), self.parent
            if parent is not None and (parent.state is STOPPING or parent.parent is not None):
                ends = self._within_outer_stops(ends, now)
        self.state = STOPPING
        self.stop_state = stop = StopState(now, ends, children)
        if self.reason is None:  # `cancel()` in another thread may have set one already
            self.reason = reason
        else:
            reason = self.reason
        if listeners:
            notify_began(self)
        if self._token is not None:
            # Callbacks run here and now. They may make the stop faster, or end the last child and so settle
            # the scope: hence the checks of the state below.
            self._token.cancel(reason)
        if body and self.host is not None:
            self.host.interrupt(reason)
        if self.children or self.nested:
            if stop.rung is COOPERATE and self.state is STOPPING:
                self._begin(stop, reason, now)
            if not self.children and self.state is STOPPING:
                self.progress()
        elif self.state is STOPPING:
            self.settle()

    def _begin(self, stop: StopState, reason: Reason, now: float) -> None:
        """Enter the first rung: wait for children to cooperate if the grace has time for it, else cancel."""
        first, second, _, _ = stop.ends
        if first > now:
            for child in stop.children:
                child._note_reason(reason)
            self.backend.climb_later(self, first)
            return
        stop.rung = CANCEL
        self.cancel_once(stop.children, reason)
        if second > now:
            self.backend.climb_later(self, second)
        else:
            self.climb()

    def _within_outer_stops(self, ends: Ends, now: float) -> Ends:
        """`ends`, shortened so that they fit into the stops of the scopes around this one."""
        outer = self.parent
        while outer is not None:
            if outer.state is STOPPING and outer.stop_state is not None:
                ends = fitted(ends, outer.stop_state.ends, now)
            outer = outer.parent
        return ends

    def is_clean_up(self) -> bool:
        """Whether this scope belongs to a clean-up, which the end of the event loop must not interrupt."""
        core: ScopeCore | None = self
        while core is not None:
            if (core.shielded or core.in_clean_up) and not core.closed:
                return True
            core = core.parent
        return False

    def cancel_once(self, children: Sequence[Child], reason: Reason) -> None:
        """Cancel all `children` for the first time."""
        for child in children:
            child._climb(CANCEL)

    def resume(self, grace: Grace) -> None:
        """Stop again a scope that has expired. It starts with another cancel, not with time to cooperate."""
        now, stop = self.backend.now(), self.stop_state
        assert stop is not None
        self.state = STOPPING
        stop.rung = CANCEL
        stop.ends = self._within_outer_stops(grace.ends(now), now)
        for child in self.children:
            # A child that ignored two cancels may be in another place now. Without this, the count would
            # forbid a third, and closing again would only wait.
            if isinstance(child, Handle):
                child._asked = min(child._asked, 1)
        for scope in list(self.nested):
            if scope.state is EXPIRED:
                scope.resume(scope.grace)
        self.climb()

    def _hasten(self, stop: StopState, ends: Ends) -> None:
        """Move the ends of the rungs forward, never back, here and in all nested scopes."""
        now = self.backend.now()
        stop.ends = earlier(stop.ends, ends)
        self.climb()
        for scope in list(self.nested):
            if scope.state is STOPPING and scope.stop_state is not None:
                scope._hasten(scope.stop_state, fitted(scope.stop_state.ends, stop.ends, now))

    def ring(self) -> None:
        """The alarm of the backend: a rung of some stop is due, perhaps of this one, perhaps overdue."""
        now, stop = self.backend.now(), self.stop_state
        if self.state is STOPPING and stop is not None and now - stop.ends[stop.rung] > STALLED:
            stop.ends = after_a_stall(stop.rung, stop.ends, now)
        self.climb()

    def climb(self) -> None:
        """Enter every rung that is due, and have the backend call again when the next one is."""
        stop = self.stop_state
        if self.state is not STOPPING or stop is None:
            return
        now = self.backend.now()
        while now >= stop.ends[stop.rung]:
            stop.rung = NEXT[stop.rung]
            if stop.rung is Rung.EXPIRED:
                self.state = EXPIRED
                stop.expiries += 1
                self.backend.stopping.pop(self, None)
                if listeners:
                    notify_ended(self)
                self.wake()
                return
            for child in list(self.children):
                child._climb(stop.rung)
            if stop.rung >= TERMINATE:
                self._stop_nested()
            if self.state is not STOPPING:  # the last child has ended in the meantime
                return
        self.backend.climb_later(self, stop.ends[stop.rung])

    def _stop_nested(self) -> None:
        """Stop nested scopes: one after the other, the last opened first; from TERMINATE on, all at once."""
        # In reverse, because what was opened later may use what was opened before: a session uses its
        # connection. Called again by `progress` whenever one of them has ended.
        assert self.reason is not None
        all_at_once = self.rung >= TERMINATE
        waiting = self.who_waits_for(self.closers) if self.closers else ()
        needed = needed_later(self, waiting) if waiting and not all_at_once else ()
        for scope in reversed(list(self.nested)):
            if scope.shielded or scope in needed:
                continue
            if not scope.closed:
                scope.stop(self.reason)
            # One that waits for a closer inside it cannot end before that closer returns: do not wait for it.
            if scope.state is STOPPING and not all_at_once and scope not in waiting:
                return

    def is_run_by_its_last_child(self) -> bool:
        """Whether the caller is the only child that is still running."""
        if len(self.children) != 1:
            return False
        (child,) = self.children
        return isinstance(child, Handle) and child._runs_in(self.backend.current_task())

    def dropped(self) -> None:
        """The `Scope` that users held was dropped without `close()`: warn, and stop."""
        if self.closed:
            return
        if self.children or self.nested:
            warn_of_leak(
                f"scope {self.label!r}, made at {describe(self._site)}, was dropped without close(): "
                f"what runs in it is being cancelled ({len(self.children)} children)"
            )
        self.stop(Reason("parent", "the scope was dropped without close()"))

    def abandon(self, reason: Reason) -> None:
        """Stop with no one to wait for it: signal everything at once, here and in all nested scopes."""
        self.stop(reason)
        for child in list(self.children):
            child._abandon()
        for scope in list(self.nested):
            scope.abandon(reason)

    def progress(self) -> None:
        """Re-evaluate after something has ended: stop what is nested, settle, or just wake the waiters."""
        if self.nested:
            if self.state is STOPPING and not self._nested_is_in_use():
                self._stop_nested()
        elif not self.children and self.state is not OPEN and self.state is not SETTLED:
            self.settle()
            return
        if self.waiters:
            self.waiters.wake_all()

    def _nested_is_in_use(self) -> bool:
        """Whether the body or a child may still be using a nested scope, and does not wait for our close."""
        in_body = self.host is not None and self.host.in_body()
        if not self.closers:
            return in_body or bool(self.children)
        waiting = self.who_waits_for(self.closers)
        if in_body and self not in waiting:
            return True
        return any(child not in waiting for child in self.children)

    def settle(self) -> None:
        """The scope is empty, for good: leave the owner, and wake every task that waits."""
        self.state = SETTLED
        self.last_report = None  # one that was made earlier is out of date
        stop = self.stop_state
        if stop is not None:
            stop.took = self.backend.now() - stop.started
            self.backend.stopping.pop(self, None)
            if listeners:
                notify_ended(self)
        if self.on_settled is not None:
            on_settled, self.on_settled = self.on_settled, None
            on_settled()
        if self.failures is not None and self.host is None and not self.closers:
            self._pass_to_owner(self.failures)
        parent = self.parent
        if parent is not None:
            parent.nested.pop(self, None)
            if parent.state is not OPEN or parent.waiters:
                parent.progress()
        if self.waiters:
            self.waiters.wake_all()

    def _pass_to_owner(self, failures: Failures) -> None:
        """No closer will read our report: if the owner is stopping, add `failures` to the owner's report."""
        parent = self.parent
        if self.on_error == "stop" and parent is not None and parent.closed and not failures.was_reported:
            failures.hand_on(parent._failures(), self.label)

    def log_unreported(self) -> None:
        """Log the errors that no report has named: the scope was dropped, and nothing can ask for one now."""
        failures = self.failures
        if failures is not None and not failures.was_reported:
            for name, error in failures.report():
                logger.error(
                    "%s in scope %r failed, and its error was never reported",
                    name,
                    self.label,
                    exc_info=error,
                )

    def take_over(self, inner: ScopeCore, block: Child) -> None:
        """Report what the report of `inner`, a scope inside ours whose block has ended, would say.

        `block`, the child that ran that block, is not named.
        """
        self.children.pop(block, None)
        ours, theirs = self.stop_state, inner.stop_state
        if ours is not None and theirs is not None:
            ours.children = [child for child in (*ours.children, *theirs.children) if child is not block]
        if inner.failures is not None:
            self._failures().take_over(inner.failures)
        self.progress()

    def wake(self) -> None:
        """Wake all tasks that wait for this scope, so that they check it again."""
        self.waiters.wake_all()

    # Waiting

    def leave_if_empty(self) -> bool:
        """Exit the block of an empty scope the short way, and settle. False if that is not possible."""
        return False

    def is_settled(self) -> bool:
        """Whether it is empty, for good."""
        return self.state is SETTLED

    def is_over(self) -> bool:
        """Whether there is nothing to wait for: it has settled or expired."""
        return self.state is SETTLED or self.state is EXPIRED

    def until_over(self) -> Callable[[], bool]:
        """A condition to wait for: the stop that is under way now has settled or expired."""
        # Not `is_over`: when time runs out, another closer may close again before this one is scheduled. The
        # state is then "stopping" once more, and the first closer would wait for a second grace.
        stop = self.stop_state
        if stop is None:
            return self.is_settled
        expiries = stop.expiries
        return lambda: self.state is SETTLED or stop.expiries != expiries

    def who_waits_for(self, nodes: Iterable[Node]) -> set[Child | ScopeCore]:
        """Which of the children and nested scopes contain one of `nodes`, or wait for one of them."""
        return who_waits_for(self, nodes)

    def close(self, reason: Reason, grace: Grace | None) -> Coroutine[Any, Any, StopReport]:
        """Stop, wait and report; then raise the closer's own cancellation if there was one."""
        return close(self, reason, grace)

    # Reporting

    def report(self, closing: Collection[Child | ScopeCore] = ()) -> StopReport:
        """What the stop has done so far. `closing` are children and scopes that themselves wait for it."""
        self.last_report = report_of(self, closing)
        return self.last_report

    def _leftovers(self) -> list[Leftover]:
        """Everything that is still running here and in all nested scopes."""
        return leftovers_of(self)
