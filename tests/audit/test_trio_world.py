"""The audit on trio: the same stops and findings as on asyncio, as far as trio has what they are about."""

from __future__ import annotations

import logging
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from trio._core import _run, _thread_cache
from trio.testing import open_stream_to_socket_listener

from quiesce.audit import AuditResult, Limits, audit

# For what ends by itself: to wait longer for it on a busy machine costs nothing.
PATIENT = Limits(hang_after=60, linger=10)

log: list[Any] = []


@pytest.fixture(autouse=True)
def empty_log() -> None:
    log.clear()


def audited(scenario: Callable[[], Any], **options: Any) -> AuditResult:
    return audit(scenario, backend="trio", **options)


def kinds(result: AuditResult) -> set[tuple[str, str]]:
    return {(finding.kind, finding.what) for finding in result.findings}


def marks(result: AuditResult) -> dict[str, str]:
    return {strip.name: strip.marks for strip in result.strips}


# Programs that are as they should be


async def nursery() -> None:
    async with trio.open_nursery() as nursery:
        for delay in range(3):
            nursery.start_soon(trio.sleep, delay)


async def timeouts_of_its_own() -> None:
    with trio.move_on_after(1):
        await trio.sleep(5)
    try:
        with trio.fail_after(1):
            await trio.sleep(5)
    except trio.TooSlowError:
        await trio.sleep(1)


async def channel() -> None:
    send, receive = trio.open_memory_channel[int](0)

    async def produce() -> None:
        async with send:
            for number in range(2):
                await send.send(number)

    async with trio.open_nursery() as nursery, receive:
        nursery.start_soon(produce)
        async for _ in receive:
            pass


async def nested_scopes() -> None:
    with trio.CancelScope() as outer, trio.CancelScope(), trio.move_on_after(3):
        await trio.sleep(1)
        outer.cancel()
        await trio.sleep(1)
    await trio.sleep(1)


async def shielded_clean_up() -> None:
    try:
        await trio.sleep(1)
    finally:
        with trio.move_on_after(2, shield=True):
            await trio.sleep(1)


async def a_child_that_starts() -> None:
    async def serve(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await trio.sleep(1)
        task_status.started()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        nursery.cancel_scope.cancel()


async def numbers() -> AsyncIterator[int]:
    try:
        for number in range(2):
            await trio.sleep(1)
            yield number
    finally:
        with trio.move_on_after(1, shield=True):
            await trio.sleep(0.1)


async def closed_generator() -> None:
    async with aclosing(numbers()) as stream:  # type: ignore[type-var]
        async for _ in stream:
            break


async def anyio_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 2)
        await anyio.sleep(1)


@asynccontextmanager
async def connection() -> AsyncIterator[None]:
    await trio.sleep(1)
    try:
        yield
    finally:
        await trio.lowlevel.checkpoint()


async def events_and_locks() -> None:
    lock, event = trio.Lock(), trio.Event()

    async def worker() -> None:
        async with lock:
            await event.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(worker)
        await trio.testing.wait_all_tasks_blocked()
        event.set()


