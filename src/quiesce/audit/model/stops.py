"""The kinds of stop. What each does in a backend is in `asyncio_stops` and `stops`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .points import PHASES, Phase

Backend: TypeAlias = Literal["asyncio", "trio"]
Shape: TypeAlias = Literal["coroutine", "generator", "context manager"]

ANY: tuple[Shape, ...] = ("coroutine", "generator", "context manager")
HELD: tuple[Shape, ...] = ("generator", "context manager")
BOTH: tuple[Backend, ...] = ("asyncio", "trio")


@dataclass(frozen=True, slots=True)
class Stop:
    """A kind of stop, and at which points it makes sense.

    `aims_at` says whose points: "root" (early: whenever any task suspends; otherwise the root's own), "tree" (every
    task's), "others" (every task's but the root's) or "items" (where a consumer holds a generator).
    """

    name: str
    says: str
    aims_at: Literal["root", "tree", "others", "items"]
    phases: tuple[Phase, ...] = PHASES
    backends: tuple[Backend, ...] = BOTH
    shapes: tuple[Shape, ...] = ANY
    by_default: tuple[Shape, ...] = ()  # for which shapes it is one of the usual ones
    warns: bool = False  # adversarial: what it finds is a warning
    times: int = 1
    deepens: bool = False  # a second stop after it makes sense: `depth=2`


STOPS: dict[str, Stop] = {
    stop.name: stop
    for stop in (
        Stop("cancel", "cancel the root", "root", by_default=ANY, deepens=True),
        Stop("twice", "cancel the root, and again in the clean-up", "root", backends=("asyncio",), times=2),
        Stop(
            "thrice",
            "cancel the root, and twice more in the clean-up",
            "root",
            backends=("asyncio",),
            times=3,
        ),
        Stop(
            "shutdown",
            "cancel all tasks, as asyncio.run does when it ends",
            "tree",
            backends=("asyncio",),
            by_default=ANY,
            deepens=True,
        ),
        Stop("scope", "cancel an anyio scope around it", "root", phases=("early", "late"), deepens=True),
        Stop(
            "timeout",
            "a timeout around it runs out",
            "root",
            phases=("early", "late"),
            by_default=ANY,
            deepens=True,
        ),
        Stop("raise", "what a task waits for fails", "tree", phases=("late",)),
        Stop(
            "close",
            "another task closes it",
            "items",
            phases=("early",),
            shapes=HELD,
            by_default=("generator",),
        ),
        Stop(
            "drop",
            "its consumer drops it, and the collector runs",
            "items",
            phases=("early",),
            shapes=HELD,
            by_default=("generator",),
        ),
        Stop("descendant", "cancel one task below the root (adversarial)", "others", warns=True),
    )
}


class UnknownStop(ValueError):
    """A kind of stop that does not exist, or not here."""


def choose_stops(names: Iterable[str] | str | None, backend: Backend, shape: Shape) -> list[Stop]:
    """The stops of these names that a backend and a scenario's shape know. None: the usual ones; "all": all of them."""
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    known = [stop for stop in STOPS.values() if backend in stop.backends and shape in stop.shapes]
    if names is None:
        return [stop for stop in known if shape in stop.by_default]
    asked = list(names)
    if not asked:
        raise UnknownStop("no stop was named; leave `stops` out for the usual ones")
    if "all" in asked:
        return known
    chosen: list[Stop] = []
    for name in asked:
        stop = STOPS.get(name)
        if stop is None:
            raise UnknownStop(f"there is no stop {name!r}; there are {', '.join(STOPS)}, and all")
        if backend not in stop.backends:
            raise UnknownStop(f"the stop {name!r} ({stop.says}) does not exist on {backend}")
        if shape not in stop.shapes:
            raise UnknownStop(
                f"the stop {name!r} ({stop.says}) needs an async generator function or an async context manager, "
                f"and this scenario is a {shape}"
            )
        chosen.append(stop)
    return chosen
