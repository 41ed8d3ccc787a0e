"""A hard limit on the real time of one test, and of its fixtures.

The alarm is raised in the main thread, wherever that is: waiting in a selector, or stuck in a loop of its
own. In a test it is a KeyboardInterrupt because that is the one exception which asyncio lets through its
tasks and callbacks to whoever runs the loop. In a fixture it is a failure, because that is what pytest goes on
after, with the other fixtures. Code that swallows it is interrupted again a second later. A world that can be
asked to stop is asked first.

What no exception can reach, such as a call into C that does not return, ends the process `LAST_RESORT` seconds
after the limit, with the stacks on stderr. xdist blames the test and goes on in a new process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.world import World


TIME_LIMIT = 20.0
PROGRAMS_LIMIT = 120.0  # of a test that drives other programs
FIXTURE_LIMIT = 120.0  # of a module's fixture, which many tests may share
LAST_RESORT = 30.0


class OutOfTime(KeyboardInterrupt):
    pass


class RealStderr:
    """Where the stacks of the last resort go: pytest keeps what is written to descriptor 2."""

    fd = 2


def keep_real_stderr() -> None:
    """Before pytest captures it."""
    RealStderr.fd = os.dup(2)


@contextlib.contextmanager
def time_limit(
    seconds: float, world: World | None = None, alarm: type[BaseException] = OutOfTime
) -> Iterator[None]:
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
        raise alarm

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    faulthandler.dump_traceback_later(seconds + LAST_RESORT, exit=True, file=RealStderr.fd)
    try:
        yield
    except BaseException as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not stacks:
            raise
        discard_wreck(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous)
    if stacks:
        discard_wreck(None)
        pytest.fail(f"the test ran for more than {seconds:g} s\n" + "\n".join(stacks), pytrace=False)


def discard_wreck(error: BaseException | None) -> None:
    """Collect what was interrupted half done now, in silence, lest a later test be blamed for it.

    pytest keeps the error for long, and the error the frames it came through. That of `trio.run` holds the run,
    and while there is one, no other can begin.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        gc.collect()
    finally:
        sys.unraisablehook = hook


def all_thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)!r}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for ident, frame in sys._current_frames().items()
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def limit_each_test(item: pytest.Item) -> Generator[None]:
    """For the conftest of tests that have no worlds, as their `pytest_runtest_call`."""
    limit = item.get_closest_marker("time_limit")
    with time_limit(limit.args[0] if limit else PROGRAMS_LIMIT, alarm=pytest.fail.Exception):
        yield