@pytest.mark.parametrize(
    "scenario",
    [
        nursery,
        timeouts_of_its_own,
        channel,
        nested_scopes,
        shielded_clean_up,
        a_child_that_starts,
        numbers,
        closed_generator,
        anyio_group,
        connection,
        events_and_locks,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_a_program_that_is_as_it_should_be_has_no_findings_under_any_stop(
    scenario: Callable[[], Any],
) -> None:
    result = audited(scenario, stops="all", depth=2)
    result.assert_clean()
    assert not result.findings, str(result)
    assert "?" not in "".join(marks(result).values())
    assert result.is_complete


# Programs that are not


async def poll() -> None:
    await trio.sleep_forever()


async def leaves_a_system_task() -> None:
    trio.lowlevel.spawn_system_task(poll)
    await trio.sleep(1)


async def brief() -> None:
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()


async def leaves_a_brief_system_task() -> None:
    await trio.sleep(1)
    trio.lowlevel.spawn_system_task(brief)


async def leaves_a_slow_system_task() -> None:
    trio.lowlevel.spawn_system_task(trio.sleep, 5)
    await trio.sleep(1)


async def leaves_a_task_with_its_parent() -> None:
    parent = trio.lowlevel.current_task().parent_nursery
    assert parent is not None
    parent.start_soon(trio.sleep, 5)
    await trio.sleep(1)


async def swallows() -> None:
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        pass


async def raises_instead() -> None:
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        raise ValueError("no time") from None


async def hangs_in_clean_up() -> None:
    try:
        await trio.sleep(1)
    finally:
        with trio.CancelScope(shield=True):
            if sys.exc_info()[0] is not None:
                await trio.sleep_forever()


async def never_stops_trying() -> None:
    while True:
        try:
            return await trio.sleep(1)
        except trio.Cancelled:
            pass


async def drops_a_generator() -> None:
    async for _ in numbers():
        break
    await trio.sleep(1)


kept: list[Any] = []


async def keeps_a_generator() -> None:
    kept[:] = [numbers()]
    await anext(kept[0])
    await trio.sleep(1)


async def fails_in_a_system_task() -> None:
    async def report() -> None:
        raise ValueError("no network")

    try:
        await trio.sleep(1)
    except trio.Cancelled:
        trio.lowlevel.spawn_system_task(report)
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        raise


async def cancels_the_nursery_it_is_in() -> None:
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        parent = trio.lowlevel.current_task().parent_nursery
        assert parent is not None
        parent.cancel_scope.cancel()
        raise


async def leaves_scopes_in_the_wrong_order() -> None:
    scope = trio.CancelScope()
    scope.__enter__()
    await trio.sleep(1)
    scope.__exit__(None, None, None)


async def forgets_to_await() -> None:
    later = brief()
    await trio.sleep(1)
    await later


FEW_STEPS = Limits(settle_steps=200)
LEAKY: list[tuple[Callable[[], Any], str, str, str]] = [
    (leaves_a_system_task, "leaked", "poll", "baseline"),
    (leaves_a_brief_system_task, "outlived", "brief", "baseline"),
    (leaves_a_slow_system_task, "late", "sleep", "baseline"),
    (leaves_a_task_with_its_parent, "late", "sleep", "baseline"),
    (swallows, "swallowed", "swallows", "cancel/early"),
    (raises_instead, "replaced", "raises_instead", "cancel/early"),
    (hangs_in_clean_up, "hang", "hangs_in_clean_up", "cancel/early"),
    (never_stops_trying, "hang", "never_stops_trying", "cancel/early"),
    (drops_a_generator, "generator", "numbers", "baseline"),
    (keeps_a_generator, "generator", "numbers", "baseline"),
    (fails_in_a_system_task, "crash", "fails_in_a_system_task", "cancel/early"),
    (cancels_the_nursery_it_is_in, "bystander", "a task of somebody else", "cancel/early"),
    (leaves_scopes_in_the_wrong_order, "replaced", "leaves_scopes_in_the_wrong_order", "cancel/early"),
    (forgets_to_await, "unawaited", "brief", "cancel/early"),
]


@pytest.mark.parametrize(
    ("scenario", "kind", "what", "where"), LEAKY, ids=[scenario.__name__ for scenario, *_ in LEAKY]
)
def test_what_is_left_is_found_once_and_for_what_it_is(
    scenario: Callable[[], Any], kind: str, what: str, where: str
) -> None:
    result = audited(scenario, limits=FEW_STEPS)
    assert result.verdict == "FINDINGS"
    assert kinds(result) == {(kind, what)}, str(result)
    assert where in result.findings[0].strips


@pytest.mark.parametrize("scenario", [scenario for scenario, *_ in LEAKY], ids=lambda s: s.__name__)
def test_no_run_touches_the_next(scenario: Callable[[], Any]) -> None:
    result = audited(scenario, stops="cancel", again=True, limits=FEW_STEPS)
    assert not any(finding.kind == "again" for finding in result.findings), str(result)
    audited(nursery).assert_clean()


def test_a_finding_says_where_it_was_made_and_where_it_is_stuck() -> None:
    (finding,) = audited(leaves_a_system_task).findings
    assert finding.site is not None
    assert finding.site.function == "leaves_a_system_task"
    assert [place.function for place in finding.example.stuck_at] == ["poll", "sleep_forever"]


def test_an_error_in_a_system_task_is_told_with_the_error_itself() -> None:
    (finding,) = audited(fails_in_a_system_task).findings
    assert "ValueError: no network" in finding.example.detail
    assert finding.example.stuck_at[-1].function == "fails_in_a_system_task.<locals>.report"


# The stops


async def writes_down_what_it_gets() -> None:
    log.append("began")
    try:
        await trio.sleep(1)
        log.append("slept")
        await trio.sleep(1)
    except BaseException as error:
        log.append(type(error).__name__)
        raise


def what_happened(**options: Any) -> list[str]:
    """In the one run that the options leave, which is the last but the one that shows that it still runs."""
    log.clear()
    audited(writes_down_what_it_gets, **options)
    plain = ["began", "slept"]
    runs = " ".join(log).split("began")[1:]
    return [("began" + run).split() for run in runs if ("began" + run).split() != plain][-1]


def test_an_early_cancel_takes_away_what_the_task_waits_for() -> None:
    assert what_happened(stops="cancel", phases="early", sample=1) in (
        ["began", "Cancelled"],
        ["began", "slept", "Cancelled"],
    )
    result = audited(writes_down_what_it_gets, stops="cancel", phases="early")
    assert [str(cell.points[0]) for cell in result.strips[0].cells] == [
        "early/writes_down_what_it_gets:1",
        "early/writes_down_what_it_gets:2",
    ]


def test_a_late_cancel_comes_when_the_result_is_in() -> None:
    async def scenario() -> None:
        event = trio.Event()

        async def set_it() -> None:
            event.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_it)
            await event.wait()
            log.append("got it")
            await trio.sleep(1)
            log.append("not stopped")

    result = audited(scenario, stops="cancel", phases="late")
    plain = ["got it", "not stopped"]
    # As it resumed from the event, from the sleep and from the nursery; then once more, to see that it still runs.
    assert [*log] == [*plain, *plain, "got it", "got it", *plain, *plain]
    assert marks(result) == {"cancel/late": "..."}


def test_a_task_cancelled_before_its_first_step_still_runs_up_to_its_first_checkpoint() -> None:
    assert what_happened(stops="cancel", phases="unstarted") == ["began", "Cancelled"]


def test_a_scope_and_a_timeout_are_cancels_that_must_end_inside() -> None:
    assert what_happened(stops="scope", phases="early", sample=1)[-1] == "Cancelled"
    assert what_happened(stops="timeout", phases="early", sample=1)[-1] == "Cancelled"
    swallowing = audited(swallows, stops="scope,timeout")
    assert kinds(swallowing) == {("swallowed", "swallows")}
    assert marks(swallowing) == {
        "scope/early": "X",
        "scope/late": "X",
        "timeout/early": "X",
        "timeout/late": "X",
    }


def test_a_scenario_without_a_checkpoint_left_may_finish_in_a_cancelled_scope() -> None:
    async def scenario() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        log.append("done")

    audited(scenario, stops="cancel,scope,timeout").assert_clean()


def test_raise_fails_what_comes_from_outside_and_nothing_else() -> None:
    async def scenario() -> None:
        lock = trio.Lock()
        async with lock, trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)
        try:
            await trio.sleep(1)
        except OSError as error:
            log.append(str(error))

    result = audited(scenario, stops="raise")
    assert log == ["the audit made this fail"]
    assert [len(strip.cells) for strip in result.strips] == [1]


