"""The processes that an owned thing has started, for code that knows more of its stop than the owner task does."""

from __future__ import annotations

from typing import Any

from quiesce.kernel.contain import OwnerProcesses

from .owned import Held
from .streams import Stream


def look_at_processes(thing: Held[Any] | Stream[Any]) -> None:
    """Find its processes and their descendants: if one exits by itself, its children are still known later."""
    processes = _processes_of(thing)
    if processes is not None:
        processes.look()


def stop_orphans(thing: Held[Any] | Stream[Any]) -> None:
    """Stop what those of its processes have left behind that have exited, as far as looks have seen it."""
    processes = _processes_of(thing)
    if processes is not None:
        processes.stop_orphans()


def stop_processes(thing: Held[Any] | Stream[Any]) -> None:
    """Stop its processes now, in a stop that has begun: its clean-up need not end them first."""
    processes = _processes_of(thing)
    if processes is not None:
        processes.tell_to_go()


def _processes_of(thing: Held[Any] | Stream[Any]) -> OwnerProcesses | None:
    return (thing._keeper if isinstance(thing, Held) else thing._pump).processes
