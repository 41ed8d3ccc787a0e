"""The audit on uvloop: what it finds on asyncio, with a real clock and an order that is uvloop's own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce.audit import AuditResult, Limits, audit

if sys.platform == "win32":
    pytest.skip("there is no uvloop", allow_module_level=True)

import uvloop

from quiesce.audit.worlds import uvloop_loop

pytestmark = pytest.mark.slow

TICK = 0.001
FAST = Limits(hang_after=0.3, steps=2_000)
# For what ends by itself: to wait longer for it on a busy machine costs nothing.
PATIENT = Limits(hang_after=10, linger=10, steps=2_000)

log: list[Any] = []
kept: list[Any] = []
background: set[asyncio.Task[None]] = set()


@pytest.fixture(autouse=True)
def empty_lists() -> Iterator[None]:
    log.clear()
    yield
    kept.clear()
    background.clear()


def audited(scenario: Callable[[], Any], **options: Any) -> AuditResult:
    options.setdefault("limits", FAST)
    return audit(scenario, backend="uvloop", **options)


def kinds(result: AuditResult) -> set[tuple[str, str]]:
    return {(finding.kind, finding.what) for finding in result.findings}


def marks(result: AuditResult) -> dict[str, str]:
    return {strip.name: strip.marks for strip in result.strips}


# Programs that are as they should be


async def group() -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(2):
            tasks.create_task(asyncio.sleep(number * TICK))


async def timeout_of_its_own() -> None:
    try:
        async with asyncio.timeout(TICK):
            await asyncio.sleep(1)
    except TimeoutError:
        await asyncio.sleep(TICK)


async def queue() -> None:
    numbers: asyncio.Queue[int] = asyncio.Queue(1)

    async def produce() -> None:
        for number in range(2):
            await numbers.put(number)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        for _ in range(2):
            await numbers.get()


async def anyio_group() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 2 * TICK)
        await anyio.sleep(TICK)


async def thread() -> None:
    await asyncio.to_thread(time.sleep, TICK)


async def numbers() -> AsyncIterator[int]:
    for number in range(2):
        await asyncio.sleep(TICK)
        yield number


@asynccontextmanager
async def connection() -> AsyncIterator[None]:
    await asyncio.sleep(TICK)
    try:
        yield
    finally:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("scenario", "stops"),
    [
        (group, "all"),
        (timeout_of_its_own, "all"),
        (queue, "all"),
        (anyio_group, "cancel,twice,scope,timeout"),
        (thread, "all"),
        (numbers, "all"),
        (connection, "cancel,close,drop"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_program_that_is_as_it_should_be_has_no_findings(scenario: Callable[[], Any], stops: str) -> None:
    result = audited(scenario, stops=stops, limits=PATIENT if scenario is thread else FAST)
    result.assert_clean()
    assert "?" not in "".join(marks(result).values()), str(result)


# Programs that are not


async def poll() -> None:
    await asyncio.Event().wait()


async def leaves_a_task() -> None:
    poller = asyncio.create_task(poll())
    await asyncio.sleep(TICK)
    poller.cancel()


async def brief() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def leaves_a_brief_task() -> None:
    background.add(asyncio.create_task(brief()))
    await asyncio.sleep(0)


async def leaves_a_slow_task() -> None:
    background.add(asyncio.create_task(asyncio.sleep(10 * TICK)))
    await asyncio.sleep(TICK)


async def swallows() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        pass


async def raises_instead() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        raise ValueError("no time") from None


async def hangs_in_clean_up() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        await poll()


async def never_stops() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        while True:
            await asyncio.sleep(0)


async def drops_a_generator() -> None:
    async for _ in numbers():
        break
    await asyncio.sleep(TICK)


async def keeps_a_generator() -> None:
    kept[:] = [numbers()]
    await anext(kept[0])
    await asyncio.sleep(TICK)


async def fails_in_a_callback() -> None:
    def flush() -> None:
        raise ValueError("closed")

    asyncio.get_running_loop().call_later(TICK, flush)
    await asyncio.sleep(0)


async def loses_an_error() -> None:
    async def upload() -> None:
        raise ValueError("no network")

    asyncio.create_task(upload())
    await asyncio.sleep(TICK)


async def forgets_to_await() -> None:
    later = brief()
    await asyncio.sleep(TICK)
    await later


async def uncancels() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        raise


LEAKY: list[tuple[Callable[[], Any], str, str]] = [
    (leaves_a_task, "leaked", "poll"),
    (leaves_a_brief_task, "outlived", "brief"),
    (leaves_a_slow_task, "late", "sleep"),
    (swallows, "swallowed", "swallows"),
    (raises_instead, "replaced", "raises_instead"),
    (hangs_in_clean_up, "hang", "hangs_in_clean_up"),
    (never_stops, "hang", "never_stops"),
    (drops_a_generator, "generator", "numbers"),
    (keeps_a_generator, "generator", "numbers"),
    (fails_in_a_callback, "callback", "fails_in_a_callback.<locals>.flush"),
    (loses_an_error, "unretrieved", "loses_an_error.<locals>.upload"),
    (forgets_to_await, "unawaited", "brief"),
    (uncancels, "count", "uncancels"),
]


@pytest.mark.parametrize(
    ("scenario", "kind", "what"), LEAKY, ids=[scenario.__name__ for scenario, *_ in LEAKY]
)
def test_what_is_left_is_found_for_what_it_is(
    scenario: Callable[[], Any], kind: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind in ("late", "callback"):  # what comes by itself is waited for, on a busy machine too
        monkeypatch.setattr(uvloop_loop, "GRACE", 5.0)
    result = audited(scenario, stops="cancel", phases="early", again=True)
    assert result.verdict == "FINDINGS"
    found = kinds(result) - {("outlived", "poll")}  # a task that was cancelled just before the end
    assert found == {(kind, what)}, str(result)


def test_a_finding_says_where_it_was_made_and_where_it_is_stuck() -> None:
    finding = next(
        f for f in audited(leaves_a_task, stops="cancel", phases="early").findings if f.kind == "leaked"
    )
    assert finding.site is not None
    assert finding.site.function == "leaves_a_task"
    assert finding.example.stuck_at[0].function == "poll"


# The stops and their phases


async def writes_down_what_it_gets() -> None:
    log.append("began")
    try:
        await asyncio.sleep(TICK)
        log.append("slept")
    except BaseException as error:
        log.append(type(error).__name__)
        raise


PLAIN = ["began", "slept"]


@pytest.mark.parametrize(
    ("stop", "phase", "stopped"),
    [
        ("cancel", "unstarted", []),
        ("cancel", "early", ["began", "CancelledError"]),
        ("cancel", "late", ["began", "CancelledError"]),
        ("shutdown", "early", ["began", "CancelledError"]),
        ("scope", "early", ["began", "CancelledError"]),
        ("timeout", "late", ["began", "CancelledError"]),
        ("raise", "late", ["began", "InjectedError"]),
    ],
)
def test_each_stop_does_what_it_says(stop: str, phase: str, stopped: list[str]) -> None:
    result = audited(writes_down_what_it_gets, stops=stop, phases=phase)
    assert marks(result) == {f"{stop}/{phase}": "."}
    assert log == [*PLAIN, *PLAIN, *stopped, *PLAIN]


def test_twice_and_thrice_come_again_in_the_clean_up() -> None:
    async def scenario() -> None:
        try:
            await asyncio.sleep(TICK)
        finally:
            try:
                await asyncio.sleep(TICK)
            except asyncio.CancelledError:
                log.append("again")
                raise

    audited(scenario, stops="twice", phases="early", sample=1)
    assert log == ["again"]


def test_descendant_cancels_one_task_and_only_warns() -> None:
    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            child = tasks.create_task(asyncio.sleep(TICK))
        log.append(child.cancelled())

    result = audited(scenario, stops="descendant", phases="early")
    assert log == [False, False, True, False]
    assert all(finding.severity == "warning" for finding in result.findings)


class Watched(asyncio.Future[None]):
    """Writes down whether the loop was running when it was cancelled."""

    def cancel(self, msg: Any = None) -> bool:
        log.append(self.get_loop().is_running())
        return super().cancel(msg)


def finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@pytest.mark.parametrize(("stop", "is_running"), [("shutdown", False), ("cancel", True)])
def test_shutdown_comes_while_the_loop_does_not_run_as_with_asyncio_run(stop: str, is_running: bool) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, uvloop.Loop)
        future = Watched(loop=loop)
        timer = loop.call_later(TICK, finish, future)
        try:
            await future
        finally:
            timer.cancel()

    audited(scenario, stops=stop, phases="early").assert_clean()
    assert log == [is_running]


@pytest.mark.parametrize("stop", ["close", "drop"])
def test_a_generator_is_closed_where_its_consumer_holds_it(stop: str) -> None:
    async def scenario() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(TICK)
            yield 1
        finally:
            log.append("cleaned up")

    audited(scenario, stops=stop).assert_clean()
    assert log.count("cleaned up") == 4  # two baselines, where it was held, and once more at the end


# Time


def test_a_hang_is_told_after_its_time_and_where() -> None:
    started = time.monotonic()
    result = audited(hangs_in_clean_up, stops="cancel", phases="early")
    assert 0.3 < time.monotonic() - started < 15
    (finding,) = result.findings
    assert [place.function for place in finding.example.stuck_at][:2] == ["hangs_in_clean_up", "poll"]


def test_a_sleep_that_is_longer_than_a_hang_is_not_one() -> None:
    async def scenario() -> None:
        await asyncio.sleep(0.5)

    audited(scenario, stops="cancel", phases="unstarted").assert_clean()


def test_what_stays_is_not_waited_for_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvloop_loop, "GRACE", 2.0)
    started = time.monotonic()
    result = audited(leaves_a_task, stops="cancel,twice,thrice,timeout")
    runs = sum(finding.runs for finding in result.findings if finding.kind == "leaked")
    assert runs > 5
    assert time.monotonic() - started < runs * 2.0


def test_a_scenario_that_hangs_or_never_ends_by_itself_is_broken() -> None:
    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    for scenario in (poll, spins):
        result = audited(scenario)
        assert result.verdict == "BASELINE-BROKEN"
        assert "never ends" in result.reason


# Order


async def many() -> None:
    async def worker(number: int) -> None:
        for _ in range(2):
            await asyncio.sleep(0)
            log.append(number)

    await asyncio.gather(*(worker(number) for number in range(4)))


def test_two_sweeps_of_a_program_without_timers_come_to_the_same() -> None:
    one, other = (audited(many, stops="all") for _ in range(2))
    assert {**one.as_dict(), "seconds": 0} == {**other.as_dict(), "seconds": 0}


def test_a_seed_steps_the_tasks_in_another_order_and_the_same_each_time() -> None:
    orders: dict[int | None, tuple[int, ...]] = {}
    for seed in (None, 1, 2, 1):
        log.clear()
        audited(many, stops="cancel", phases="unstarted", seed=seed).assert_clean()
        order = tuple(log[:8])
        assert log[8:16] == list(order)
        assert sorted(order[:4]) == sorted(order[4:]) == [0, 1, 2, 3]  # a round is still a round
        assert orders.setdefault(seed, order) == order
    assert orders[None] == (0, 1, 2, 3, 0, 1, 2, 3)
    assert len(set(orders.values())) > 1


def test_a_token_makes_one_run_again() -> None:
    token = audited(swallows, stops="cancel", phases="late").findings[0].example.token
    result = audited(swallows, at=token)
    assert kinds(result) == {("swallowed", "swallows")}
    assert [strip.marks for strip in result.strips] == ["X"]
    assert audited(raises_instead, at=token, name="swallows").verdict == "UNRESOLVED"


async def never() -> None:
    await asyncio.Event().wait()


async def in_a_while() -> bool:
    await asyncio.sleep(TICK)
    return False


@pytest.mark.parametrize(("check", "detail"), [(in_a_while, "it returned False"), (never, "it never ends")])
def test_the_users_check_is_asked_after_each_run(check: Callable[[], Any], detail: str) -> None:
    result = audited(writes_down_what_it_gets, stops="cancel", phases="early", check=check)
    assert {(f.kind, f.example.detail) for f in result.findings} == {("check", detail)}, str(result)


# The outside


async def serves() -> None:
    done = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readline())
            await writer.drain()
        finally:
            writer.close()
            done.set()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await done.wait()


def test_sockets_are_real() -> None:
    result = audited(serves, real_io=True, stops="cancel", phases="unstarted", limits=PATIENT)
    result.assert_clean()
    assert result.points > 2


def test_a_process_left_behind_is_found() -> None:
    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec("sleep", "60")
        await asyncio.sleep(TICK)
        process.kill()
        await process.wait()

    try:
        result = audited(scenario, real_io=True, stops="cancel", phases="late", limits=Limits(hang_after=10))
        assert "process" in {finding.kind for finding in result.findings}, str(result)
    finally:
        for pid in children():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children() -> list[int]:
    folder = Path("/proc/self/task")
    return [int(pid) for thread in folder.iterdir() for pid in (thread / "children").read_text().split()]


def test_without_uvloop_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("quiesce.audit.worlds.uvloop")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("quiesce.audit.worlds.UvloopWorld", raising=False)  # it was loaded before
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'quiesce\[uvloop\]'"):
        audited(group)
