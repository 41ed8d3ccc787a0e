"""The kinds of stop. `worlds.asyncio_stops` and `trio.stops` implement them for their backends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .points import PHASES, Phase

Backend: TypeAlias = Literal["asyncio", "trio"]
Shape: TypeAlias = Literal["coroutine", "generator", "context manager"]

ALL_SHAPES: tuple[Shape, ...] = ("coroutine", "generator", "context manager")
HOLDABLE: tuple[Shape, ...] = ("generator", "context manager")
ALL_BACKENDS: tuple[Backend, ...] = ("asyncio", "trio")


@dataclass(frozen=True, slots=True)
class Stop:
    """A kind of stop, and at which points it makes sense.

    `aims_at` says whose points: "root" (early: whenever any task suspends; otherwise those of the root itself), "tree"
    (those of every task), "others" (those of every task except the root) or "items" (where a consumer holds a
    generator).
    """

    name: str
    says: str
    aims_at: Literal["root", "tree", "others", "items"]
    phases: tuple[Phase, ...] = PHASES
    backends: tuple[Backend, ...] = ALL_BACKENDS
    shapes: tuple[Shape, ...] = ALL_SHAPES
    #: The shapes for which it is one of the default stops.
    by_default: tuple[Shape, ...] = ()
    #: Adversarial: its findings are only warnings.
    warns: bool = False
    times: int = 1
    #: Whether `depth=2` tries a second stop after it.
    deepens: bool = False


STOPS: dict[str, Stop] = {
    stop.name: stop
    for stop in (
        Stop("cancel", "cancel the root", "root", by_default=ALL_SHAPES, deepens=True),
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
            by_default=ALL_SHAPES,
            deepens=True,
        ),
        Stop("scope", "cancel an anyio scope around it", "root", phases=("early", "late"), deepens=True),
        Stop(
            "timeout",
            "a timeout around it runs out",
            "root",
            phases=("early", "late"),
            by_default=ALL_SHAPES,
            deepens=True,
        ),
        Stop("raise", "what a task waits for fails", "tree", phases=("late",)),
        Stop(
            "close",
            "another task closes it",
            "items",
            phases=("early",),
            shapes=HOLDABLE,
            by_default=("generator",),
        ),
        Stop(
            "drop",
            "its consumer drops it, and the collector runs",
            "items",
            phases=("early",),
            shapes=HOLDABLE,
            by_default=("generator",),
        ),
        Stop("descendant", "cancel one task below the root (adversarial)", "others", warns=True),
    )
}


class UnknownStop(ValueError):
    """A kind of stop that does not exist, or not for this backend or scenario."""


def choose_stops(names: Iterable[str] | str | None, backend: Backend, shape: Shape) -> list[Stop]:
    """Look up the stops for a backend and a shape of scenario; raises `UnknownStop`.

    None selects the default stops, and "all" every stop that the backend and the shape support.
    """
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    known = [stop for stop in STOPS.values() if backend in stop.backends and shape in stop.shapes]
    if names is None:
        return [stop for stop in known if shape in stop.by_default]
    requested = list(names)
    if not requested:
        raise UnknownStop("no stop was named; leave `stops` out for the default ones")
    if "all" in requested:
        return known
    chosen: list[Stop] = []
    for name in requested:
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
