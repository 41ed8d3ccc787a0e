"""The life of a scope.

Rules
-----
- Children are added only while the scope is open, and leave only by ending.
- A stop is asked for once and only ever gets faster; the first reason stays.
- Each child is cancelled once, and once more when its time is over. Nothing else is ever cancelled,
  except the task that runs the scope's own `async with` body, while it is inside that body.
- Children, and the body of the block, end before what they were given: nested scopes (owned resources,
  processes) are stopped when those are gone, the last opened first, each after the one before; or all at
  once when the time for that is over.
- Settled means empty. A scope whose time ran out is not settled; it keeps what is left and can be
  waited for again.

Theory of operation
-------------------
There is no owner task. A scope is a dict of children, a dict of nested scopes and a list of waiters, all
touched only in the loop's own thread; every child reports its own end (`child_ended`). So a scope
has no task affinity: anybody may spawn, anybody may close, and the opener may be long gone. Closers wait
on a wake-up of their own, never on a child: what comes out of that wait is the closer's own
cancellation, never somebody else's.

One ladder (`Grace`) a scope drives a stop, however many wait for it; the backend rings when a rung is due.

The states are a table in `states`, the times of the rungs are in `rungs`, closing is in `closing`.
"""

from __future__ import annotations

from collections import deque
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
    Begun,
    CancelToken,
    Ends,
    Grace,
    Leftover,
    Reason,
    Row,
    Rung,
    Site,
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
from .closing import close, needed_later, only_closers_left, who_waits_for
from .current import Node, current_node
from .reporting import UNNAMED, leftovers_of, report_of
from .stop_listeners import listeners, notify_began, notify_ended

if TYPE_CHECKING:
    from .backend import Backend
    from .block import BlockTask


Policy: TypeAlias = Literal["stop", "report"]
OnChildError: TypeAlias = Callable[[Handle, BaseException], object]

NEXT = (CANCEL, TERMINATE, Rung.KILL, Rung.EXPIRED)
KEPT_FAILURES = 100  # of a supervisor that runs for months; the report counts the rest


class ScopeClosed(RuntimeError):
    """Raised when something is spawned into a scope that is stopping or has ended."""


def _begin(handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...]) -> Begun:
    """In the context of the child to come."""
    before = current_node.set(handle)
    try:
        return Begun(fn, args)
    finally:
        current_node.reset(before)


