"""A thread of the kernel's pool is at work until it has told of its end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiesce.audit.watch.threads import busy_threads
from quiesce.kernel.threads.idle_threads import run_in_thread


def test_a_thread_that_has_not_told_of_its_end_yet_is_at_work() -> None:
    telling, told = threading.Event(), threading.Event()

    def tell() -> None:
        telling.set()
        told.wait(10)

    def work() -> Callable[[], object]:
        return tell

    before = [thread for thread, _ in busy_threads()]
    run_in_thread("worker", work)
    try:
        assert telling.wait(10)
        assert len(busy_threads(before)) == 1
    finally:
        told.set()
