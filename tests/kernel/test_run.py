"""Demand 11 from inside: how `run` ends, with and without signals. Whole programs are in `test_run_programs`."""

from __future__ import annotations

import asyncio
import contextvars
import io
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import trio

from quiesce import (
    ChildCancelled,
    Grace,
    Reason,
    Scope,
    ScopeClosed,
    current_scope,
    current_token,
)
from quiesce.kernel.program import program as program_module
from quiesce.kernel.program.entry_point import Stopped, run
from quiesce.kernel.threads.thread_call import to_thread
from tests.kernel.temperaments import sleeper, tidy_up

SLACK = 4.0  # seconds that a loaded machine may take; what is not stopped takes a minute, or the five of the default
SHORT = Grace(cooperate=0, cancel=0.1, terminate=0.03, kill=0.03)
ON_ASYNCIO = ["asyncio", "uvloop"]
EVERYWHERE = [*ON_ASYNCIO, "trio"]
IN_PROCESS = [*EVERYWHERE, "asyncio-eager"] if sys.version_info >= (3, 12) else EVERYWHERE

on_asyncio = pytest.mark.parametrize("flavour", ON_ASYNCIO)
in_process = pytest.mark.parametrize("flavour", IN_PROCESS)
in_process_asyncio = pytest.mark.parametrize("flavour", [name for name in IN_PROCESS if name != "trio"])

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    return loop


def go(flavour: str, main: Callable[..., Any], *args: Any, grace: Grace | None = None) -> Any:
    if flavour == "trio":
        return run(main, *args, backend="trio", grace=grace)
    if flavour == "asyncio-eager":
        return run(main, *args, loop_factory=eager_loop, grace=grace)
    return run(main, *args, uvloop=flavour == "uvloop", grace=grace)