class ScopeCore(TokenHolder):
    """The scope itself, without the public face that its users hold."""

    __slots__ = (
        "__weakref__",
        "_site",
        "_token",
        "backend",
        "children",
        "clean_up",
        "closers",
        "ended",
        "ends",
        "expiries",
        "face",
        "failed",
        "failed_late",
        "failures",
        "grace",
        "host",
        "last_report",
        "late",
        "name",
        "nested",
        "notes",
        "on_child_error",
        "on_error",
        "on_settled",
        "opener",
        "parent",
        "reason",
        "rows",
        "rung",
        "started",
        "state",
        "stopped",
        "token_above",
        "told",
        "took",
        "unseen",
        "waiters",
    )

    # Of a stop: set when it begins, `took` when it is over.
    ends: Ends
    expiries: int
    took: float

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
        late: bool = False,
    ) -> None:
        while late and parent is not None and parent.state is SETTLED:
            parent = parent.parent
        self.backend = backend
        self.name = name
        self._site = site
        self.on_error = on_error
        self.on_child_error = on_child_error
        self.on_settled: Callable[[], object] | None = None  # lets go of a pipe, an outer token
        # One policy for all that an owner owns, unless it is said otherwise.
        self.grace: Grace = grace or (parent.grace if parent is not None else DEFAULT_GRACE)
        self.parent: ScopeCore | None = parent
        self.token_above = token_above
        self.late = late  # shielded: accepted while the parent stops, and not stopped by it
        self.opener: Node | None = current_node.get()
        self.clean_up = False  # opened in the clean-up of a child that is being stopped: see `takes_clean_up`
        self.host: BlockTask | None = None
        self.face: Any = None  # what users hold: a `Scope` while its block lasts, else a weak reference
        self.children: dict[Child, None] = {}
        self.nested: dict[ScopeCore, None] = {}
        self.waiters = WaitQueue()
        self.closers: dict[Node, int] = {}  # who is inside a `close()` of ours now
        self.state: str = OPEN
        self.reason = None
        self._token = None
        self.ended = 0
        self.failed = 0
        self.failed_late = 0  # of them, while we were being stopped
        self.failures: deque[tuple[str, BaseException]] | None = None
        self.stopped: Sequence[Child] = ()
        self.rows: Sequence[Row] = ()
        self.started: float | None = None
        self.rung = COOPERATE
        self.notes: Sequence[str] = ()
        self.unseen: tuple[str, ...] = ()  # here and below
        self.told = False  # whether anybody was given the errors of the children
        self.last_report: StopReport | None = None
        if parent is not None:
            if parent.backend is not backend:
                parent.check_loop("open a scope in", "open it in a scope of this loop")
            if not late and self.opener is not None and parent.takes_clean_up():
                self.clean_up = True
                self.token_above = token_above or CancelToken()  # the one at hand is cancelled
            elif parent.state is not OPEN and not late:
                raise parent.refusal("open a scope in")
            parent.nested[self] = None

    # What it is

    @property
    def _core(self) -> ScopeCore:
        """Itself: in an `async with` body the scope is the node at hand."""
        return self

    @property
    def closed(self) -> bool:
        """Whether it takes nothing in any more."""
        return self.state is not OPEN

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return self.name or UNNAMED

    def _above(self) -> CancelToken | None:
        """The token that ours hangs below: the opener's, unless somebody else owns this scope."""
        if self.token_above is not None:
            return self.token_above
        opener, parent = self.opener, self.parent
        if opener is not None and (
            parent is None or opener._core is parent or opener._core.backend is not self.backend
        ):
            return opener.token
        return parent.token if parent is not None else None

    def _is_cleaning_up(self) -> bool:
        """Whether the body of our block, which is what runs, has been cancelled: by our own stop, or with the task that it is in."""
        if self.host is not None and self.host.requested:
            return True
        if self.late or self.clean_up:  # what it was opened in is cleaning up; it is not
            return False
        if self.state is not OPEN and self.backend.is_adopted_and_cancelled():
            return True
        return self.opener is not None and self.opener._is_cleaning_up()

    def takes_clean_up(self) -> bool:
        """Whether the caller is a part of us that cleans up: its cancel was delivered, and its time is not over.

        What it then opens is ours, has a token that is not cancelled, and is stopped when the time to clean up is over, or when
        all who clean up have ended.
        """
        node = current_node.get()
        if node is None or (self.state is not OPEN and self.state is not STOPPING):
            return False
        core: ScopeCore | None = node._core
        while core is not None and core.state is SETTLED:
            core = core.parent
        return core is self and node._is_cleaning_up()

    def check_takes(self, verb: str) -> None:
        """An error for somebody who would open something in us too late."""
        if self.state is not OPEN and not self.takes_clean_up():
            raise self.refusal(verb)

    def refusal(self, verb: str) -> ScopeClosed:
        """The error for somebody who comes too late."""
        why = f" ({self.reason})" if self.reason is not None else ""
        what_to_do = "open a new scope"
        if self.state is not SETTLED:
            what_to_do = (
                "nothing new starts in it; what cleans up, once it was cancelled, may open a scope of its own"
            )
        return ScopeClosed(
            f"cannot {verb} scope {self.label!r}, made at {describe(self._site)}: "
            f"it is {self.state}{why}; {what_to_do}"
        )

    def check_loop(self, verb: str, instead: str) -> None:
        """An error that explains, for a caller in another event loop or in none."""
        if not self.backend.is_current():
            raise RuntimeError(
                f"cannot {verb} scope {self.label!r} from here: it belongs to another event loop; {instead}"
            )

    # Children

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
        """Register a child and start its task; a function that is not async is an error here, not later in the child."""
        if not is_async(fn):  # a wrapper, perhaps, of one that is: only a call can tell
            context = copy_context() if context is None else context
            fn, args = context.run(_begin, handle, fn, args), ()
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
        """A child has left `children`; called in the loop's thread, exactly once a child."""
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
                    self.wake()
            else:
                self.progress()

    def _child_failed(self, child: Child) -> None:
        error: BaseException = child._value
        if self.failures is None:
            self.failures = deque(maxlen=KEPT_FAILURES if self.on_error == "report" else None)
        self.failures.append((child.name, error))
        self.failed += 1
        if self.closed and not isinstance(error, TokenCancelled):  # that says that it was stopped
            self.failed_late += 1
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

    # Stopping

    def stop(
        self, reason: Reason, grace: Grace | None = None, *, hurry: bool = False, body: bool = True
    ) -> None:
        """Ask for the stop. Only ever makes it earlier; `hurry` halves what is left of it."""
        now = self.backend.now()
        if self.state is not OPEN:
            if self.state is STOPPING and hurry:
                self._hasten(halved(self.ends, now))
            elif self.state is STOPPING and grace is not None:
                self._hasten(entered_at(self.rung, self.ends, grace, now))
            return
        self.state = STOPPING
        if self.reason is None:  # another thread may have given one already
            self.reason = reason
        else:
            reason = self.reason
        self.started = now
        self.expiries = 0
        if listeners:
            notify_began(self)
        if self.children or self.nested:
            self.stopped = list(self.children)
            self.ends = self._within_outer_stops((grace or self.grace).ends(now), now)
        else:
            self.ends = NO_ENDS
        if self._token is not None:
            self._token.cancel(reason)  # its callbacks may ask for a faster stop, or end it
        if body and self.host is not None:
            self.host.interrupt(reason)
        if self.children or self.nested:
            if self.rung is COOPERATE and self.state is STOPPING:
                self._begin(reason, now)
            if not self.children and self.state is STOPPING:
                self.progress()
        elif self.state is STOPPING:
            self.settle()

    def _begin(self, reason: Reason, now: float) -> None:
        """The first rung: a time to cooperate if there is one, else the cancel."""
        first, second, _, _ = self.ends
        if first > now:
            for child in self.stopped:
                child._note_reason(reason)
            self.backend.climb_later(self, first)
            return
        self.rung = CANCEL
        self.cancel_once(self.stopped, reason)
        if second > now:
            self.backend.climb_later(self, second)
        else:
            self.climb()

    def _within_outer_stops(self, ends: Ends, now: float) -> Ends:
        """The ladder, inside the stops that are under way around us."""
        outer = self.parent
        while outer is not None:
            if outer.state is STOPPING:
                ends = fitted(ends, outer.ends, now)
            outer = outer.parent
        return ends

    def is_clean_up(self) -> bool:
        """Whether we are, or are inside, a clean-up, which the end of the event loop may not cut."""
        core: ScopeCore | None = self
        while core is not None:
            if (core.late or core.clean_up) and not core.closed:
                return True
            core = core.parent
        return False

    def cancel_once(self, children: Sequence[Child], reason: Reason) -> None:
        """The first rung for all of them."""
        for child in children:
            child._climb(CANCEL)

    def resume(self, grace: Grace) -> None:
        """Time ran out before; somebody waits again. The next rung is another cancel, not a pause."""
        now = self.backend.now()
        self.state = STOPPING
        self.rung = CANCEL
        self.ends = self._within_outer_stops(grace.ends(now), now)
        for child in self.children:
            if isinstance(child, Handle):
                child._asked = min(child._asked, 1)
        for scope in list(self.nested):
            if scope.state is EXPIRED:
                scope.resume(scope.grace)
        self.climb()

    def _hasten(self, ends: Ends) -> None:
        """Never later than before, all the way down."""
        now = self.backend.now()
        self.ends = earlier(self.ends, ends)
        self.climb()
        for scope in list(self.nested):
            if scope.state is STOPPING:
                scope._hasten(fitted(scope.ends, self.ends, now))

    def ring(self) -> None:
        """The alarm: a rung of some stop is due, perhaps of ours, and perhaps long since."""
        now = self.backend.now()
        if self.state is STOPPING and now - self.ends[self.rung] > STALLED:
            self.ends = after_a_stall(self.rung, self.ends, now)
        self.climb()

    def climb(self) -> None:
        """Do what is due, and come back when the next rung is."""
        if self.state is not STOPPING:
            return
        now = self.backend.now()
        while now >= self.ends[self.rung]:
            self.rung = NEXT[self.rung]
            if self.rung is Rung.EXPIRED:
                self.state = EXPIRED
                self.expiries += 1
                self.backend.stopping.pop(self, None)
                if listeners:
                    notify_ended(self)
                self.wake()
                return
            for child in list(self.children):
                child._climb(self.rung)
            if self.rung >= TERMINATE:
                self._stop_nested()
            if self.state is not STOPPING:  # that was the last of it
                return
        self.backend.climb_later(self, self.ends[self.rung])

    def _stop_nested(self) -> None:
        """Last opened, first stopped, each when the one before is gone; all at once from TERMINATE on."""
        assert self.reason is not None
        excused = self.who_waits_for(self.closers) if self.closers else ()
        needed = needed_later(self, excused) if excused and self.rung < TERMINATE else ()
        for scope in reversed(list(self.nested)):
            if scope.late or scope in needed:
                continue
            if not scope.closed:
                scope.stop(self.reason)
            if scope.state is STOPPING and self.rung < TERMINATE and scope not in excused:
                return

    def is_run_by_its_last_child(self) -> bool:
        """Whether the caller is the only child that is left."""
        if len(self.children) != 1:
            return False
        (child,) = self.children
        return isinstance(child, Handle) and child._runs_in(self.backend.current_task())

    def dropped(self) -> None:
        """Nobody holds the scope's face any more, and nobody has closed it."""
        if self.closed:
            return
        if self.children or self.nested:
            warn_of_leak(
                f"scope {self.label!r}, made at {describe(self._site)}, was dropped without close(): "
                f"what runs in it is being cancelled ({len(self.children)} children)"
            )
        self.stop(Reason("parent", "the scope was dropped without close()"))

    def abandon(self, reason: Reason) -> None:
        """Stop, though nobody will wait: signal at once, all the way down, what can be signalled."""
        self.stop(reason)
        for child in list(self.children):
            child._abandon()
        for scope in list(self.nested):
            scope.abandon(reason)

    def progress(self) -> None:
        """Something has ended: see how far that brings us."""
        if self.nested:
            if self.state is STOPPING and not self._busy():
                self._stop_nested()
        elif not self.children and self.state is not OPEN and self.state is not SETTLED:
            self.settle()
            return
        self.wake()

    def _busy(self) -> bool:
        """Whether anybody is there who may be using what is nested, and does not wait for us to close."""
        in_body = self.host is not None and self.host.in_body()
        if not self.closers:
            return in_body or bool(self.children)
        excused = self.who_waits_for(self.closers)
        if in_body and self not in excused:
            return True
        return any(child not in excused for child in self.children)

    def settle(self) -> None:
        """Empty, for good."""
        self.state = SETTLED
        self.last_report = None  # what an earlier closer was told is out of date
        if self.started is not None:
            self.took = self.backend.now() - self.started
            self.backend.stopping.pop(self, None)
            if listeners:
                notify_ended(self)
        if self.on_settled is not None:
            on_settled, self.on_settled = self.on_settled, None
            on_settled()
        if self.failures and self.host is None and not self.closers and not self.told:
            self._hand_on_failures()
        parent = self.parent
        if parent is not None:
            parent.nested.pop(self, None)
            if parent.state is not OPEN or parent.waiters:
                parent.progress()
        if self.waiters:
            self.wake()

    def _hand_on_failures(self) -> None:
        """Nobody has closed us: if an owner is stopping us, what failed here belongs into its report."""
        parent = self.parent
        if self.on_error != "stop" or parent is None or not parent.closed or not self.failures:
            return
        self.told = True
        if parent.failures is None:
            parent.failures = deque(maxlen=KEPT_FAILURES if parent.on_error == "report" else None)
        parent.failures += [(f"{self.label}: {name}", error) for name, error in self.failures]
        parent.failed += len(self.failures)
        parent.failed_late += self.failed_late

    def tell_if_untold(self) -> None:
        """The last who could have asked for the errors has gone: they go to the log."""
        if self.failures and not self.told:
            self.told = True
            for name, error in self.failures:
                logger.error("%s in scope %r failed, and nobody asked", name, self.label, exc_info=error)

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self.waiters.wake_all()

    # Waiting

    def leave_if_empty(self) -> bool:
        """Leave the block without further ado, if that can be done; the scope is then settled."""
        return False

    def is_settled(self) -> bool:
        """Empty, for good."""
        return self.state is SETTLED

    def is_over(self) -> bool:
        """Nothing to wait for: settled, or out of time."""
        return self.state is SETTLED or self.state is EXPIRED

    def until_over(self) -> Callable[[], bool]:
        """As `is_over`, from now on: somebody who closes again, just as time runs out, prolongs nobody's wait."""
        expiries = self.expiries
        return lambda: self.state is SETTLED or self.expiries != expiries

    def only_closers_left(self) -> bool:
        """Whether nobody is left but those who wait for a closer that runs inside."""
        return only_closers_left(self)

    def who_waits_for(self, nodes: Iterable[Node]) -> set[Child | ScopeCore]:
        """Which of our children and nested scopes contain one of `nodes`, or wait for one of them."""
        return who_waits_for(self, nodes)

    def close(self, reason: Reason, grace: Grace | None) -> Coroutine[Any, Any, StopReport]:
        """Stop, wait, report; then raise the closer's own cancellation if there was one."""
        return close(self, reason, grace)

    # Reporting

    def report(self, closing: Collection[Child | ScopeCore] = ()) -> StopReport:
        """What the stop has done so far; `closing` are those who themselves wait for it."""
        self.last_report = report_of(self, closing)
        return self.last_report

    def _leftovers(self) -> list[Leftover]:
        """Everything that is still there, all the way down."""
        return leftovers_of(self)
