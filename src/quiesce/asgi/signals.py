"""Signals, heard besides the server.

A server that is told to end waits for its connections first and asks the application afterwards, so that a stream
without end keeps it up for ever. The signal itself must therefore reach the requests. Servers take signals in different
ways (a handler, a file descriptor, a task); a handler that calls the one before it disturbs none of them.

A handler runs between any two bytecodes, perhaps in the middle of what it wants to stop: it only asks the loop to.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from quiesce import Reason
from quiesce.kernel.inner import caller_site, current_backend, root_core

from .server import Server

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def pass_signals_to(server: Server) -> Callable[[], None]:
    """End `server` on SIGINT and SIGTERM, and let whoever had them before have them too. Returns what undoes it.

    Where a signal would end the process at once (nobody had it), that comes when the server has closed; or at once,
    if the signal comes again. Only the main thread has signals: elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    soon = _scheduler()
    before: dict[int, Any] = {}
    came: set[int] = set()

    def on_signal(number: int, frame: FrameType | None) -> None:
        reason = Reason("shutdown", signal.Signals(number).name)
        soon(lambda: server.end(reason))
        handler = before[number]
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            if number in came:
                die(number)
            soon(
                lambda: root_core(current_backend()).spawn(die_later, (number,), "the signal", caller_site())
            )
        came.add(number)

    async def die_later(number: int) -> None:
        await server.wait_until_ended()
        die(number)

    def die(number: int) -> None:
        undo()
        signal.raise_signal(number)

    def undo() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)

    for number in SIGNALS:
        handler = signal.getsignal(number)
        # Ignored on purpose, as in the background of a script; or installed from C, and not to be called from here.
        if handler is not signal.SIG_IGN and handler is not None:
            before[number] = handler
            signal.signal(number, on_signal)
    return undo


def _scheduler() -> Callable[[Callable[[], object]], object]:
    """What has the loop call a function soon, wakes it for that, and may be called in a signal handler."""
    if current_backend().name == "asyncio":
        loop = asyncio.get_running_loop()

        def soon(fn: Callable[[], object]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(fn)

        return soon
    import trio

    token = trio.lowlevel.current_trio_token()

    def soon_on_trio(fn: Callable[[], object]) -> None:
        try:
            token.run_sync_soon(fn)
        except trio.RunFinishedError:
            pass

    return soon_on_trio