@pytest.fixture(autouse=True)
def nobody_ends_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stalls for a second looks like a blocked loop, whose process is ended: that is for `test_run_programs`."""
    monkeypatch.setattr(program_module, "BLOCKED_AFTER", 60.0)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + SLACK


# A program that ends by itself ----------------------------------------------------------------------------------


@in_process
def test_mains_result_is_returned(flavour: str) -> None:
    async def main(*args: int) -> int:
        await anyio.sleep(0)
        return sum(args)

    assert go(flavour, main, 1, 2, 3) == 6


@in_process
def test_a_main_that_never_waits_is_fine(flavour: str) -> None:
    async def main() -> str:
        return "done"

    assert go(flavour, main) == "done"


@in_process
def test_mains_error_is_raised_as_itself_and_told_once(
    flavour: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = LookupError("gone")

    async def main() -> None:
        await anyio.sleep(0)
        raise error

    with pytest.raises(LookupError) as raised:
        go(flavour, main)
    assert raised.value is error
    assert raised.traceback[-1].name == "main"
    assert caplog.records == []


@in_process
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_raised_by_hand_in_main_comes_out(flavour: str, kind: type[BaseException]) -> None:
    log: list[str] = []

    async def main() -> None:
        current_scope().spawn(sleeper, log, "child", 0.01)
        await anyio.sleep(0.01)
        raise kind("by hand")

    with pytest.raises(kind, match="by hand"):
        go(flavour, main)
    assert log == ["child stops", "child is tidy"]


@in_process_asyncio
def test_on_asyncio_an_interrupt_in_a_child_ends_the_program(flavour: str) -> None:
    log: list[str] = []

    async def child() -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt("in a child")

    async def main() -> None:
        try:
            current_scope().spawn(child)
            await anyio.sleep(60)
        finally:
            assert current_token().reason is not None
            log.append(current_token().reason.kind)  # type: ignore[union-attr]

    with at_most(0), pytest.raises(KeyboardInterrupt, match="in a child"):
        go(flavour, main)
    assert log == ["error"]


@in_process
def test_main_runs_in_the_root_scope_with_a_token(flavour: str) -> None:
    async def main() -> tuple[str, bool]:
        scope = current_scope()
        assert [handle.name.rpartition(".")[2] for handle in scope.children] == ["main"]
        return scope.name, current_token().cancelled

    assert go(flavour, main) == ("root", False)


@in_process
def test_when_main_ends_its_children_are_cancelled_and_have_cleaned_up(flavour: str) -> None:
    log: list[str] = []
    held: list[Scope] = []

    async def main() -> str:
        current_scope().spawn(sleeper, log, "child", 0.02)
        held.append(await Scope.open("never closed"))
        held[0].spawn(sleeper, log, "grandchild", 0.01)
        await anyio.sleep(0.01)
        return "value"

    assert go(flavour, main) == "value"
    assert log == [
        "child stops",
        "child is tidy",
        "grandchild stops",
        "grandchild is tidy",
    ]


@in_process
def test_children_hear_that_the_program_ends(flavour: str) -> None:
    reasons: list[Reason | None] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            reasons.append(current_token().reason)

    async def main() -> None:
        current_scope().spawn(child)
        await anyio.sleep(0.01)

    go(flavour, main)
    assert reasons == [Reason("shutdown", "main has ended")]


@in_process
def test_context_variables_come_in_and_changes_stay_inside(flavour: str) -> None:
    def inside() -> tuple[str, str]:
        async def main() -> str:
            before = variable.get()
            variable.set("changed")
            return before

        variable.set("caller's")
        return go(flavour, main), variable.get()

    assert contextvars.copy_context().run(inside) == ("caller's", "caller's")


@in_process
def test_a_second_run_starts_afresh(flavour: str) -> None:
    async def main() -> Scope:
        assert not current_token().cancelled
        return current_scope()

    assert go(flavour, main) is not go(flavour, main)


@in_process
def test_a_main_that_cancels_the_root_scope_is_reported_as_cancelled(flavour: str) -> None:
    async def main() -> None:
        current_scope().cancel(Reason("user", "quit"))
        await anyio.sleep(60)

    with pytest.raises(ChildCancelled, match="user: quit"):
        go(flavour, main)


@in_process
def test_nothing_can_be_spawned_while_the_program_ends(flavour: str) -> None:
    refused: list[BaseException] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            try:
                current_scope().spawn(anyio.sleep, 0)
            except ScopeClosed as error:
                refused.append(error)

    async def main() -> None:
        current_scope().spawn(child)
        await anyio.sleep(0.01)

    go(flavour, main)
    assert len(refused) == 1


@in_process
def test_what_an_earlier_stop_has_left_over_gets_no_second_grace(
    flavour: str, capsys: pytest.CaptureFixture[str]
) -> None:
    let_go = threading.Event()

    async def main() -> int:
        scope = await Scope.open("early", grace=SHORT)
        scope.spawn(to_thread, let_go.wait, 60)
        await anyio.sleep(0.01)
        assert not (await scope.close()).clean
        stop = scope._opened().stop_state
        assert stop is not None
        stop.started -= 60  # as if that stop had begun a minute ago
        return 5

    try:
        with at_most(0):
            assert go(flavour, main, grace=Grace(cancel=30)) == 5
        assert "left: thread 'Event.wait'" in capsys.readouterr().err
    finally:
        let_go.set()


@in_process
def test_what_was_stopped_a_moment_ago_has_the_rest_of_its_grace(flavour: str) -> None:
    let_go = threading.Event()
    after: list[float] = []

    def wait() -> None:
        let_go.wait(60)
        after.append(time.monotonic())

    async def main() -> None:
        scope = await Scope.open("early", grace=SHORT)
        scope.spawn(to_thread, wait)
        await anyio.sleep(0.01)
        assert not (await scope.close()).clean
        threading.Timer(0.1, let_go.set).start()

    go(flavour, main, grace=Grace(cancel=30))
    assert after


# A program that stops itself ------------------------------------------------------------------------------------


@in_process
def test_a_program_that_stops_itself_is_stopped_as_by_a_signal(flavour: str) -> None:
    log: list[str] = []

    async def main() -> None:
        current_scope().spawn(sleeper, log, "child", 0.01)
        await anyio.sleep(0.01)
        program_module.stop_program(Reason("disconnect", "its client is gone"))
        program_module.stop_program(Reason("user", "too late"))
        try:
            await anyio.sleep(60)
        finally:
            log.append("main is cancelled")

    with pytest.raises(Stopped) as stopped:
        go(flavour, main)
    assert (stopped.value.code, stopped.value.reason) == (0, Reason("disconnect", "its client is gone"))
    assert stopped.value.report.clean
    assert sorted(log) == ["child is tidy", "child stops", "main is cancelled"]


@in_process
def test_what_main_returns_and_raises_after_it_has_stopped_itself_counts(flavour: str) -> None:
    async def main(error: Exception | None) -> str:
        program_module.stop_program(Reason("disconnect"))
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            if error is not None:
                raise error from None
        return "done"

    assert go(flavour, main, None) == "done"
    with pytest.raises(LookupError, match="gone"):
        go(flavour, main, LookupError("gone"))


@in_process_asyncio
def test_a_main_that_refuses_the_stop_it_has_asked_for_is_named(
    flavour: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        program_module.stop_program(Reason("disconnect"))
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    with at_most(SHORT.total), pytest.raises(Stopped) as stopped:
        go(flavour, main, grace=SHORT)
    assert stopped.value.code == 1
    assert "left: task" in capsys.readouterr().err


@pytest.mark.worlds("asyncio", "trio")
async def test_without_run_there_is_no_program_to_stop() -> None:
    program_module.stop_program(Reason("disconnect"))
    await anyio.sleep(0)
    assert not current_token().cancelled


# Other people's things on asyncio -------------------------------------------------------------------------------


@in_process_asyncio
def test_other_peoples_tasks_are_cancelled_once_after_the_scopes_and_drained(flavour: str) -> None:
    log: list[str] = []

    async def foreign() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.append("foreign stops")
            await asyncio.sleep(0.02)
            log.append("foreign is tidy")

    async def main() -> None:
        main.task = asyncio.create_task(foreign())  # type: ignore[attr-defined]
        current_scope().spawn(sleeper, log, "child", 0.01)
        await asyncio.sleep(0.01)

    go(flavour, main)
    assert log == ["child stops", "child is tidy", "foreign stops", "foreign is tidy"]


@in_process_asyncio
def test_a_foreign_task_that_refuses_is_named_and_left(
    flavour: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def foreign() -> None:
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    async def main() -> int:
        main.task = asyncio.create_task(foreign(), name="foreigner")  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        return 5

    with at_most(SHORT.total):
        assert go(flavour, main, grace=SHORT) == 5
    assert "left: task 'foreigner', stuck at tests/kernel/test_run.py" in capsys.readouterr().err


@in_process_asyncio
def test_what_a_foreign_task_raises_at_the_end_is_given_to_the_loops_handler(flavour: str) -> None:
    told: list[dict[str, Any]] = []

    async def foreign() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise LookupError("in clean-up")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        main.task = asyncio.create_task(foreign())  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)

    go(flavour, main)
    assert [repr(context["exception"]) for context in told] == ["LookupError('in clean-up')"]


@in_process_asyncio
def test_a_main_that_waits_for_all_other_tasks_does_not_wait_for_us(flavour: str) -> None:
    async def main() -> int:
        asyncio.create_task(asyncio.sleep(0.01))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others)
        return len(others)

    assert go(flavour, main) == 1


@in_process_asyncio
def test_code_that_cancels_all_tasks_again_and_again_does_not_disturb_the_end(flavour: str) -> None:
    log: list[str] = []

    async def vandal() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(3):
                for task in asyncio.all_tasks():
                    if task is not asyncio.current_task():
                        task.cancel()
                await asyncio.sleep(0.01)
            log.append("done")

    async def main() -> str:
        main.task = asyncio.create_task(vandal())  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        return "value"

    assert go(flavour, main) == "value"
    assert log == ["done"]


@in_process_asyncio
def test_a_main_that_cancels_all_tasks_as_it_is_stopped_ends_as_others_do(flavour: str) -> None:
    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    with pytest.raises(Stopped) as raised:
        go(flavour, main)
    assert raised.value.code == 130


@in_process_asyncio
def test_somebody_who_stops_the_loop_stops_the_program(flavour: str) -> None:
    log: list[str] = []

    async def main() -> None:
        try:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.01)
            log.append("tidy")

    with pytest.raises(ChildCancelled, match="the event loop was stopped"):
        go(flavour, main)
    assert log == ["tidy"]


@in_process
def test_async_generators_that_nobody_closed_are_closed(flavour: str) -> None:
    log: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append("closed")

    async def main() -> None:
        main.agen = numbers()  # type: ignore[attr-defined]
        await anext(main.agen)  # type: ignore[attr-defined]

    go(flavour, main)
    assert log == ["closed"]


@in_process_asyncio
def test_an_async_generator_that_does_not_close_is_given_up(
    flavour: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            while True:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass

    async def main() -> str:
        main.agen = numbers()  # type: ignore[attr-defined]
        await anext(main.agen)  # type: ignore[attr-defined]
        return "value"

    with at_most(2 * SHORT.total):
        assert go(flavour, main, grace=SHORT) == "value"
    assert "test_run.py" in capsys.readouterr().err


@in_process_asyncio
def test_work_in_the_default_executor_is_waited_for(flavour: str) -> None:
    log: list[str] = []

    def work() -> None:
        time.sleep(0.05)
        log.append("worked")

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, work)

    go(flavour, main)
    assert log == ["worked"]


@in_process_asyncio
def test_the_default_executor_is_not_waited_for_without_bound(
    flavour: str, capsys: pytest.CaptureFixture[str]
) -> None:
    let_go = threading.Event()

    async def main() -> str:
        asyncio.get_running_loop().run_in_executor(None, let_go.wait, 10)
        return "value"

    try:
        with at_most(SHORT.total):
            assert go(flavour, main, grace=SHORT) == "value"
    finally:
        let_go.set()
    assert "left: thread 'asyncio_0'" in capsys.readouterr().err


# Signals, in this process ---------------------------------------------------------------------------------------


@in_process
@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        (signal.SIGINT, 130, Reason("user", "SIGINT")),
        (signal.SIGTERM, 143, Reason("shutdown", "SIGTERM")),
        (signal.SIGHUP, 129, Reason("disconnect", "SIGHUP")),
    ],
)
def test_a_signal_stops_everything_with_its_reason(
    flavour: str, number: signal.Signals, code: int, reason: Reason, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[Any] = []

    async def child() -> None:
        try:
            await anyio.sleep(60)
        finally:
            log.append(current_token().reason)
            await tidy_up(0.02)
            log.append("tidy")

    async def main() -> None:
        current_scope().spawn(child)
        await anyio.sleep(0.01)
        signal.raise_signal(number)
        await anyio.sleep(60)

    with at_most(0), pytest.raises(Stopped) as raised:
        go(flavour, main)
    stopped = raised.value
    assert isinstance(stopped, SystemExit)
    assert (stopped.code, stopped.reason) == (code, reason)
    assert stopped.report.clean
    assert [outcome.state for outcome in stopped.report.outcomes] == ["cancelled", "cancelled"]
    assert log == [reason, "tidy"]
    assert capsys.readouterr().err == f"stopping ({number.name})\n"


@in_process
def test_a_main_that_swallows_the_cancel_and_returns_is_stopped_all_the_same(flavour: str) -> None:
    async def main() -> str:
        signal.raise_signal(signal.SIGTERM)
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            pass
        return "a value"

    with pytest.raises(Stopped) as raised:
        go(flavour, main)
    assert raised.value.code == 143
    assert [outcome.state for outcome in raised.value.report.outcomes] == ["finished"]


@in_process
def test_a_main_that_fails_while_it_is_stopped_is_logged_and_the_cause(
    flavour: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = LookupError("in clean-up")

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await anyio.sleep(60)
        finally:
            raise error

    with pytest.raises(Stopped) as raised:
        go(flavour, main)
    assert raised.value.__cause__ is error
    assert raised.value.report.errors == [error]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


@in_process
def test_a_signal_while_all_is_ending_counts_too(flavour: str) -> None:
    async def child() -> None:
        try:
            await anyio.sleep(60)
        finally:
            signal.raise_signal(signal.SIGTERM)

    async def main() -> str:
        current_scope().spawn(child)
        await anyio.sleep(0.01)
        return "too late"

    with pytest.raises(Stopped) as raised:
        go(flavour, main)
    assert raised.value.code == 143


def test_a_signal_before_the_loop_runs_stops_main_before_its_first_step() -> None:
    log: list[str] = []

    def slow_factory() -> asyncio.AbstractEventLoop:
        signal.raise_signal(signal.SIGINT)
        return asyncio.new_event_loop()

    async def main() -> None:
        log.append("began")
        await asyncio.sleep(60)

    with at_most(0), pytest.raises(Stopped):
        run(main, loop_factory=slow_factory)
    assert log == []


@in_process
def test_a_second_signal_shortens_the_grace(flavour: str, capsys: pytest.CaptureFixture[str]) -> None:
    grace = Grace(cooperate=30, cancel=30, terminate=0.1, kill=0.1)

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(0.05)  # nobody is cancelled yet
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(60)

    with at_most(0.3), pytest.raises(Stopped) as raised:
        go(flavour, main, grace=grace)
    assert raised.value.code == 130
    assert raised.value.report.clean
    assert capsys.readouterr().err == "stopping (SIGINT)\nstopping within 0.2 s (SIGINT)\n"


def test_at_a_terminal_each_signal_says_what_the_next_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(60)

    with pytest.raises(Stopped) as raised:
        run(main)
    assert raised.value.code == 130
    assert terminal.getvalue() == (
        "stopping (SIGINT); press again to stop faster\nstopping within 2.0 s (SIGTERM); press again to exit now\n"
    )


@in_process_asyncio
def test_a_signal_inside_a_timeout_is_a_cancel_and_not_a_timeout(flavour: str) -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            async with asyncio.timeout(5), asyncio.timeout(4):
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(60)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    with pytest.raises(Stopped):
        go(flavour, main)
    assert seen == ["CancelledError"]


@in_process
def test_a_thread_in_progress_hears_the_signal_and_its_result_is_not_used(flavour: str) -> None:
    heard: list[Reason | None] = []

    def work() -> None:
        token = current_token()
        token.wait_sync(60)
        heard.append(token.reason)

    async def main() -> None:
        scope = current_scope()
        scope.spawn(to_thread, work)
        await anyio.sleep(0.02)
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(60)

    with at_most(0), pytest.raises(Stopped) as raised:
        go(flavour, main)
    assert raised.value.report.clean
    assert heard == [Reason("user", "SIGINT")]


@in_process
def test_the_handlers_from_before_are_restored(flavour: str) -> None:
    def custom(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, custom)
    try:
        sigint, sighup = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)

        async def main() -> bool:
            assert signal.getsignal(signal.SIGHUP) is not sighup
            return custom in (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))

        assert go(flavour, main) is False
        assert signal.getsignal(signal.SIGHUP) is sighup
        assert signal.getsignal(signal.SIGTERM) is custom
        assert signal.getsignal(signal.SIGINT) is sigint
    finally:
        signal.signal(signal.SIGTERM, before)


@in_process
def test_a_signal_that_is_ignored_stays_ignored(flavour: str) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:

        async def main() -> str:
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep(0.02)
            return "undisturbed"

        assert go(flavour, main) == "undisturbed"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGINT])
@in_process
def test_a_hang_up_that_comes_several_times_hurries_nothing(
    flavour: str, first: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        signal.raise_signal(first)
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        try:
            await anyio.sleep(60)
        finally:
            await tidy_up(0.1)
            print("tidy")

    with at_most(0.1), pytest.raises(Stopped) as raised:
        go(flavour, main, grace=Grace(cooperate=0, cancel=30, terminate=0.01, kill=0.01))
    assert raised.value.code == 128 + first
    assert raised.value.report.clean
    assert capsys.readouterr() == ("tidy\n", f"stopping ({first.name})\n")


@in_process
def test_a_hang_up_that_the_program_has_its_own_use_for_is_left_alone(flavour: str) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))
    try:

        async def main() -> str:
            signal.raise_signal(signal.SIGHUP)
            await anyio.sleep(0.02)
            return "undisturbed"

        assert go(flavour, main) == "undisturbed"
        assert heard == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


@in_process
def test_in_another_thread_it_works_without_signals(flavour: str) -> None:
    results: list[Any] = []

    async def main() -> object:
        await anyio.sleep(0.01)
        return signal.getsignal(signal.SIGINT)

    thread = threading.Thread(target=lambda: results.append(go(flavour, main)))
    thread.start()
    thread.join(10)
    assert results == [signal.getsignal(signal.SIGINT)]


@in_process_asyncio
def test_in_another_thread_what_refuses_is_named_and_left(
    flavour: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results: list[Any] = []

    async def refuses() -> None:
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    async def main() -> int:
        current_scope().spawn(refuses)
        await anyio.sleep(0.01)
        return 5

    thread = threading.Thread(target=lambda: results.append(go(flavour, main, grace=SHORT)))
    with at_most(SHORT.total):
        thread.start()
        thread.join(10)
    assert results == [5]
    assert "refuses', stuck at tests/kernel/test_run.py" in capsys.readouterr().err


# Bad use --------------------------------------------------------------------------------------------------------


async def a_main() -> None:
    pytest.fail("must not run")


def test_a_coroutine_instead_of_a_function_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"write run\(a_main, ...\) instead of run\(a_main\(...\)\)"):
        run(a_main())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="run takes an async function, not NoneType"):
        run(None)  # type: ignore[arg-type]


@in_process
def test_a_sync_main_is_told_so(flavour: str) -> None:
    with pytest.raises(TypeError, match=r"an async function is wanted here, and .*lambda> is not one"):
        go(flavour, lambda: None)


async def test_inside_a_running_loop_it_says_what_to_do_instead() -> None:
    backend = "trio" if trio.lowlevel.in_trio_run() else "asyncio"
    with pytest.raises(RuntimeError, match=f"{backend} is already running in this thread: await main"):
        run(a_main)


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="one of 'asyncio', 'trio', not 'curio'"):
        run(a_main, backend="curio")  # type: ignore[arg-type]


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        run(a_main, uvloop=True, loop_factory=asyncio.new_event_loop)
    for options in ({"uvloop": True}, {"loop_factory": asyncio.new_event_loop}, {"debug": True}):
        with pytest.raises(ValueError, match="they do not go with backend"):
            run(a_main, backend="trio", **options)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(ImportError, match=r"pip install 'quiesce\[uvloop\]'"):
        run(a_main, uvloop=True)
    monkeypatch.setitem(sys.modules, "quiesce.kernel.program.on_trio", None)
    with pytest.raises(ImportError, match=r"pip install 'quiesce\[trio\]'"):
        run(a_main, backend="trio")


@on_asyncio
def test_debug_is_asyncios(flavour: str) -> None:
    async def main() -> bool:
        return asyncio.get_running_loop().get_debug()

    assert run(main, uvloop=flavour == "uvloop", debug=True) is True
    assert run(main, uvloop=flavour == "uvloop", debug=False) is False
