"""A contained call, driven by a plain function: for the `run_sync` of an SDK.

SDKs run such a call in the default loop of the thread, and leave that open, since objects that outlive the
call (a session, a client) belong to a loop. So neither `quiesce.run` nor `asyncio.run` will do, which make a
loop and close it.

Ctrl-C stops the call, and `KeyboardInterrupt` is raised when it has settled. A second one makes that faster,
a third raises at once. That needs the signal handler for as long as the call lasts; it is only taken where
Python's own is set, as `asyncio.run` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

from quiesce import Reason
from quiesce.kernel.inner import woken_by_signals

from .contained import Call

T = TypeVar("T")


def drive(call: Call[T], *args: Any, closes_generators: bool = True, **kwargs: Any) -> T:
    """Run `call` in the default loop of this thread, until it has ended; no loop may be running in it.

    `closes_generators`: at the end, all async generators of the loop are closed, as some SDKs do.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(
            f"{call.name}() cannot be called when an event loop is already running: await the async one"
        )
    return drive_in(default_loop(), call, *args, closes_generators=closes_generators, **kwargs)


def drive_in(
    loop: asyncio.AbstractEventLoop,
    call: Call[T],
    *args: Any,
    closes_generators: bool = True,
    **kwargs: Any,
) -> T:
    """Run `call` in `loop`, which is the caller's to close, until it has ended."""
    task = loop.create_task(call.result(*args, **kwargs))

    def stop(number: int) -> None:
        call.cancel(Reason("user", "Ctrl-C"))

    with woken_by_signals(loop), interrupts_by(stop) as interrupts:
        try:
            result = loop.run_until_complete(task)
        except BaseException as error:
            if not task.done() and len(interrupts) < AT_ONCE:
                # A Ctrl-C that was not ours to handle, or another way out of the loop.
                call.cancel(Reason("user", f"the program was interrupted by {type(error).__name__}"))
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(task)
            if interrupts and isinstance(error, asyncio.CancelledError):
                raise KeyboardInterrupt from None
            raise
        finally:
            if not interrupts and closes_generators:
                loop.run_until_complete(loop.shutdown_asyncgens())
        if interrupts:  # it has ended before the stop could reach it: the Ctrl-C is not lost
            raise KeyboardInterrupt
        return result


AT_ONCE = 3  # the number of Ctrl-C that waits for nothing any more


def default_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this thread, which is kept for the next call; made if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, if it has to make one
        try:
            loop = asyncio.get_event_loop()
        except RuntimeError:
            loop = None
        if loop is None or loop.is_closed():
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
    return loop


@contextlib.contextmanager
def interrupts_by(stop: Callable[[int], object]) -> Iterator[list[int]]:
    """Count each Ctrl-C, and call `stop` with its number instead of raising; the third one raises at once.

    Only in the main thread, and only if nobody else handles Ctrl-C. `stop` is called in the signal handler.
    """
    interrupts: list[int] = []

    def interrupt(signum: int, frame: FrameType | None) -> None:
        interrupts.append(signum)
        if len(interrupts) >= AT_ONCE:
            raise KeyboardInterrupt
        stop(len(interrupts))

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupts
    finally:
        if ours and signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
