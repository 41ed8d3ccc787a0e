"""What the engine promises: every point, in every phase, the same each time, and nothing changed in the process.

The scenarios here say themselves what happened to them, by writing it down; the corpus shows what the audit makes of it.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce.audit import (
    STOPS,
    AuditResult,
    BadScenario,
    BadToken,
    Limits,
    Progress,
    Strip,
    UnknownStop,
    audit,
)
from quiesce.audit.model.points import ITEM

EAGER_TOO = ["asyncio"] if sys.version_info < (3, 12) else ["asyncio", "asyncio-eager"]

log: list[Any] = []


@pytest.fixture(autouse=True)
def empty_log() -> None:
    log.clear()


def strip_of(result: AuditResult, name: str) -> Strip:
    (found,) = [strip for strip in result.strips if strip.name == name]
    return found


def points_of(result: AuditResult, name: str) -> list[str]:
    return [" + ".join(str(point) for point in cell.points) for cell in strip_of(result, name).cells]


# Points


async def child(suspensions: int) -> None:
    for _ in range(suspensions):
        await asyncio.sleep(0)


async def root_of_two() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(child(2))
        group.create_task(child(3))


def test_every_suspension_of_every_task_is_a_point_and_each_is_used_once_a_strip() -> None:
    result = audit(root_of_two, stops="cancel,shutdown,descendant", phases="early,late,unstarted")
    children = ["child:1", "child:2", "child#2:1", "child#2:2", "child#2:3"]
    root = ["root_of_two:1"]
    assert result.points == 6
    assert sorted(points_of(result, "cancel/early")) == sorted(f"early/{point}" for point in children + root)
    assert points_of(result, "cancel/late") == ["late/root_of_two:1"]
    assert points_of(result, "cancel/unstarted") == ["unstarted/root_of_two:0"]
    assert sorted(points_of(result, "shutdown/early")) == sorted(
        f"early/{point}" for point in children + root
    )
    assert sorted(points_of(result, "shutdown/late")) == sorted(f"late/{point}" for point in children + root)
    assert sorted(points_of(result, "shutdown/unstarted")) == [
        "unstarted/child#2:0",
        "unstarted/child:0",
        "unstarted/root_of_two:0",
    ]
    assert sorted(points_of(result, "descendant/early")) == sorted(f"early/{point}" for point in children)
    # Two uninjected runs, one for each cell, and one after each strip.
    assert result.runs == 2 + sum(len(strip.cells) for strip in result.strips) + len(result.strips)
    assert result.scope == f"all 6 suspension points of this schedule (asyncio), {result.runs} runs"


async def counts_its_steps() -> None:
    log.append("begun")
    try:
        for number in range(1, 5):
            await asyncio.sleep(0)
            log.append(number)
    except asyncio.CancelledError:
        log.append("cancelled")
        raise


def test_a_run_is_stopped_exactly_at_its_point() -> None:
    audit(counts_its_steps, stops="cancel", phases="early")
    runs = " ".join(map(str, log)).split("begun ")[1:]
    undisturbed = "1 2 3 4"
    stopped = ["cancelled", "1 cancelled", "1 2 cancelled", "1 2 3 cancelled"]
    assert [run.strip() for run in runs] == [undisturbed, undisturbed, *stopped, undisturbed]


async def one_step() -> None:
    log.append("ran")


async def starts_a_short_task() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(one_step())


def test_a_task_that_never_suspends_can_be_stopped_before_its_first_step() -> None:
    result = audit(starts_a_short_task, stops="shutdown", phases="unstarted")
    assert sorted(points_of(result, "shutdown/unstarted")) == [
        "unstarted/one_step:0",
        "unstarted/starts_a_short_task:0",
    ]
    assert log == ["ran", "ran", "ran"]  # twice for the baseline, and once after the strip


if sys.version_info >= (3, 12):

    def test_an_eager_task_has_the_same_points_but_is_never_unstarted() -> None:
        result = audit(root_of_two, stops="shutdown", backend="asyncio-eager")
        assert result.points == 6
        assert points_of(result, "shutdown/unstarted") == ["unstarted/root_of_two:0"]
        assert len(points_of(result, "shutdown/early")) == len(points_of(result, "shutdown/late")) == 6
        assert "?" not in "".join(strip.marks for strip in result.strips)


# Phases


async def answer(future: asyncio.Future[str]) -> None:
    await asyncio.sleep(1)
    future.set_result("the answer")


async def waits_for_an_answer() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        group.create_task(answer(future))
        try:
            log.append(await future)
        except asyncio.CancelledError:
            log.append("cancelled" if future.cancelled() else f"lost {future.result()}")
            raise


def test_an_early_stop_comes_while_the_result_is_still_waited_for() -> None:
    result = audit(waits_for_an_answer, stops="cancel", phases="early")
    stopped_at_first_wait = points_of(result, "cancel/early").index("early/waits_for_an_answer:1")
    assert log[2 + stopped_at_first_wait] == "cancelled"
    assert "lost the answer" not in log


def test_a_late_stop_comes_when_the_result_is_there_and_not_yet_seen() -> None:
    result = audit(waits_for_an_answer, stops="cancel", phases="late")
    assert points_of(result, "cancel/late")[0] == "late/waits_for_an_answer:1"
    assert log[2] == "lost the answer"


def test_an_unstarted_root_runs_none_of_its_body() -> None:
    audit(counts_its_steps, stops="cancel", phases="unstarted")
    assert log.count("begun") == 3  # twice for the baseline, once after the strip
    assert "cancelled" not in log


# Stops


async def cleans_up_stubbornly() -> None:
    arrived = 0
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        arrived = 1
        for _ in range(4):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                arrived += 1
        raise
    finally:
        log.append(arrived)


@pytest.mark.parametrize(("stop", "times"), [("cancel", 1), ("twice", 2), ("thrice", 3)])
def test_further_cancels_arrive_in_the_clean_up(stop: str, times: int) -> None:
    audit(cleans_up_stubbornly, stops=stop, phases="early").assert_clean()
    assert Counter(log) == {0: 3, times: 1}


async def cleans_up_in_two_steps() -> None:
    arrived = 0
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        arrived += 1
        raise
    finally:
        try:
            await asyncio.sleep(1)
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            arrived += 1
            raise
        finally:
            log.append(arrived)


def test_depth_two_stops_again_at_every_suspension_after_the_first_stop() -> None:
    result = audit(cleans_up_in_two_steps, stops="cancel", phases="early", depth=2)
    name = "cleans_up_in_two_steps"
    assert points_of(result, "cancel/early") == [f"early/{name}:{number}" for number in (1, 2, 3)]
    # Stopped at the second or third it suspends no more.
    assert points_of(result, "cancel/early/depth 2") == [
        f"early/{name}:1 + early/{name}:2",
        f"early/{name}:1 + early/{name}:3",
    ]
    assert log.count(2) == 2
    result.assert_clean()


async def says_what_stopped_it() -> None:
    task = asyncio.current_task()
    assert task is not None
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        log.append(("cancelled", task.cancelling()))
        raise
    except Exception as error:
        log.append((type(error).__mro__[1].__name__, str(error)))
        raise


def test_a_timeout_comes_out_as_a_timeout_error() -> None:
    from quiesce.audit.model.points import Point
    from quiesce.audit.model.scenarios import Scenario
    from quiesce.audit.sweep.auditing import make_world
    from quiesce.audit.watch.process_state import Watch

    with Watch() as watch:
        world = make_world("asyncio", watch, real_io=False, seed=None, limits=Limits())
        point = Point("says_what_stopped_it", 1, "early")
        run = world.run(Scenario(says_what_stopped_it), STOPS["timeout"], [point])
    assert (run.outcome, run.error.partition(":")[0]) == ("raised", "TimeoutError")
    assert log == [("cancelled", 1)]
    assert run.sightings == []


async def awaits_in_its_clean_up() -> None:
    arrived = 0
    try:
        await anyio.sleep(1)
    finally:
        for _ in range(3):
            try:
                await anyio.sleep(0)
            except asyncio.CancelledError:
                arrived += 1
        log.append(arrived)


def test_a_scope_cancels_at_every_await_and_a_cancel_only_once() -> None:
    audit(awaits_in_its_clean_up, stops="scope", phases="early")
    assert 3 in log
    log.clear()
    audit(awaits_in_its_clean_up, stops="timeout", phases="early")
    assert max(log) == 1  # where the clean-up itself was stopped


async def waits_for_much() -> None:
    lock, queue, event = asyncio.Lock(), asyncio.Queue[int](), asyncio.Event()
    await lock.acquire()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_later(1, lock.release)
    loop.call_later(2, queue.put_nowait, 1)
    loop.call_later(3, event.set)
    loop.call_later(4, future.set_result, None)
    await lock.acquire()
    await queue.get()
    await event.wait()
    await asyncio.sleep(0)
    await future  # may fail
    await asyncio.sleep(1)  # may fail
    await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0))])


def test_only_what_can_fail_is_made_to_fail() -> None:
    result = audit(waits_for_much, stops="raise")
    source = Path(__file__).read_text().splitlines()
    lines = [source[cell.where[0].line - 1] for cell in strip_of(result, "raise/late").cells]
    assert [line.strip() for line in lines] == [
        "await future  # may fail",
        "await asyncio.sleep(1)  # may fail",
    ]


def test_what_fails_is_an_outage_as_far_as_the_scenario_can_tell() -> None:
    audit(says_what_stopped_it, stops="raise").assert_clean()
    assert log == [("ConnectionError", "the audit made this fail")]


async def says_which_tasks_were_cancelled() -> None:
    async def worker(name: str) -> None:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            log.append(name)
            raise

    async with asyncio.TaskGroup() as group:
        group.create_task(worker("one"))
        group.create_task(worker("two"))


def test_a_shutdown_cancels_every_task_and_a_descendant_stop_just_one() -> None:
    audit(says_which_tasks_were_cancelled, stops="descendant", phases="late").assert_clean()
    assert log == ["one", "two"]
    log.clear()
    result = audit(says_which_tasks_were_cancelled, stops="shutdown", phases="early")
    result.assert_clean()
    assert points_of(result, "shutdown/early")[0].endswith("says_which_tasks_were_cancelled:1")
    # When the root suspends neither has begun, when the first does only that one has, and then both have.
    assert log == ["one", "one", "two"]


async def gives_three() -> Any:
    try:
        for number in range(3):
            await asyncio.sleep(0)
            yield number
        log.append("read to the end")
    except GeneratorExit:
        log.append("closed")
        raise


@pytest.mark.parametrize("stop", ["close", "drop"])
def test_a_generator_is_let_go_after_each_number_of_items(stop: str) -> None:
    result = audit(gives_three, stops=stop)
    assert points_of(result, f"{stop}/early") == [f"early/{ITEM}:{number}" for number in range(4)]
    # Not begun it has nothing to close; held after its third item it has not ended yet.
    assert Counter(log) == {"read to the end": 3, "closed": 3}


# Time


def test_hours_of_virtual_time_take_no_real_time() -> None:
    async def sleeps_for_hours() -> None:
        for _ in range(20):
            await asyncio.sleep(3600)

    started = time.monotonic()
    result = audit(sleeps_for_hours)
    assert result.points == 20
    assert time.monotonic() - started < 15
    result.assert_clean()


def test_a_hang_is_known_at_once() -> None:
    async def hangs_when_cancelled() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.Event().wait() if sys.exc_info()[0] else None

    started = time.monotonic()
    result = audit(hangs_when_cancelled, stops="cancel", limits=Limits(hang_after=60))
    assert time.monotonic() - started < 15
    assert [finding.kind for finding in result.findings] == ["hang"]


def test_what_never_ends_is_stopped_after_so_many_steps() -> None:
    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    result = audit(spins, limits=Limits(steps=300))
    assert (result.verdict, result.exit_code) == ("BASELINE-BROKEN", 2)
    assert result.reason.startswith("it never ends: stopped after 30")
    assert "test_engine.py" in result.reason


# Determinism


def without_seconds(result: AuditResult) -> dict[str, Any]:
    return {key: value for key, value in result.as_dict().items() if key != "seconds"}


@pytest.mark.parametrize("backend", EAGER_TOO)
@pytest.mark.parametrize("seed", [None, 7])
def test_the_same_audit_has_the_same_result(backend: str, seed: int | None) -> None:
    async def leaks_in_order() -> None:
        kept = [asyncio.create_task(child(number)) for number in (3, 1, 2)]
        await asyncio.sleep(1)
        await asyncio.gather(*kept)

    one = without_seconds(audit(leaks_in_order, stops="all", depth=2, backend=backend, seed=seed))
    two = without_seconds(audit(leaks_in_order, stops="all", depth=2, backend=backend, seed=seed))
    assert one == two
    assert one["findings"]


ELSEWHERE = """
    import asyncio, json
    from quiesce.audit import audit

    async def poll(name):
        await asyncio.Event().wait()

    async def scenario():
        names = {"one", "two", "three"}
        for name in sorted(names):
            asyncio.create_task(poll(name))
        await asyncio.sleep(1)

    result = audit(scenario, stops="all").as_dict()
    del result["seconds"]
    print(json.dumps(result))
