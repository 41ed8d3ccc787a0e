"""A hard limit on the real time of one test.

The alarm is raised in the main thread, wherever that is: waiting in a selector, or stuck in a loop of its
own. It is a KeyboardInterrupt because that is the one exception which asyncio lets through its tasks and
callbacks to whoever runs the loop. Code that swallows it is interrupted again a second later. A world that
can be asked to stop is asked first.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

import pytest

from tests.world import World

TIME_LIMIT = 20.0


class OutOfTime(KeyboardInterrupt):
    pass


@contextlib.contextmanager
def time_limit(seconds: float, world: World | None) -> Iterator[None]:
    """Fail what runs inside once `seconds` have passed, with the stacks of that moment."""
    if sys.platform == "win32":  # has no alarm: a hang there is for pytest's faulthandler_timeout
        yield
        return
    stacks: list[str] = []

    def ring(signum: int, frame: FrameType | None) -> None:
        if not stacks:
            stacks.append(f"{world.describe_tasks() if world else ''}\n{all_thread_stacks()}")
            if world and world.ask_to_stop():
                return
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    except BaseException:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not stacks:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    if stacks:
        discard_wreck()
        pytest.fail(f"the test ran for more than {seconds:g} s\n" + "\n".join(stacks), pytrace=False)


def discard_wreck() -> None:
    """Collect what was interrupted half done now, in silence, lest a later test be blamed for it."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook


def all_thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)!r}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for ident, frame in sys._current_frames().items()
    )
