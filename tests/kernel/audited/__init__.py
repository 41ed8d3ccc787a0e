"""A scenario for each word of the kernel, for the audit to stop at every point.

`SCENARIOS` is all of them. They use anyio for sleeping and waiting, so that one scenario runs on asyncio and on trio
alike. Each keeps a `Ledger`: the audit sees by itself that no task is left, but only the scenario knows whether a clean-up
that had begun came to its end, and whether a scope that was closed is settled.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import anyio

from quiesce import Scope, StopReport
from quiesce.audit import AuditResult, Limits, audit
from quiesce.kernel.base.reason import Kind
from quiesce.kernel.scope import blocked_loop
from tests.audit_level import EVERY_POINT, FULL

F = TypeVar("F", bound=Callable[..., Any])

ASYNCIO = ("asyncio", "asyncio-eager", "uvloop")
WORLDS = (*ASYNCIO, "trio")
MODULES = ("scopes", "words", "held", "streams", "outside", "elsewhere")


class Ledger:
    """What a run of a scenario began, and what of it came to its end."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._scopes: list[weakref.ref[Scope]] = []
        self._reports: list[StopReport] = []
        self._wrong: list[str] = []

    def start(self) -> None:
        """A new run: it begins with nothing."""
        self.__init__()  # type: ignore[misc]

    @contextmanager
    def entry(self, name: str, *, but_by_others: bool = False) -> Iterator[None]:
        """Something that may end or fail, but must not be cut by a cancel; by any, or only by the kernel's."""
        self._open.append(name)
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) or (but_by_others and not _is_kernels(error)):
                self._open.remove(name)
            raise
        self._open.remove(name)

    def scope(self, scope: Scope) -> Scope:
        """A scope that must have settled when the run is over."""
        self._scopes.append(weakref.ref(scope))
        return scope

    def report(self, report: StopReport | None) -> None:
        """The report of a stop that had all the time it needed."""
        if report is not None:
            self._reports.append(report)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Something that must hold at this moment of the run."""
        if not holds:
            self._wrong.append(otherwise)

    def check(self) -> None:
        """After a run: nothing is half done."""
        wrong = [*self._wrong, *(f"{name} was begun and not finished" for name in self._open)]
        for ref in self._scopes:
            scope = ref()
            if scope is not None and scope.state not in ("settled", "new"):
                wrong.append(f"{scope} is not settled")
        wrong += [f"a report names what is left: {report}" for report in self._reports if report.left]
        self.start()
        assert not wrong, "; ".join(wrong)


def _is_kernels(cancelled: BaseException) -> bool:
    """Whether the kernel sent this cancel: its message is a `Reason`."""
    return str(cancelled).partition(":")[0] in get_args(Kind)


ledger = Ledger()


@dataclass(frozen=True, slots=True)
class Audited:
    """One scenario, the word it is about, and how it is audited.

    `ignore` is what other people's code (anyio, Python itself) leaves, with the reason; a pattern in `ignore_on_trio`
    instead is for there alone, one in `ignore` for asyncio's worlds.
    """

    word: str
    function: Callable[[], Any]
    worlds: tuple[str, ...]
    ignore: dict[str, str]
    ignore_on_trio: dict[str, str]
    processes: bool  # whether it starts real ones: they take time
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    def audit(self, world: str, **options: Any) -> AuditResult:
        """Stop it in every way, as its own options and these say."""
        clock.pace = 0.01 if world == "uvloop" else 1.0
        options["ignore"] = self.ignore_on_trio if world == "trio" else self.ignore
        if world == "uvloop":  # where time is real, a busy machine is quiet for a second without being hung
            options.setdefault("limits", Limits(hang_after=5.0))
        with unwatched():
            return audit(
                self.function, backend=world, **{"stops": "all", "depth": 2, **self.options, **options}
            )

    def audits(self, world: str, sample: int = 1) -> Iterator[AuditResult]:
        """Stop it as thoroughly as `tests.audit_level` says; `sample` is how many points of each strip are used where not all are."""
        if FULL:
            yield from self._full_audits(world)
        elif EVERY_POINT and world != "uvloop":
            yield self.audit(world, depth=1)
            if world == "asyncio" and not self.options.get("real_io"):
                yield self.audit(world, depth=2, dedupe=True, sample=1)
        else:
            yield self.audit(world, depth=1, sample=sample)

    def _full_audits(self, world: str) -> Iterator[AuditResult]:
        """Stop it at every point; and, where time is not real, a second time everywhere after a stop at every place.

        A loop passes a place many times. To stop there each time and then everywhere behind it takes ten times as long, and is
        for the kernel alone.
        """
        yield self.audit(world, depth=1)
        if world != "uvloop":
            yield self.audit(world, depth=2, dedupe=True)


@contextmanager
def unwatched() -> Iterator[None]:
    """Without the watchdog, which asks an event loop that stops for a sign of life, from its thread, in real time.

    That changes nothing but the order of steps on trio, which then would not be the same in every run.
    """
    kept, blocked_loop._backends = blocked_loop._backends, _Nobody()
    try:
        yield
    finally:
        blocked_loop._backends = kept


class _Nobody(weakref.WeakSet[Any]):
    def add(self, item: object) -> None:
        """Not even this one."""


class Clock:
    pace = 1.0

    def seconds(self, seconds: float) -> float:
        """So many of the scenario's seconds, on the clock of its world."""
        return seconds * self.pace


clock = Clock()

_found: list[Audited] = []


def audited(
    word: str,
    *,
    worlds: tuple[str, ...] = WORLDS,
    ignore: dict[str, str] | None = None,
    ignore_on_trio: dict[str, str] | None = None,
    processes: bool = False,
    **options: Any,
) -> Callable[[F], F]:
    """Take a function into the list: as a scenario of `word`, with options of `audit()`."""

    def take(function: F) -> F:
        options.setdefault("check", ledger.check)
        _found.append(Audited(word, function, worlds, ignore or {}, ignore_on_trio or {}, processes, options))
        return function

    return take


async def pause(seconds: float) -> None:
    """Sleep. Where the clock is real, a second is a hundredth of one."""
    await anyio.sleep(clock.seconds(seconds))


async def tidy_up(seconds: float = 0.5, *, but_by_others: bool = False) -> None:
    """A clean-up after a cancel. It takes a while, and is entered in the ledger until it is over."""
    with ledger.entry("a clean-up", but_by_others=but_by_others):
        with anyio.CancelScope(shield=True):  # for trio
            await pause(seconds)


async def work(seconds: float = 2.0) -> float:
    """Somebody's work. If it is cancelled, it has to tidy up, and must not be cancelled again for that."""
    try:
        await pause(seconds)
    except anyio.get_cancelled_exc_class():
        await tidy_up()
        raise
    return seconds


async def fail(seconds: float = 1.0) -> None:
    await pause(seconds)
    raise LookupError("no such page")


DROPPED = "Python gives whoever drops a generator no place to wait: it is left behind (promise 8)"
STARTED_LATE = "anyio: a group's task that is cancelled before its first step never awaits what it was given"


def all_scenarios() -> list[Audited]:
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return _found