def test_descendant_cancels_the_scope_nearest_to_a_task_and_only_warns() -> None:
    async def child() -> None:
        with trio.CancelScope() as scope:
            await trio.sleep(1)
        log.append("its own scope" if scope.cancelled_caught else "nothing")

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        await trio.sleep(1)
        log.append("the root went on")

    result = audited(scenario, stops="descendant", phases="early")
    assert log == ["nothing", "the root went on"] * 2 + ["its own scope", "the root went on"] + [
        "nothing",
        "the root went on",
    ]
    assert all(finding.severity == "warning" for finding in result.findings)


def test_a_second_stop_comes_from_further_out() -> None:
    async def scenario() -> None:
        try:
            await trio.sleep(1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                await trio.sleep(1)

    result = audited(scenario, stops="timeout", phases="early", depth=2)
    result.assert_clean()
    assert len(marks(result)["timeout/early/depth 2"]) > 2


async def holds_a_nursery() -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 100)
        yield 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("stop", ["close", "drop"])
def test_a_generator_that_holds_a_nursery_cannot_be_closed_elsewhere_and_the_next_run_is_not_touched(
    stop: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = audited(holds_a_nursery, stops=f"{stop},cancel")
    assert marks(result)[f"{stop}/early"] == ".X"
    assert set(marks(result)["cancel/early"]) == {"."}
    (finding,) = result.findings
    assert (finding.kind, finding.what) == ("close", "holds_a_nursery")
    assert "the task that entered it" in finding.example.detail or "corrupted" in finding.example.detail
    assert capfd.readouterr().err == ""


def test_close_and_drop_run_the_generators_own_clean_up() -> None:
    async def scenario() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append("cleaned up")

    for stop in ("close", "drop"):
        log.clear()
        audited(scenario, stops=stop).assert_clean()
        assert log.count("cleaned up") >= 3  # two baselines, and where it was held


def test_a_clean_up_that_fails_when_closed_elsewhere_is_told() -> None:
    async def scenario() -> AsyncIterator[int]:
        try:
            yield 1
        except GeneratorExit:
            raise ValueError("cannot close") from None

    close = audited(scenario, stops="close")
    assert [(f.kind, f.example.detail) for f in close.findings] == [("close", "ValueError: cannot close")]
    drop = audited(scenario, stops="drop")
    assert [f.example.detail for f in drop.findings] == ["closing it failed: ValueError: cannot close"]


# Hangs


def test_a_hang_is_told_at_once_and_where() -> None:
    started = time.monotonic()
    result = audited(hangs_in_clean_up, stops="cancel", limits=PATIENT)
    assert time.monotonic() - started < 15
    (finding,) = result.findings
    assert [place.function for place in finding.example.stuck_at] == ["hangs_in_clean_up", "sleep_forever"]


def test_an_hour_takes_no_time() -> None:
    started = time.monotonic()
    audited(partial(trio.sleep, 3600), name="an hour").assert_clean()
    assert time.monotonic() - started < 15


def test_a_scenario_that_hangs_by_itself_is_broken() -> None:
    result = audited(poll)
    assert result.verdict == "BASELINE-BROKEN"
    assert "nothing can run any more" in result.reason
    assert "poll" in result.reason


def test_a_scenario_that_never_ends_is_broken() -> None:
    async def spins() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    result = audited(spins, limits=Limits(steps=500))
    assert result.verdict == "BASELINE-BROKEN"
    assert "never ends" in result.reason


# The same each time


def as_dict(result: AuditResult) -> dict[str, Any]:
    return {**result.as_dict(), "seconds": 0}


async def many() -> None:
    async def worker(number: int) -> None:
        for _ in range(2):
            await trio.lowlevel.checkpoint()
            log.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(worker, number)
    trio.lowlevel.spawn_system_task(poll)


def test_two_sweeps_come_to_the_same() -> None:
    assert as_dict(audited(many, stops="all")) == as_dict(audited(many, stops="all"))


def test_a_seed_steps_the_tasks_in_another_order_and_the_same_each_time() -> None:
    orders: dict[int | None, tuple[int, ...]] = {}
    for seed in (None, 1, 2, 1):
        log.clear()
        result = audited(many, stops="cancel", phases="unstarted", seed=seed)
        assert result.verdict == "FINDINGS"
        order = tuple(log[:8])
        assert log[8:16] == list(order)
        assert orders.setdefault(seed, order) == order
    assert len(set(orders.values())) > 1


def test_a_token_makes_one_run_again() -> None:
    finding = next(f for f in audited(many, stops="cancel").findings)
    example = next(f.example for f in audited(swallows, stops="cancel").findings)
    assert finding.example.token == ""  # nobody stopped that
    result = audited(swallows, at=example.token)
    assert kinds(result) == {("swallowed", "swallows")}
    assert [strip.marks for strip in result.strips] == ["X"]


def test_a_token_of_another_program_is_unresolved() -> None:
    token = next(f.example.token for f in audited(swallows, stops="cancel", phases="early").findings)
    result = audited(raises_instead, at=token, name="swallows")
    assert result.verdict == "UNRESOLVED"


def test_a_timeline_shows_who_is_left() -> None:
    result = audited(leaves_a_system_task, stops="cancel", timelines=True)
    (drawn,) = {timeline for token, timeline in result.timelines.items() if token == ""}
    ends = {lane.label: lane.end for lane in drawn.lanes}
    assert ends["poll"] is None
    assert ends["leaves_a_system_task"] is not None


# The user's own check


async def nothing_much() -> None:
    await trio.sleep(1)


async def never() -> None:
    await trio.sleep_forever()


async def in_a_while() -> bool:
    await trio.sleep(30)
    return bool(log)


def says_yes() -> bool:
    return True


def says_nothing() -> None:
    pass


def says_zero() -> int:
    return 0


def fails() -> None:
    raise AssertionError("a slot is gone")


@pytest.mark.parametrize(
    ("check", "detail"),
    [
        (says_yes, None),
        (says_nothing, None),
        (says_zero, "it returned 0"),
        (fails, "a slot is gone"),
        (in_a_while, "it returned False"),
        (never, "it never ends"),
    ],
)
def test_the_users_check_is_asked_after_each_run(check: Callable[[], Any], detail: str | None) -> None:
    result = audited(nothing_much, stops="cancel", check=check)
    assert [f.example.detail for f in result.findings] == ([] if detail is None else [detail]), str(result)


# The outside


async def works_in_a_thread() -> None:
    await trio.to_thread.run_sync(time.sleep, 0.001)


async def waits_for_a_plain_thread() -> None:
    done, token = trio.Event(), trio.lowlevel.current_trio_token()

    def work() -> None:
        time.sleep(0.1)
        try:
            token.run_sync_soon(done.set)
        except trio.RunFinishedError:
            pass

    threading.Thread(target=work, name="plain").start()
    await done.wait()


async def connects() -> None:
    with trio.socket.socket() as opened:
        await opened.connect(("127.0.0.1", 9))


async def starts_a_process() -> None:
    subprocess.Popen(["true"])  # noqa: ASYNC220 # refused
    await trio.sleep(1)


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        (works_in_a_thread, "it runs sleep in a thread"),
        (waits_for_a_plain_thread, "it waits for the thread plain"),
        (connects, "it opens a connection to 127.0.0.1:9"),
        (starts_a_process, "it starts the process true"),
    ],
)
def test_the_outside_is_refused_unless_asked_for(scenario: Callable[[], Any], reason: str) -> None:
    result = audited(scenario)
    assert result.verdict == "BASELINE-BROKEN"
    assert reason in result.reason
    assert "--real-io" in result.reason
    for thread in threading.enumerate():
        if thread.name == "plain":
            thread.join()


