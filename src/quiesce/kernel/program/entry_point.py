"""The entry point of a program: `run(main)`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeVar, TypeVarTuple, Unpack, cast

from quiesce.kernel.base import DEFAULT_GRACE, Grace, Site, check_function, site_of

from .program import Stopped

if TYPE_CHECKING:
    from .program import Program

__all__ = ["Stopped", "run"]

T = TypeVar("T")
Args = TypeVarTuple("Args")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
BACKENDS = ("asyncio", "trio")


def run(
    main: Callable[[Unpack[Args]], Awaitable[T]],
    *args: *Args,
    backend: Literal["asyncio", "trio"] = "asyncio",
    grace: Grace | None = None,
    uvloop: bool = False,
    loop_factory: LoopFactory | None = None,
    debug: bool | None = None,
) -> T:
    """Run `main(*args)`, an async function, as a program; returns its result or raises its error.

    ```python
    async def main() -> None:
        async with Scope("server") as scope:
            scope.spawn(serve)

    if __name__ == "__main__":
        quiesce.run(main)
    ```

    When main has ended, everything that still runs is cancelled and waited for: first what the root scope
    owns, then tasks of other code, async generators and the default executor.

    Ctrl-C, SIGTERM and SIGHUP (the terminal was closed) stop the program the same way, with its `grace` and
    the reason `Reason("user", "SIGINT")`, `Reason("shutdown", "SIGTERM")` or `Reason("disconnect",
    "SIGHUP")`. A second Ctrl-C or SIGTERM shortens the grace to `grace.terminate + grace.kill` seconds, a
    third ends the process at once. `run` then raises `Stopped`, a `SystemExit` with the conventional status
    (130, 143 or 129), even if main returned a result or raised an error of its own. (If the program itself
    cancelled main, `run` raises `ChildCancelled`.)

    All of it is bounded: by `grace` for the scopes (leftovers of an earlier stop have their grace from the
    beginning of that one), and `grace.kill` seconds more for the rest. What has not ended by then is printed
    to stderr and left behind. What cannot be left behind (sync code that blocks the event loop, a trio task
    that refuses to be cancelled, a thread that is not a daemon and keeps the interpreter from exiting) is
    ended with the process, by `os._exit`: after a signal with the status above, otherwise with status 1.

    As pid 1 of a container, the program becomes a child of a process that reaps orphans, passes signals on, and
    exits as the program does. If it has other threads or child processes by then, it logs a warning instead.

    Call it in the main thread: in other threads it gets no signals, and never ends the process. `uvloop=True`
    runs asyncio on uvloop, `loop_factory` makes the event loop of your choice, and `debug` is asyncio's debug
    mode.
    """
    check_function("run", main)
    check_no_loop_runs()
    site = site_of(sys._getframe(1))
    if os.getpid() == 1:  # of a container
        from .init import run_as_child_of_init

        run_as_child_of_init()
    program = _make_program(main, args, grace or DEFAULT_GRACE, site, backend, uvloop, loop_factory, debug)
    try:
        return cast(T, program.execute())
    finally:
        del program  # it holds the error, whose traceback holds this frame: a cycle


def _make_program(
    main: Callable[..., object],
    args: tuple[object, ...],
    grace: Grace,
    site: Site,
    backend: str,
    uvloop: bool,
    loop_factory: LoopFactory | None,
    debug: bool | None,
) -> Program:
    if backend == "asyncio":
        from .on_asyncio import AsyncioProgram

        if uvloop:
            if loop_factory is not None:
                raise ValueError("run takes uvloop=True or a loop_factory, not both")
            loop_factory = _uvloop_factory()
        return AsyncioProgram(main, args, grace, site, loop_factory or asyncio.new_event_loop, debug)
    if backend == "trio":
        if uvloop or loop_factory is not None or debug is not None:
            raise ValueError(
                'uvloop, loop_factory and debug are asyncio\'s: they do not go with backend="trio"'
            )
        try:
            from .on_trio import TrioProgram
        except ImportError as exc:
            raise _missing("trio") from exc
        return TrioProgram(main, args, grace, site)
    known = ", ".join(repr(name) for name in BACKENDS)
    raise ValueError(f"backend must be one of {known}, not {backend!r}")


def _uvloop_factory() -> LoopFactory:
    try:
        from uvloop import new_event_loop
    except ImportError as exc:
        raise _missing("uvloop") from exc
    return cast(LoopFactory, new_event_loop)


def _missing(name: str) -> ImportError:
    return ImportError(
        f"{name} is not installed; it comes with an extra: pip install 'quiesce[{name}]'", name=name
    )


def check_no_loop_runs() -> None:
    """Raise an error that explains what to do if an event loop already runs in this thread."""
    running = "asyncio" if asyncio._get_running_loop() is not None else None
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        running = "trio"
    if running is not None:
        raise RuntimeError(
            f"run() is the entry point of a program, and {running} is already running in this thread: "
            "await main() instead, or spawn it in a scope"
        )
