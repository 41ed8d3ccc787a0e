"""`drive_in`: a contained call in a loop of the caller's, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quiesce.dropin.contained import Call
from quiesce.dropin.driven import drive_in

pytestmark = pytest.mark.real_time
SLACK = 4.0  # seconds that a loaded machine may take; what is not stopped takes a minute


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Sdk:
    """Works for a minute, and cleans up for a moment."""

    def __init__(self, begin: Callable[[], object] = lambda: None, seconds: float = 60) -> None:
        self.log: list[str] = []
        self._begin = begin
        self._seconds = seconds

    async def run(self) -> str:
        self._begin()
        try:
            await asyncio.sleep(self._seconds)
            return "done"
        finally:
            await asyncio.sleep(0.05)
            self.log.append("cleaned up")


def soon(fn: Callable[..., object], *args: Any) -> Callable[[], object]:
    """Have `fn` called while the loop waits for events, in another thread."""

    def begin() -> None:
        threading.Timer(0.2, fn, args).start()

    return begin


def signal_here(number: signal.Signals) -> None:
    """As the system may do it: the signal of a program is delivered to any of its threads."""
    signal.pthread_kill(threading.get_ident(), number)


def test_it_returns_what_the_call_does_and_leaves_the_loop_to_its_caller(
    loop: asyncio.AbstractEventLoop,
) -> None:
    before = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        call = Call(Sdk(seconds=0).run, name="run")
        assert drive_in(loop, call) == "done"
        assert call.report is not None
        assert call.report.clean
    assert not loop.is_closed()
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_its_error_is_raised_as_itself(loop: asyncio.AbstractEventLoop) -> None:
    async def fail() -> None:
        raise LookupError("failed")

    with pytest.raises(LookupError, match="failed"):
        drive_in(loop, Call(fail, name="fail"))


@pytest.mark.parametrize("closes", [True, False])
def test_the_async_generators_of_the_loop_are_closed_if_that_is_wanted(
    loop: asyncio.AbstractEventLoop, closes: bool
) -> None:
    log: list[str] = []
    kept = []

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            log.append("closed")

    async def begin_one() -> None:
        kept.append(numbers())
        await anext(kept[0])

    drive_in(loop, Call(begin_one, name="run"), closes_generators=closes)
    assert log == ["closed"] * closes
    loop.run_until_complete(kept[0].aclose())


@pytest.mark.parametrize("flavour", ["asyncio", "uvloop"])
def test_a_ctrl_c_that_another_thread_gets_stops_the_call(flavour: str) -> None:
    loop = (
        asyncio.new_event_loop() if flavour == "asyncio" else pytest.importorskip("uvloop").new_event_loop()
    )
    sdk = Sdk(soon(signal_here, signal.SIGINT))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        drive_in(loop, Call(sdk.run, name="run"))
    assert time.monotonic() - began < SLACK
    assert sdk.log == ["cleaned up"]
    loop.close()


def test_a_ctrl_c_as_it_ends_is_not_lost(loop: asyncio.AbstractEventLoop) -> None:
    async def end() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        drive_in(loop, Call(end, name="end"))


def test_the_third_ctrl_c_waits_for_nothing(loop: asyncio.AbstractEventLoop) -> None:
    def three() -> None:
        for _ in range(3):
            signal_here(signal.SIGINT)
            time.sleep(0.2)

    async def deaf() -> None:
        three_times.start()
        while not is_over:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    is_over: list[bool] = []
    three_times = threading.Thread(target=three)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        drive_in(loop, Call(deaf, name="deaf"))
    assert time.monotonic() - began < SLACK
    three_times.join()
    is_over.append(True)
    loop.run_until_complete(asyncio.wait(asyncio.all_tasks(loop)))


def test_the_callers_own_handlers_of_signals_are_called_meanwhile(loop: asyncio.AbstractEventLoop) -> None:
    log: list[str] = []
    loop.add_signal_handler(signal.SIGTERM, log.append, "SIGTERM")
    drive_in(loop, Call(Sdk(soon(signal_here, signal.SIGTERM), seconds=0.6).run, name="run"))
    assert log == ["SIGTERM"]
    loop.remove_signal_handler(signal.SIGTERM)


def test_in_another_thread_it_runs_as_in_the_main_one() -> None:
    answers: list[str] = []

    def run() -> None:
        loop = asyncio.new_event_loop()
        answers.append(drive_in(loop, Call(Sdk(seconds=0).run, name="run")))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == ["done"]
