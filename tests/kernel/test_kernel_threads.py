"""Threads of the kernel's own are told from other people's without a look at their stacks."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import _thread, threading, time
import quiesce
from quiesce.kernel.base import are_there_others

async def main():
    scope = await quiesce.Scope.open()
    scope.spawn(quiesce.to_thread, time.sleep, 0.01)
    await quiesce.to_thread(time.sleep, 0.01)
    assert (await scope.close()).clean
    watchers = {thread.name for thread in threading.enumerate()} - {"MainThread"}
    assert watchers and not are_there_others(), watchers
    gate = _thread.allocate_lock()
    gate.acquire()
    _thread.start_new_thread(gate.acquire, ())  # one that `threading` knows nothing of
    while not are_there_others():
        time.sleep(0.001)
    gate.release()
    while are_there_others():
        time.sleep(0.001)
    print("done")

quiesce.run(main)
"""


def test_the_kernels_own_threads_are_not_taken_for_others() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