async def serves() -> None:
    async def echo(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(await stream.receive_some())

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
        async with await open_stream_to_socket_listener(listeners[0]) as stream:
            await stream.send_all(b"hello")
            assert await stream.receive_some() == b"hello"
        nursery.cancel_scope.cancel()


async def waits_for_a_process() -> None:
    await trio.run_process(["sleep", "0.01"])


@pytest.mark.parametrize(
    "scenario", [works_in_a_thread, serves, waits_for_a_process], ids=lambda s: s.__name__
)
def test_with_real_io_threads_sockets_and_processes_are_waited_for(scenario: Callable[[], Any]) -> None:
    audited(scenario, real_io=True, stops="cancel", limits=PATIENT).assert_clean()


def test_a_thread_left_behind_is_found_even_if_the_pool_had_it_before() -> None:
    made: list[threading.Event] = []

    async def scenario() -> None:
        await trio.to_thread.run_sync(time.sleep, 0.001)
        let_go = threading.Event()
        made.append(let_go)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.to_thread.run_sync, let_go.wait, 60, abandon_on_cancel=True))
            await trio.sleep(0.01)
            let_go.set()

    try:
        result = audited(scenario, real_io=True, stops="cancel", phases="early", limits=Limits(linger=0.02))
    finally:
        for let_go in made:
            let_go.set()
    assert {finding.kind for finding in result.findings} == {"thread"}, str(result)