"""


def test_the_result_does_not_hang_on_the_hash_seed(tmp_path: Path) -> None:
    script = tmp_path / "scenario.py"
    script.write_text(textwrap.dedent(ELSEWHERE))
    results = [
        json.loads(
            subprocess.run(
                [sys.executable, str(script)],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                stdout=subprocess.PIPE,
                check=True,
                timeout=60,
            ).stdout
        )
        for hash_seed in ("0", "1", "4711")
    ]
    assert results[0] == results[1] == results[2]
    assert results[0]["findings"]


async def says_its_order() -> None:
    async def step(number: int) -> None:
        await asyncio.sleep(0)
        order.append(number)

    order: list[int] = []
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(step(number))
    log.append(tuple(order))


def order_under(seed: int | None) -> Any:
    log.clear()
    result = audit(says_its_order, stops="cancel", phases="unstarted", seed=seed)
    assert len(set(log)) == 1, "each run of a seed has its order"
    assert ("seed" in result.scope) == (seed is not None)
    return log[0]


def test_a_seed_steps_the_tasks_in_an_order_of_its_own_each_time() -> None:
    assert order_under(None) == (0, 1, 2, 3, 4)
    orders = {seed: order_under(seed) for seed in range(6)}
    assert len(set(orders.values())) > 3
    assert {seed: order_under(seed) for seed in range(6)} == orders


# What cannot be audited


def test_a_scenario_that_fails_by_itself_is_a_broken_baseline() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("no such model")

    result = audit(fails)
    assert (result.verdict, result.exit_code, result.strips) == ("BASELINE-BROKEN", 2, [])
    assert result.reason.startswith("it raised LookupError: no such model at ")
    assert "test_engine.py" in result.reason


def test_a_scenario_that_hangs_by_itself_is_a_broken_baseline() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    result = audit(hangs)
    assert result.verdict == "BASELINE-BROKEN"
    assert result.reason.startswith("it never ends: nothing can run any more at ")


def test_a_scenario_that_cancels_itself_is_a_broken_baseline() -> None:
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    assert audit(cancels_itself).verdict == "BASELINE-BROKEN"


def test_a_scenario_that_does_not_do_the_same_twice_is_said_to_be_so() -> None:
    runs = 0

    async def grows() -> None:
        nonlocal runs
        runs += 1
        for _ in range(runs):
            await asyncio.sleep(0)

    result = audit(grows)
    assert (result.verdict, result.exit_code) == ("NON-DETERMINISTIC", 2)
    assert result.reason == "1 suspensions in one run, 2 in the next"


def test_a_first_run_that_differs_is_noted_and_not_counted() -> None:
    runs = 0

    async def loads_once() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await asyncio.sleep(1)
        await asyncio.sleep(0)

    result = audit(loads_once)
    result.assert_clean()
    assert result.points == 1
    assert "the first run differed" in result.notes[0]


def test_a_run_that_does_not_get_to_its_point_is_not_counted_as_covered() -> None:
    runs = 0

    async def shrinks() -> None:
        nonlocal runs
        runs += 1
        for _ in range(3 if runs <= 2 else 1):
            await asyncio.sleep(0)

    result = audit(shrinks, stops="cancel", phases="early")
    assert strip_of(result, "cancel/early").marks == ".??"
    assert (result.verdict, result.exit_code) == ("NON-DETERMINISTIC", 2)
    assert result.scope.startswith("some of the 3 suspension points")


@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        (lambda: None, "is not async"),
        (time.sleep, "needs arguments|is not async"),
        (child, r"child needs arguments \(suspensions\)"),
        (42, "is a int, not an async function"),
    ],
    ids=["lambda", "plain", "arguments", "number"],
)
def test_what_is_no_scenario_is_refused(scenario: Any, says: str) -> None:
    with pytest.raises(BadScenario, match=says):
        audit(scenario)


def test_a_coroutine_in_place_of_its_function_is_refused() -> None:
    with pytest.raises(BadScenario, match="was called already"):
        audit(counts_its_steps())  # type: ignore[arg-type]


def test_unknown_names_are_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownStop, match="no stop 'cancle'; there are cancel, twice"):
        audit(counts_its_steps, stops="cancle")
    with pytest.raises(UnknownStop, match="needs an async generator function"):
        audit(counts_its_steps, stops="drop")
    with pytest.raises(ValueError, match="no phase 'soon'; there are unstarted, early, late"):
        audit(counts_its_steps, phases="soon")
    with pytest.raises(ValueError, match="no backend 'curio'"):
        audit(counts_its_steps, backend="curio")
    with pytest.raises(BadToken, match="is not a replay token"):
        audit(counts_its_steps, at="here")


def test_the_closed_world_says_what_was_asked_of_it() -> None:
    async def dials() -> None:
        socket.create_connection(("127.0.0.1", 9))

    async def connects() -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    async def spawns() -> None:
        subprocess.Popen(["true"])  # noqa: ASYNC220

    async def threads() -> None:
        await asyncio.to_thread(time.sleep, 0)

    for scenario, asked in (
        (dials, "127.0.0.1:9"),
        (connects, "connection"),
        (spawns, "true"),
        (threads, "thread"),
    ):
        result = audit(scenario)
        assert result.verdict == "BASELINE-BROKEN", scenario
        assert asked in result.reason
        assert "real_io=True" in result.reason


def test_an_audit_inside_a_running_loop_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="cannot be called inside a running one"):
            audit(counts_its_steps)

    asyncio.run(main())


# Budget


async def repeats_itself() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
    await asyncio.sleep(1)


def test_dedupe_uses_one_point_for_each_await_chain() -> None:
    result = audit(repeats_itself, stops="cancel", phases="early", dedupe=True)
    assert points_of(result, "cancel/early") == ["early/repeats_itself:1", "early/repeats_itself:11"]
    assert result.scope.startswith("one per await chain of the 11 suspension points")


def test_a_sample_is_chosen_by_the_seed_and_is_not_called_complete() -> None:
    def sample(seed: int) -> list[str]:
        result = audit(repeats_itself, stops="cancel", phases="early", sample=4, seed=seed)
        assert result.scope.startswith("some of the 11 suspension points")
        return points_of(result, "cancel/early")

    assert len(sample(1)) == 4
    assert sample(1) == sample(1)
    assert any(sample(1) != sample(seed) for seed in (2, 3))


def test_a_sample_that_takes_all_is_complete() -> None:
    result = audit(repeats_itself, stops="cancel", phases="early", sample=11)
    assert result.scope.startswith("all 11 suspension points")


def test_what_the_time_limit_left_out_is_not_called_covered() -> None:
    result = audit(repeats_itself, stops="cancel", phases="early", time_limit=0.0)
    assert strip_of(result, "cancel/early").marks == "-" * 11
    assert result.scope.startswith("some of the 11 suspension points")
    assert not result.is_complete


def test_progress_is_told_after_each_run() -> None:
    seen: list[Progress] = []
    audit(repeats_itself, stops="cancel", progress=seen.append)
    assert [progress.done for progress in seen] == list(range(1, seen[0].total + 1))
    assert seen[-1].total == 1 + 11 + 11


# Ignores, known findings, replay


async def poll() -> None:
    await asyncio.Event().wait()


async def leaks() -> None:
    task = asyncio.create_task(poll())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_an_ignore_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="'leaked poll' has no reason"):
        audit(leaks, ignore={"leaked poll": " "})


def test_an_ignored_finding_is_shown_and_does_not_count() -> None:
    result = audit(leaks, ignore={"leaked po*": "it ends with the process"})
    result.assert_clean()
    (finding,) = result.findings
    assert finding.ignored == "it ends with the process"
    assert "it ends with the process" in str(result)


def test_an_ignore_that_matches_nothing_makes_the_verdict_bad() -> None:
    result = audit(counts_its_steps, ignore={"leaked poll": "it ends with the process"})
    assert (result.verdict, result.exit_code) == ("FINDINGS", 1)
    assert result.stale_ignores == ["leaked poll"]
    with pytest.raises(AssertionError, match="leaked poll"):
        result.assert_clean()


def test_a_known_finding_does_not_count_and_a_new_one_does() -> None:
    (finding,) = audit(leaks).findings
    known = audit(leaks, baseline=[finding.key])
    assert (known.verdict, known.findings[0].known) == ("CLEAN", True)
    assert audit(leaks, baseline=["leaked somebody_else"]).verdict == "FINDINGS"


def test_the_key_of_a_finding_does_not_change_with_its_line() -> None:
    source = """
        async def poll():
            await asyncio.Event().wait()

        async def moved():
            task = asyncio.create_task(poll())
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    """
    (one,) = audit(compiled(source, "moved")).findings
    (two,) = audit(compiled("\n\n\n" + source, "moved")).findings
    assert one.key == two.key
    assert one.site != two.site


def compiled(source: str, name: str) -> Callable[[], Any]:
    names: dict[str, Any] = {"asyncio": asyncio, "__name__": "elsewhere"}
    exec(compile(textwrap.dedent(source), "folder/elsewhere.py", "exec"), names)
    found: Callable[[], Any] = names[name]
    return found


@pytest.mark.parametrize("options", [{}, {"stops": "timeout", "depth": 2}, {"stops": "twice"}])
def test_a_replay_shows_the_same_finding(options: dict[str, Any]) -> None:
    async def flush() -> None:
        await asyncio.sleep(5)

    async def leaves_its_flush() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            await asyncio.shield(flush())

    result = audit(leaves_its_flush, **options)
    assert result.findings
    for finding in result.findings:
        replay = audit(leaves_its_flush, at=finding.example.token)
        assert replay.verdict == "FINDINGS"
        assert finding.key in [found.key for found in replay.findings]
        assert replay.runs <= 4
        same = next(found for found in replay.findings if found.key == finding.key)
        assert (same.example.stopped_at, same.example.stuck_at) == (
            finding.example.stopped_at,
            finding.example.stuck_at,
        )


BEFORE = """
    async def scenario():
        await asyncio.sleep(1)
        asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(2)
