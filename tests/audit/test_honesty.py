"""The audit says what it has not done, and does not say clean for it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time

import anyio
import pytest

from quiesce.audit import Limits, audit

pytestmark = pytest.mark.time_limit(60)


async def siblings_that_look_who_is_first() -> None:
    first: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(10 + number)
        except asyncio.CancelledError:
            first.append(number)
            if first[0] == 2:
                raise RuntimeError("2 was first") from None
            raise

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work(number))


def test_siblings_are_cancelled_in_the_same_order_in_every_run() -> None:
    junk: list[object] = []
    seen = set()
    for number in range(8):
        junk.append([object() for _ in range(number * 37)])  # other addresses
        result = audit(siblings_that_look_who_is_first, stops="cancel")
        seen.add(tuple(strip.marks for strip in result.strips))
        for finding in result.findings:
            replayed = audit(siblings_that_look_who_is_first, at=finding.example.token)
            assert finding.key in [again.key for again in replayed.findings]
    assert len(seen) == 1


async def item() -> None:
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        pass


def test_a_scenario_may_be_called_item() -> None:
    assert [finding.kind for finding in audit(item, stops="cancel").findings] == ["swallowed"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda: socket.create_connection(("127.0.0.1", 9)), "127.0.0.1:9"),
        (lambda: socket.getaddrinfo("example.org", 80), "example.org"),
        (lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9)), "127.0.0.1:9"),
        (lambda: subprocess.run(["true"], check=False), "true"),
        (lambda: os.system("true"), "true"),
        (lambda: os.posix_spawn("/bin/true", ["true"], {}), "/bin/true"),
        (lambda: os.fork(), "forks"),  # noqa: PLW0108 # the one that is there when it is called
        (lambda: os._exit(0), "os._exit"),
    ],
    ids=["tcp", "dns", "udp", "subprocess", "system", "posix_spawn", "fork", "exit"],
)
def test_a_scenario_that_goes_out_is_told_so_though_it_handles_the_refusal(what: object, said: str) -> None:
    async def scenario() -> None:
        try:
            what()  # type: ignore[operator]
        except Exception:
            pass
        await asyncio.sleep(1)

    result = audit(scenario)
    assert result.verdict == "BASELINE-BROKEN"
    assert said in result.reason


def test_a_timeout_around_a_process_does_not_run_out_before_the_process_has_had_its_time() -> None:
    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(0.2)")
        try:
            async with asyncio.timeout(30):
                await process.wait()
        except BaseException:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise

    limits = Limits(hang_after=10)  # longer than any machine needs to start that process
    result = audit(scenario, real_io=True, stops="cancel", phases="unstarted", limits=limits)
    assert result.clean, str(result)


def test_a_second_point_that_is_not_there_is_unresolved() -> None:
    (finding,) = audit(item, stops="cancel", phases="early").findings
    head, _, tail = finding.example.token.partition("@")
    for second in ("early/nobody:1", "early/item:99"):
        assert audit(item, at=f"{head}+{second}@{tail}").verdict == "UNRESOLVED"


def test_stops_and_phases_that_do_not_go_together_are_not_called_clean() -> None:
    result = audit(item, stops="timeout", phases="unstarted")
    assert result.exit_code == 2
    assert "timeout" in result.reason
    assert "unstarted" in result.reason


def test_a_stop_that_breaks_the_process_ends_the_sweep_and_is_named_if_asked() -> None:
    open_for_business = True

    async def scenario() -> None:
        nonlocal open_for_business
        assert open_for_business
        open_for_business = False
        await asyncio.sleep(1)
        open_for_business = True

    result = audit(scenario, stops="cancel,shutdown")
    assert [finding.kind for finding in result.findings] == ["again"]
    assert [strip.name for strip in result.strips] == ["cancel/unstarted", "cancel/early"]
    assert "again=True" in " ".join(result.notes)
    open_for_business = True
    result = audit(scenario, stops="cancel", again=True)
    assert str(result.findings[0].example.points[0]).startswith("early/")


def test_a_coroutine_that_is_never_awaited_because_of_a_stop_is_an_error() -> None:
    async def work() -> None:
        await anyio.sleep(1)

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            group.start_soon(work)

    result = audit(scenario)
    assert result.exit_code == 1, str(result)
    assert {(finding.kind, finding.severity) for finding in result.findings} == {("unawaited", "error")}
    why = "anyio makes the coroutine before the task that awaits it takes its first step"
    audit(scenario, ignore={"unawaited *.work *": why}).assert_clean()


def test_a_cancel_that_leaves_its_scope_is_told_as_that() -> None:
    async def scenario() -> None:
        tasks = [asyncio.create_task(asyncio.sleep(seconds)) for seconds in (1, 3)]
        try:
            await asyncio.sleep(2)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(
                *tasks, return_exceptions=True
            )  # loses the message that anyio knows its cancel by

    assert {finding.kind for finding in audit(scenario, stops="scope").findings} == {"replaced"}


def test_a_process_that_is_reported_does_not_outlive_the_audit() -> None:
    pids: list[int] = []

    async def scenario() -> None:
        pids.append(subprocess.Popen(["sleep", "77"]).pid)  # noqa: ASYNC220
        await asyncio.sleep(0)

    result = audit(scenario, real_io=True, stops="cancel", phases="early")
    assert "process" in {finding.kind for finding in result.findings}
    assert len(pids) > 1
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_task_that_ignores_a_shutdown_does_not_cost_seconds() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    async def scenario() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(3)
        del task

    start = time.process_time()
    result = audit(scenario, stops="shutdown", phases="early")
    assert "hang" in {finding.kind for finding in result.findings}
    assert time.process_time() - start < 5


def test_the_line_for_a_test_stays_true_when_the_bug_is_mended() -> None:
    (finding,) = audit(item, stops="cancel", phases="early").findings
    text = str(audit(item, stops="cancel", phases="early"))
    assert "audit(item, stops='cancel', phases='early').assert_clean()" in text
    assert finding.example.token in text
