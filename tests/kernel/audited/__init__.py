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
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from quiesce import Scope, StopReport
from quiesce.audit import scenario

F = TypeVar("F", bound=Callable[..., Any])

WORLDS = ("asyncio", "asyncio-eager", "uvloop", "trio")
MODULES = ("scopes",)


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
    def entry(self, name: str) -> Iterator[None]:
        """Something that may end or fail, but must not be cut by a cancel."""
        self._open.append(name)
        try:
            yield
        except Exception:
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
        wrong += [f"a report names what is left: {report}" for report in self._reports if not report.clean]
        self.start()
        assert not wrong, "; ".join(wrong)


ledger = Ledger()


@dataclass(frozen=True, slots=True)
class Audited:
    """One scenario, the word it is about, and how it is audited."""

    word: str
    function: Callable[[], Any]
    worlds: tuple[str, ...] = WORLDS
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__


_found: list[Audited] = []


def audited(word: str, *, worlds: tuple[str, ...] = WORLDS, **options: Any) -> Callable[[F], F]:
    """Take a function into the list: as a scenario of `word`, with options of `audit()`."""

    def take(function: F) -> F:
        options.setdefault("check", ledger.check)
        _found.append(Audited(word, function, worlds, options))
        marked: F = scenario(function, stops="all", depth=2, **options)
        return marked

    return take


async def tidy_up(seconds: float = 0.5) -> None:
    """A clean-up after a cancel. It takes a while, and is entered in the ledger until it is over."""
    with ledger.entry("a clean-up"), anyio.CancelScope(shield=True):  # the shield is for trio
        await anyio.sleep(seconds)


async def work(seconds: float = 2.0) -> float:
    """Somebody's work. If it is cancelled, it has to tidy up, and must not be cancelled again for that."""
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        await tidy_up()
        raise
    return seconds


async def fail(seconds: float = 1.0) -> None:
    await anyio.sleep(seconds)
    raise LookupError("no such page")


def all_scenarios() -> list[Audited]:
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return _found