def test_a_process_left_behind_is_found_though_a_worker_thread_started_it() -> None:
    made: list[subprocess.Popen[Any]] = []

    async def scenario() -> None:
        process = await trio.to_thread.run_sync(partial(subprocess.Popen, ["sleep", "60"]))
        made.append(process)
        await trio.sleep(1)
        process.kill()
        process.wait()

    try:
        result = audited(scenario, real_io=True, stops="cancel", phases="late", limits=Limits(hang_after=10))
        assert "process" in {finding.kind for finding in result.findings}, str(result)
    finally:
        for process in made:
            process.kill()
            process.wait()


# The process


def test_nothing_of_trio_or_python_is_changed_afterwards() -> None:
    def state() -> list[Any]:
        return [
            _run._r,
            _run._ALLOW_DETERMINISTIC_SCHEDULING,
            _thread_cache.THREAD_CACHE,
            sys.get_asyncgen_hooks(),
            list(logging.getLogger("trio.async_generator_errors").filters),
            socket.socket.connect,
        ]

    before, threads = state(), set(threading.enumerate())
    audited(holds_a_nursery)
    audited(fails_in_a_system_task)
    audited(hangs_in_clean_up)
    assert state() == before
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end at any time
    trio.run(trio.lowlevel.checkpoint)


def test_a_scenario_may_use_random_numbers() -> None:
    async def scenario() -> None:
        log.append(random.random())
        await trio.sleep(random.random())

    audited(scenario).assert_clean()
    assert len(set(log)) == 1


def test_it_cannot_be_called_inside_a_run_of_trio() -> None:
    async def main() -> None:
        audited(nothing_much)

    with pytest.raises(RuntimeError, match="call it from a plain function"):
        trio.run(main)


def test_a_trio_that_is_built_differently_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_run.Deadlines, "next_deadline")
    with pytest.raises(RuntimeError, match=r"uses Deadlines.next_deadline, which trio .* does not have"):
        audited(nothing_much)


def test_without_trio_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("quiesce.audit.trio")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'quiesce\[trio\]'"):
        audited(nothing_much)
