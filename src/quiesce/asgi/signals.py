"""Listens to signals in addition to the server.

A server that is told to stop first waits for its connections and only then asks the application to shut down, so that
one endless stream keeps it waiting forever. So the signal itself must reach the requests. Servers handle signals in
different ways (a handler, a file descriptor, a task); a handler that calls the previous one disturbs none of them.

A handler runs between any two bytecodes, perhaps in the middle of the code that it wants to stop. So it only
schedules the stop in the event loop.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from quiesce import Reason
from quiesce.kernel.inner import current_backend, root_scope

from .server import Server

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def pass_signals_to(server: Server) -> Callable[[], None]:
    """Stop `server` on SIGINT and SIGTERM, and call the previous handlers as well; return a function that undoes this.

    If the default action of a signal would kill the process (no handler was installed), that happens when the server
    has closed, or at once if the signal comes again. Only the main thread can handle signals: elsewhere this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    call_soon = _scheduler()
    previous: dict[int, Any] = {}
    received: set[int] = set()

    def on_signal(number: int, frame: FrameType | None) -> None:
        reason = Reason("shutdown", signal.Signals(number).name)
        call_soon(lambda: server.stop(reason))
        handler = previous[number]
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            if number in received:
                die(number)
            # In the root scope, because the server's own scope is closed before this ends.
            call_soon(lambda: root_scope().spawn(die_later, number, name="the signal"))
        received.add(number)

    async def die_later(number: int) -> None:
        await server.wait_until_stopped()
        die(number)

    def die(number: int) -> None:
        undo()
        signal.raise_signal(number)

    def undo() -> None:
        for number, handler in previous.items():
            # Another handler may have been installed since, which must stay.
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)

    for number in SIGNALS:
        handler = signal.getsignal(number)
        # SIG_IGN: ignored on purpose, as in the background of a script. None: installed from C, so it cannot be called.
        if handler is not signal.SIG_IGN and handler is not None:
            previous[number] = handler
            signal.signal(number, on_signal)
    return undo


def _scheduler() -> Callable[[Callable[[], object]], object]:
    """Return a function that makes the loop call another one soon, wakes the loop, and is safe in a signal handler."""
    if current_backend().name == "asyncio":
        loop = asyncio.get_running_loop()

        def call_soon(fn: Callable[[], object]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(fn)

        return call_soon
    import trio

    token = trio.lowlevel.current_trio_token()

    def call_soon_on_trio(fn: Callable[[], object]) -> None:
        try:
            token.run_sync_soon(fn)
        except trio.RunFinishedError:
            pass

    return call_soon_on_trio
