"""Demand 11: `run`. First signal graceful, second faster, third now; everything settled, exit in bounded time."""

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
from quiesce.kernel._run import Stopped, run
from quiesce.kernel._thread import to_thread
from tests.kernel.processes import is_gone
from tests.kernel.programs import program
from tests.kernel.temperaments import sleeper, tidy_up

SLACK = 1.5  # seconds that a loaded machine may take for the end of a process
SHORT = Grace(cooperate=0, cancel=0.1, terminate=0.03, kill=0.03)
ON_ASYNCIO = ["asyncio", "uvloop"]
EVERYWHERE = [*ON_ASYNCIO, "trio"]
IN_PROCESS = [*EVERYWHERE, "asyncio-eager"] if sys.version_info >= (3, 12) else EVERYWHERE

everywhere = pytest.mark.parametrize("flavour", EVERYWHERE)
on_asyncio = pytest.mark.parametrize("flavour", ON_ASYNCIO)
on_two = pytest.mark.parametrize("flavour", ["asyncio", "trio"])
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
            await anyio.sleep(5)
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
        await anyio.sleep(5)

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


# Other people's things on asyncio -------------------------------------------------------------------------------


@in_process_asyncio
def test_other_peoples_tasks_are_cancelled_once_after_the_scopes_and_drained(flavour: str) -> None:
    log: list[str] = []

    async def foreign() -> None:
        try:
            await asyncio.sleep(5)
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
            await asyncio.sleep(5)
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
            await asyncio.sleep(5)
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
def test_somebody_who_stops_the_loop_stops_the_program(flavour: str) -> None:
    log: list[str] = []

    async def main() -> None:
        try:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(5)
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
    ],
)
def test_a_signal_stops_everything_with_its_reason(
    flavour: str, number: signal.Signals, code: int, reason: Reason, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[Any] = []

    async def child() -> None:
        try:
            await anyio.sleep(5)
        finally:
            log.append(current_token().reason)
            await tidy_up(0.02)
            log.append("tidy")

    async def main() -> None:
        current_scope().spawn(child)
        await anyio.sleep(0.01)
        signal.raise_signal(number)
        await anyio.sleep(5)

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
            await anyio.sleep(5)
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
            await anyio.sleep(5)
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
            await anyio.sleep(5)
        finally:
            signal.raise_signal(signal.SIGTERM)

    async def main() -> str:
        current_scope().spawn(child)
        await anyio.sleep(0.01)
        return "too late"

    with pytest.raises(Stopped) as raised:
        go(flavour, main)
    assert raised.value.code == 143


def test_a_signal_before_the_loop_runs_stops_main_at_its_first_await() -> None:
    log: list[str] = []

    def slow_factory() -> asyncio.AbstractEventLoop:
        signal.raise_signal(signal.SIGINT)
        return asyncio.new_event_loop()

    async def main() -> None:
        log.append("began")
        await asyncio.sleep(5)

    with at_most(0), pytest.raises(Stopped):
        run(main, loop_factory=slow_factory)
    assert log in ([], ["began"])


@in_process
def test_a_second_signal_shortens_the_grace(flavour: str, capsys: pytest.CaptureFixture[str]) -> None:
    grace = Grace(cooperate=30, cancel=30, terminate=0.1, kill=0.1)

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(0.05)  # nobody is cancelled yet
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(5)

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
        await asyncio.sleep(5)

    with pytest.raises(Stopped) as raised:
        run(main)
    assert raised.value.code == 130
    assert terminal.getvalue() == (
        "stopping (SIGINT); press again to hurry\nstopping within 2.0 s (SIGTERM); press again to end now\n"
    )


@in_process_asyncio
def test_a_signal_inside_a_timeout_is_a_cancel_and_not_a_timeout(flavour: str) -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            async with asyncio.timeout(5), asyncio.timeout(4):
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(5)
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
        token.wait_sync(5)
        heard.append(token.reason)

    async def main() -> None:
        scope = current_scope()
        scope.spawn(to_thread, work)
        await anyio.sleep(0.02)
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(5)

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
            assert signal.getsignal(signal.SIGHUP) is sighup
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


# Whole programs, real signals -----------------------------------------------------------------------------------


@everywhere
def test_a_program_cleans_up_after_ctrl_c_and_exits_with_130(flavour: str) -> None:
    with program(
        flavour,
        """
        async def child():
            try:
                await sleep(100)
            finally:
                await tidy(0.1)
                print("child is tidy,", current_token().reason)

        async def main():
            current_scope().spawn(child)
            await sleep(0)
            ready()
            await sleep(100)

        go(main)
        """,
    ) as running:
        running.send(signal.SIGINT)
        ended = running.wait()
    assert ended.status == 130
    assert ended.stdout == "child is tidy, user: SIGINT\n"
    assert ended.stderr == "stopping (SIGINT)\n"
    assert ended.seconds < 0.1 + SLACK


@everywhere
def test_a_main_that_refuses_is_named_and_the_status_is_that_of_the_signal(flavour: str) -> None:
    with program(
        flavour,
        """
        async def main():
            ready()
            await refuses()

        go(main)
        """,
    ) as running:
        running.send(signal.SIGTERM)
        ended = running.wait()
    assert ended.status == 143
    assert 0.5 <= ended.seconds < 1.1 + SLACK
    assert "left: task 'main', stuck at" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "destroyed" not in ended.stderr
    assert "ignored" not in ended.stderr


@everywhere
def test_a_blocked_event_loop_is_ended_with_the_process_and_named(flavour: str) -> None:
    with program(
        flavour,
        """
        async def child():
            ready()
            print("not flushed")
            for _ in range(1000):
                time.sleep(0.1)

        async def main():
            current_scope().spawn(child)
            await sleep(100)

        go(main)
        """,
    ) as running:
        running.send(signal.SIGTERM)
        ended = running.wait()
    assert ended.status == 143
    assert 0.5 <= ended.seconds < 1.1 + SLACK
    assert "the event loop's thread is at <string>" in ended.stderr
    assert "in child" in ended.stderr
    assert ended.stdout == "not flushed\n"


@on_two
def test_a_second_signal_is_quicker_and_a_third_is_at_once(flavour: str) -> None:
    text = """
        async def main():
            ready()
            print("not flushed")
            await refuses()

        go(main, grace=Grace(0, 60, {0}, {0}))
        """
    with program(flavour, text.format(0.1)) as running:
        running.send(signal.SIGINT, signal.SIGINT)
        ended = running.wait()
    assert ended.status == 130
    assert 0.2 <= ended.seconds < 1.0 + SLACK
    assert "stopping (SIGINT)\nstopping within 0.2 s (SIGINT)\nscope 'root'" in ended.stderr

    with program(flavour, text.format(60)) as running:
        running.send(signal.SIGINT, signal.SIGINT, signal.SIGTERM)
        ended = running.wait()
    assert ended.status == 143
    assert ended.seconds < 0.2 + SLACK
    assert "ending now (SIGTERM)\nscope 'root' stopped (user: SIGINT)" in ended.stderr
    assert "left: task 'main'" in ended.stderr
    assert ended.stdout == "not flushed\n"


@on_two
def test_a_blocked_event_loop_can_be_ended_by_hand(flavour: str) -> None:
    with program(
        flavour,
        """
        async def main():
            ready()
            time.sleep(100)

        go(main, grace=Grace(cancel=60))
        """,
    ) as running:
        running.send(signal.SIGINT, signal.SIGINT, signal.SIGINT)
        ended = running.wait()
    assert ended.status == 130
    assert ended.seconds < 0.2 + SLACK


@on_two
def test_a_thread_that_does_not_end_is_named_and_does_not_hold_up_the_exit(flavour: str) -> None:
    with program(
        flavour,
        """
        def stuck():
            ready()
            time.sleep(100)

        async def main():
            await to_thread(stuck)

        go(main)
        """,
    ) as running:
        running.send(signal.SIGINT)
        ended = running.wait()
    assert ended.status == 130
    assert 0.5 <= ended.seconds < 0.5 + SLACK
    assert "1 cancelled, 1 still running, 1 left" in ended.stderr
    assert "left: thread 'stuck', stuck at <string>" in ended.stderr


@on_two
def test_a_foreign_thread_cannot_keep_the_program_from_exiting(flavour: str) -> None:
    text = """
        def stuck():
            time.sleep(100)

        async def main():
            threading.Thread(target=stuck, name="foreign").start()
            ready()
            await sleep({0})

        go(main)
        """
    with program(flavour, text.format(100)) as running:
        running.send(signal.SIGINT)
        ended = running.wait()
    assert ended.status == 130
    assert 0.5 <= ended.seconds < 0.5 + SLACK
    assert "left: thread 'foreign', stuck at <string>" in ended.stderr

    with program(flavour, text.format(0)) as running:
        ended = running.wait()
    assert ended.status == 1
    assert ended.seconds < 0.5 + SLACK
    assert "left: thread 'foreign', stuck at <string>" in ended.stderr


def test_foreign_threads_that_end_in_time_and_idle_pools_are_nobodys_business() -> None:
    with program(
        "asyncio",
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor()

        async def main():
            threading.Thread(target=time.sleep, args=(0.2,)).start()
            pool.submit(int).result()
            ready()
            return 7

        sys.exit(go(main))
        """,
    ) as running:
        ended = running.wait()
    assert (ended.status, ended.stderr) == (7, "")


def test_a_stuck_executor_thread_is_named_and_the_program_exits() -> None:
    with program(
        "uvloop",
        """
        def stuck():
            ready()
            time.sleep(100)

        async def main():
            await asyncio.to_thread(stuck)

        go(main)
        """,
    ) as running:
        running.send(signal.SIGTERM)
        ended = running.wait()
    assert ended.status == 143
    assert ended.seconds < 0.6 + SLACK
    assert "left: thread 'asyncio_0', stuck at <string>" in ended.stderr


def test_clean_up_that_blocks_the_loop_is_bounded_without_a_signal_too() -> None:
    with program(
        "asyncio",
        """
        async def child():
            try:
                await sleep(100)
            finally:
                time.sleep(100)

        async def main():
            current_scope().spawn(child)
            await sleep(0)
            ready()

        go(main)
        """,
    ) as running:
        ended = running.wait()
    assert ended.status == 1
    assert ended.seconds < 1.1 + SLACK
    assert "stopped (shutdown: main has ended)" in ended.stderr
    assert "the event loop's thread is at <string>" in ended.stderr


def test_a_refusing_child_is_left_behind_on_asyncio_and_mains_result_returned() -> None:
    with program(
        "asyncio",
        """
        async def main():
            current_scope().spawn(refuses)
            await sleep(0)
            ready()
            return 5

        print(go(main))
        """,
    ) as running:
        ended = running.wait()
    assert (ended.status, ended.stdout) == (0, "5\n")
    assert "left: task 'refuses', stuck at <string>" in ended.stderr
    assert ended.stderr.count("\n") == 2
    assert ended.seconds < 0.5 + SLACK


def test_a_refusing_task_on_trio_ends_with_the_process_and_mains_error_is_not_lost() -> None:
    with program(
        "trio",
        """
        async def main():
            current_scope().spawn(refuses)
            await sleep(0)
            ready()
            raise LookupError("what main raised")

        go(main)
        """,
    ) as running:
        ended = running.wait()
    assert ended.status == 1
    assert "LookupError: what main raised" in ended.stderr
    assert "left: task 'refuses', stuck at <string>" in ended.stderr
    assert ended.seconds < 1.1 + SLACK


@on_two
def test_the_end_of_a_blocked_program_is_the_end_of_its_process_trees(flavour: str) -> None:
    with program(
        flavour,
        """
        from quiesce.kernel._process import Process

        async def main():
            process = await Process.open([sys.executable, "-c", "import time; time.sleep(100)"])
            ready()
            print(process.pid, flush=True)
            time.sleep(100)

        go(main)
        """,
    ) as running:
        pid = int(running.wait_for_line())
        assert not is_gone(pid)
        running.send(signal.SIGINT)
        ended = running.wait()
    assert ended.status == 130
    assert is_gone(pid)


def test_a_forked_child_has_the_signals_of_before() -> None:
    with program(
        "asyncio",
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)

        async def main():
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(writer, b"!")
                time.sleep(100)
            os.read(reader, 1)  # what comes before that, Python itself throws away
            os.kill(pid, signal.SIGTERM)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            ready()
            return status

        print(go(main))
        """,
    ) as running:
        ended = running.wait()
    assert ended.stdout == f"{-signal.SIGTERM}\n"


def test_whoever_catches_stopped_goes_on() -> None:
    with program(
        "asyncio",
        """
        async def main():
            ready()
            await sleep(100)

        try:
            go(main)
        except Stopped as stopped:
            print(stopped.code, stopped.reason, stopped.report.clean)
        time.sleep(1)
        print("still here")
        """,
    ) as running:
        running.send(signal.SIGINT)
        ended = running.wait()
    assert (ended.status, ended.stdout) == (0, "130 user: SIGINT True\nstill here\n")


def test_a_full_pipe_behind_stderr_does_not_hold_up_the_exit() -> None:
    with program(
        "asyncio",
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            pass
        os.set_blocking(writer, True)
        os.dup2(writer, 2)

        async def main():
            ready()
            await sleep(100)

        go(main)
        """,
    ) as running:
        running.send(signal.SIGTERM)
        ended = running.wait()
    assert ended.status == 143
    assert ended.seconds < 1.6 + SLACK


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
    with pytest.raises(TypeError) as raised:
        go(flavour, lambda: None)
    assert "is not an async function" in "".join(raised.value.__notes__)


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
    monkeypatch.setitem(sys.modules, "quiesce.kernel._program_trio", None)
    with pytest.raises(ImportError, match=r"pip install 'quiesce\[trio\]'"):
        run(a_main, backend="trio")


@on_asyncio
def test_debug_is_asyncios(flavour: str) -> None:
    async def main() -> bool:
        return asyncio.get_running_loop().get_debug()

    assert run(main, uvloop=flavour == "uvloop", debug=True) is True
    assert run(main, uvloop=flavour == "uvloop", debug=False) is False
