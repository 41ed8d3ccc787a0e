"""A thread of the kernel's pool is at work until it has told of its end."""

from __future__ import annotations

import subprocess
import sys
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


def test_the_thread_that_watches_the_guard_of_processes_is_not_at_work() -> None:
    program = """
import subprocess
import sys
import threading
import quiesce
from quiesce.audit.watch.threads import busy_threads

async def main():
    async with quiesce.Process(["sleep", "60"]):
        print("guard" in " ".join(thread.name for thread in threading.enumerate()), end=" ")
        print([thread.name for thread, _ in busy_threads()])

quiesce.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "True []\n"
