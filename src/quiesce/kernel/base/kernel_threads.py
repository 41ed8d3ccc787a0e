"""The threads that the kernel starts itself: watchers, and those that run `to_thread`.

The kernel counts them. So the report of each stop finds out in a few nanoseconds whether there are other
threads, whose stacks it has to look at: looking at every stack would cost as much as the rest of the report.
"""

from __future__ import annotations

import os
import threading
from _thread import _count
from collections.abc import Callable
from threading import get_ident
from typing import Any

_kernel_threads: set[int] = set()  # of those that run now, by `get_ident()`


class KernelThread(threading.Thread):
    """A daemon thread of the kernel, not yet started."""

    def __init__(self, name: str, target: Callable[..., object], *args: Any) -> None:
        super().__init__(name=name, target=target, args=args, daemon=True)

    def run(self) -> None:
        """Run the target; while it runs, the thread counts as the kernel's."""
        # Registered in the thread itself, not by its starter: registered before Python counts it, it would
        # stand in the count for a thread of some library, which would then be overlooked.
        ident = get_ident()
        _kernel_threads.add(ident)
        try:
            super().run()
        finally:
            _kernel_threads.discard(ident)


def are_there_others() -> bool:
    """Whether there may be a thread, besides the caller's, that is neither the main one nor the kernel's.

    Threads that Python did not start are not counted: they hold nothing of it except while they call it.
    """
    return _count() > len(_kernel_threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_kernel_threads.clear)