"""


@pytest.mark.parametrize(
    "after",
    [
        BEFORE.replace("await asyncio.sleep(2)", "await asyncio.sleep(2 + len('x'))"),
        BEFORE.replace("await asyncio.sleep(2)", "pass"),
        BEFORE.replace("async def scenario", "async def other"),
    ],
    ids=["other code", "fewer points", "other name"],
)
def test_a_replay_of_a_changed_program_is_unresolved(after: str) -> None:
    name = "other" if "other" in after else "scenario"
    token = token_at_second_point()
    assert audit(compiled(BEFORE, "scenario"), at=token).verdict == "FINDINGS"
    result = audit(compiled(after, name), at=token)
    assert (result.verdict, result.exit_code) == ("UNRESOLVED", 2)
    assert "early/scenario:2" in result.reason
    assert result.findings == []


def token_at_second_point() -> str:
    """Of a run in which the task is left by a cancel: its program leaves it by itself as well."""
    from quiesce.audit.model.points import Point, Token
    from quiesce.audit.model.scenarios import Scenario
    from quiesce.audit.model.source_places import digest
    from quiesce.audit.sweep.auditing import make_world
    from quiesce.audit.watch.process_state import Watch

    point = Point("scenario", 2, "early")
    with Watch() as watch:
        world = make_world("asyncio", watch, real_io=False, seed=None, limits=Limits())
        run = world.run(Scenario(compiled(BEFORE, "scenario")), STOPS["cancel"], [point])
    return str(Token("cancel", (point,), digest(run.fired[0][2])))


# A check of one's own


def test_a_check_may_be_async_and_is_waited_for() -> None:
    async def is_settled() -> bool:
        await asyncio.sleep(3600)
        log.append("asked")
        return True

    result = audit(counts_its_steps, stops="cancel", check=is_settled)
    result.assert_clean()
    assert log.count("asked") == result.runs


@pytest.mark.parametrize("how", ["false", "assert", "raise", "never ends"])
def test_a_check_fails_by_its_answer_its_error_or_by_never_ending(how: str) -> None:
    async def is_whole() -> bool:
        if how == "assert":
            raise AssertionError("two slots are lost")
        if how == "raise":
            raise LookupError("no pool")
        if how == "never ends":
            await asyncio.Event().wait()
        return False

    result = audit(counts_its_steps, stops="cancel", phases="unstarted", check=is_whole)
    (finding,) = result.findings
    assert finding.kind == "check"
    assert finding.what.endswith("is_whole")
    details = {
        "false": "it returned False",
        "assert": "two slots are lost",
        "raise": "LookupError: no pool",
        "never ends": "it never ends",
    }
    assert finding.example.detail == details[how]


# The process


def state_of_the_process() -> dict[str, Any]:
    return {
        "unraisablehook": sys.unraisablehook,
        "excepthook": sys.excepthook,
        "thread hook": threading.excepthook,
        "asyncgen hooks": tuple(sys.get_asyncgen_hooks()),
        "origin tracking": sys.get_coroutine_origin_tracking_depth(),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "warning filters": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "unawaited": warnings._warn_unawaited_coroutine,  # type: ignore[attr-defined]
        "connect": (socket.socket.connect, socket.socket.connect_ex, "connect" in vars(socket.socket)),
        "Popen": subprocess.Popen.__init__,
        "running loop": asyncio._get_running_loop(),
        "signals": [signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGINT, signal.SIGCHLD)],
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "directory": os.getcwd(),
        "random": random.getstate(),
        "profile": (sys.getprofile(), sys.gettrace()),
        "stdout": (sys.stdout, sys.stderr),
    }


def fail_after_some(progress: Progress) -> None:
    if progress.done == 3:
        raise LookupError("the terminal is gone")


def open_file() -> io.TextIOWrapper:
    return open(os.devnull, encoding="utf-8")


async def leaves_much() -> None:
    asyncio.create_task(poll())
    unawaited = poll()
    file = open_file()
    async for _ in gives_three():
        await asyncio.sleep(1)
    await asyncio.gather(unawaited, return_exceptions=True)
    file.close()


@pytest.mark.parametrize("how", ["clean", "findings", "broken", "interrupted", "real I/O"])
def test_the_process_is_left_as_it_was(how: str) -> None:
    random.seed(how)
    before = state_of_the_process()
    if how == "clean":
        audit(counts_its_steps, stops="all", seed=3).assert_clean()
    elif how == "findings":
        assert audit(leaks, stops="all").verdict == "FINDINGS"
    elif how == "broken":
        assert audit(leaves_much).verdict == "BASELINE-BROKEN"  # it waits for a poll that never ends
    elif how == "interrupted":
        with pytest.raises(LookupError, match="the terminal is gone"):
            audit(leaks, progress=fail_after_some)
    else:
        audit(counts_its_steps, stops="cancel", real_io=True).assert_clean()
    after = state_of_the_process()
    assert {key: after[key] for key in after if after[key] != before[key]} == {}


def test_the_collector_stays_off_if_it_was_off() -> None:
    gc.disable()
    try:
        audit(counts_its_steps, stops="cancel")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_frozen_heap_stays_frozen() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    audit(counts_its_steps, stops="cancel")
    assert gc.get_freeze_count() > 0.9 * before


# What is right already


async def group_of_tasks() -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(asyncio.sleep(number))


async def group_in_a_group() -> None:
    async def inner() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
            group.create_task(asyncio.sleep(2))

    async with asyncio.TaskGroup() as group:
        group.create_task(inner())
        await asyncio.sleep(3)


@pytest.mark.parametrize("backend", EAGER_TOO)
@pytest.mark.parametrize("scenario", [group_of_tasks, group_in_a_group])
def test_asyncio_task_groups_are_silent(scenario: Callable[[], Any], backend: str) -> None:
    result = audit(scenario, stops="all", depth=2, backend=backend)
    result.assert_clean()
    assert result.findings == []
    assert result.is_complete
    assert {strip.stop for strip in result.strips} == set(STOPS) - {"close", "drop"}


async def anyio_group() -> None:
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(anyio.sleep, number)


async def anyio_group_in_a_group() -> None:
    async def inner() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 1)
            group.start_soon(anyio.sleep, 2)

    async with anyio.create_task_group() as group:
        group.start_soon(inner)
        await anyio.sleep(3)


@pytest.mark.parametrize("backend", EAGER_TOO)
@pytest.mark.parametrize("scenario", [anyio_group, anyio_group_in_a_group])
def test_anyio_task_groups_are_silent(scenario: Callable[[], Any], backend: str) -> None:
    result = audit(scenario, stops="cancel,twice,thrice,scope,timeout,raise", depth=2, backend=backend)
    result.assert_clean()
    assert result.findings == []
    assert result.is_complete
    # The stops that reach into a group from outside come before a task's first step, too. See below.
    result = audit(scenario, stops="shutdown,descendant", depth=2, backend=backend)
    assert {finding.kind for finding in result.findings} == {"unawaited"}
    assert {strip for finding in result.findings for strip in finding.strips} == {
        "shutdown/unstarted",
        "shutdown/early",
        "descendant/unstarted",
    }


def test_anyio_drops_the_coroutine_of_a_task_that_is_cancelled_before_it_began() -> None:
    """So it does with nobody auditing it: the finding above is true."""

    async def shuts_down_at_once() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 1)
            for task in asyncio.all_tasks():
                task.cancel()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(shuts_down_at_once())
        gc.collect()
    assert "coroutine 'sleep' was never awaited" in [str(warning.message) for warning in seen]
