"""Work that runs elsewhere: a stop cancels it there, waits for the confirmation, and names what may still run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

import quiesce
from quiesce import Grace, Leftover, Remote, Scope, ScopeClosed, remote
from tests.kernel.temperaments import turns
from tests.world import asyncio_only

SHORT = Grace(cancel=0.5, terminate=0.25, kill=0.25)


class Elsewhere:
    """A machine that does work for us: what it was asked, and what it is doing."""

    def __init__(self, *, starting: float = 0.0, ending: float = 0.1, cancelling: float = 0.0) -> None:
        self.log: list[str] = []
        self.running: set[str] = set()
        self.starting, self.ending, self.cancelling = starting, ending, cancelling
        self.failures: list[Exception] = []  # what the next requests raise
        self.confirms = True

    async def start(self) -> str:
        self.log.append("start")
        self.running.add(
            "job-1"
        )  # as soon as the request is there, whether anybody waits for the answer or not
        await anyio.sleep(self.starting)
        return "job-1"

    async def cancel(self, job: str) -> None:
        self.log.append(f"cancel {job}")
        await anyio.sleep(self.cancelling)
        if self.failures:
            raise self.failures.pop(0)

    async def confirm(self, job: str) -> str:
        if not self.confirms:
            await anyio.sleep_forever()
        await anyio.sleep(self.ending)
        self.running.discard(job)
        return f"{job} has ended"

    def work(self, **options: Any) -> Remote[str, str]:
        return remote(self.start, self.cancel, self.confirm, name="job", **options)


async def test_the_end_of_its_block_cancels_it_there_and_waits_until_that_is_confirmed() -> None:
    there = Elsewhere()
    async with there.work() as job:
        assert (job.value, job.id) == ("job-1", "job-1")
        assert there.running == {"job-1"}
    assert there.log == ["start", "cancel job-1"]
    assert not there.running
    assert job.report is not None
    assert job.report.clean
    assert str(job.report.outcomes[0]) == "job job-1: cancelled"


async def test_work_that_has_ended_by_itself_is_not_cancelled() -> None:
    there = Elsewhere()
    async with there.work() as job:
        assert await job.wait() == "job-1 has ended"
    assert there.log == ["start"]
    assert job.report is not None
    assert job.report.clean
    assert not job.report.outcomes


async def test_done_says_that_there_is_nothing_to_stop() -> None:
    there = Elsewhere()
    async with there.work() as job:
        job.done()
    assert there.log == ["start"]


async def test_a_cancelled_caller_gets_its_cancellation_after_the_work_has_ended() -> None:
    there = Elsewhere()
    with anyio.move_on_after(1) as limit:
        async with there.work():
            await anyio.sleep_forever()
    assert limit.cancelled_caught
    assert there.log == ["start", "cancel job-1"]
    assert not there.running


async def test_a_caller_that_is_cancelled_while_it_waits_leaves_the_work_to_the_stop() -> None:
    there = Elsewhere(ending=10)
    async with there.work() as job:
        with anyio.move_on_after(1):
            await job.wait()
        assert there.running
        there.ending = 0.1
    assert there.log == ["start", "cancel job-1"]
    assert not there.running


async def test_a_start_that_was_sent_is_not_cut_but_waited_for_and_then_cancelled() -> None:
    there = Elsewhere(starting=1)
    with anyio.move_on_after(0.5):
        async with there.work():
            pytest.fail("nobody may use it")
    assert there.log == ["start", "cancel job-1"]
    assert not there.running


async def test_a_start_without_an_answer_is_left_over_because_it_may_run() -> None:
    there = Elsewhere(starting=1000)
    async with Scope(grace=SHORT) as scope:
        job = there.work(scope=scope)
        with anyio.move_on_after(0.5):
            await job.open()
        assert job.report is not None
        assert [(left.kind, left.name, left.stuck_at) for left in job.report.left] == [
            ("remote", "job", "its start was interrupted: it may be running")
        ]
        assert "test_remote.py" in job.report.left[0].made_at
        job.done()  # somebody has looked
        assert (await scope.close()).clean


async def test_a_start_that_fails_raises_its_error_and_leaves_nothing() -> None:
    async def refuse() -> str:
        raise ConnectionRefusedError("no")

    there = Elsewhere()
    async with Scope() as scope:
        with pytest.raises(ConnectionRefusedError):
            await remote(refuse, there.cancel, there.confirm, name="job", scope=scope).open()
        report = await scope.close()
    assert report.clean
    assert there.log == []


async def test_a_cancel_that_fails_is_sent_again() -> None:
    there = Elsewhere()
    there.failures = [ConnectionResetError(), TimeoutError()]
    async with there.work() as job:
        pass
    assert there.log == ["start", *["cancel job-1"] * 3]
    assert job.report is not None
    assert job.report.clean


async def test_a_confirmation_that_fails_is_asked_for_again_without_another_cancel() -> None:
    there = Elsewhere()
    asked = []

    async def confirm(job: str) -> None:
        asked.append(job)
        if len(asked) < 3:
            raise ConnectionResetError

    async with remote(there.start, there.cancel, confirm, name="job") as job:
        pass
    assert asked == ["job-1"] * 3
    assert there.log == ["start", "cancel job-1"]
    assert job.report is not None
    assert job.report.clean


@asyncio_only
async def test_a_confirmation_whose_own_task_was_cancelled_is_asked_for_again() -> None:
    """A poller that several callers share, for example: the cancel of one of them ends it for all."""
    there = Elsewhere()
    asked = []

    async def confirm(job: str) -> None:
        asked.append(job)
        poller = asyncio.ensure_future(asyncio.sleep(1))
        if len(asked) < 3:
            asyncio.get_running_loop().call_soon(poller.cancel)
        await poller

    async with remote(there.start, there.cancel, confirm, name="job", grace=Grace(cancel=5)) as job:
        pass
    assert asked == ["job-1"] * 3
    assert job.report is not None
    assert job.report.clean


@pytest.mark.parametrize("refuses", [False, True])
async def test_what_is_not_confirmed_in_time_is_named_with_its_id_and_stays_owned(refuses: bool) -> None:
    there = Elsewhere()
    there.confirms = False
    if refuses:
        there.failures = [ConnectionResetError("gone")] * 100
    job = await there.work(grace=SHORT).open()
    began = anyio.current_time()
    report = await job.close()
    assert 1.0 <= anyio.current_time() - began < 1.2
    (left,) = report.left
    assert (left.kind, left.name) == ("remote", "job job-1")
    assert left.stuck_at == (
        "its cancel could not be sent: ConnectionResetError('gone')"
        if refuses
        else "cancelled, and not confirmed"
    )
    assert not report.clean
    # The other side comes back: a second close has the rest of the work to do.
    there.failures.clear()
    there.confirms = True
    if not refuses:
        job.done()
    report = await job.close(deadline=5)
    assert report.clean
    assert report.left == []


async def test_its_scope_stops_it_and_nothing_new_starts_after_that() -> None:
    there = Elsewhere()
    async with Scope() as scope:
        job = await there.work(scope=scope).open()
        report = await scope.close()
        assert job.closed
        assert report.clean
        with pytest.raises(ScopeClosed, match="cannot start 'job' in scope"):
            await there.work(scope=scope).open()
    assert there.log == ["start", "cancel job-1"]


async def test_it_is_closed_by_any_task_as_often_as_anybody_likes() -> None:
    there = Elsewhere()
    job = await there.work().open()
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(job.close)
    assert there.log == ["start", "cancel job-1"]
    assert (await job.close()).clean


async def test_a_second_cancel_does_not_cut_the_cancel_that_is_being_sent() -> None:
    there = Elsewhere(cancelling=1)

    async def use() -> None:
        async with there.work():
            await anyio.sleep_forever()

    async with Scope(on_error="report") as scope:
        handle = scope.spawn(use)
        await turns(5)
        for _ in range(3):
            handle.cancel()
            await anyio.sleep(0.1)
        await handle.wait()
    assert there.log == ["start", "cancel job-1"]
    assert not there.running


async def test_the_token_tells_of_the_stop() -> None:
    there = Elsewhere()
    job = await there.work().open()
    token = job.token
    assert str(token.reason) == "None"
    await job.close(reason="enough")
    assert token.cancelled
    assert str(token.reason) == "user: enough"


async def test_one_that_is_dropped_is_stopped_with_a_warning() -> None:
    there = Elsewhere()
    async with Scope() as scope:
        job = await there.work(scope=scope).open()
        holder = [job]
        del job
        with pytest.warns(ResourceWarning, match="'job', started at .*test_remote.py.* was dropped"):
            holder.clear()
        await anyio.sleep(1)
        assert there.log == ["start", "cancel job-1"]
        await scope.close()


async def test_the_id_may_come_from_an_attribute_or_from_a_function() -> None:
    class Response:
        id = "resp_7"

    async def start() -> Response:
        return Response()

    async def nothing(response: Response) -> None:
        pass

    async with remote(start, nothing, nothing, name="response") as job:
        assert job.id == "resp_7"
    async with remote(start, nothing, nothing, name="response", id=lambda value: type(value).__name__) as job:
        assert job.id == "Response"
        assert repr(job) == "<Remote 'response Response'>"


async def test_an_id_that_cannot_be_told_does_not_keep_the_work_from_being_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    there = Elsewhere()

    def fail(job: str) -> str:
        raise ValueError("no id")

    async with there.work(id=fail) as job:
        assert job.id == "of str"
    assert job.report is not None
    assert job.report.clean
    assert "cancel job-1" in there.log
    assert "the id of 'job' cannot be told: ValueError('no id')" in caplog.text


async def test_a_confirmation_that_fails_while_it_is_waited_for_is_the_callers_and_the_work_goes_on() -> None:
    there = Elsewhere()
    asked = 0

    async def confirm(job: str) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionError("down")
        return await there.confirm(job)

    async with remote(there.start, there.cancel, confirm, name="job") as job:
        with pytest.raises(ConnectionError, match="down"):
            await job.wait()
        assert await job.wait() == "job-1 has ended"
    assert there.log == ["start"]


async def test_the_tree_shows_it(world: Any) -> None:
    there = Elsewhere()
    async with there.work():
        lines = [branch.line for branch in quiesce.tree().walk() if branch.kind == "remote"]
    assert lines == ["remote job job-1: it runs"]


async def test_it_is_used_once() -> None:
    job = Elsewhere().work()
    with pytest.raises(RuntimeError, match="'job' is not started: use `async with remote"):
        _ = job.value
    async with job:
        with pytest.raises(RuntimeError, match="was started before; call remote"):
            await job.open()


def test_what_is_not_a_function_is_refused() -> None:
    there = Elsewhere()
    with pytest.raises(
        TypeError, match=r"remote \(start\) takes an async function and its arguments, not a coroutine"
    ):
        remote(there.start(), there.cancel, there.confirm, name="job")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"remote \(confirm\) takes an async function, not NoneType"):
        remote(there.start, there.cancel, None, name="job")  # type: ignore[arg-type]


def test_a_leftover_of_it_prints_as_others_do() -> None:
    left = Leftover("remote", "job job-1", "app.py:3 in main", "cancelled, and not confirmed")
    assert str(left) == "remote 'job job-1', stuck at cancelled, and not confirmed, made at app.py:3 in main"


RUNNERS = ("asyncio", "trio")


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("closing", ["closed", "closed in no time", "left open"])
def test_work_that_confirms_nothing_does_not_keep_the_program_from_ending(
    runner: str, closing: str, caplog: pytest.LogCaptureFixture
) -> None:
    there = Elsewhere()
    there.confirms = False

    async def main() -> Sequence[Leftover]:
        job = await there.work(grace=SHORT).open()
        kept.append(job)
        if closing == "left open":
            return []
        report = await job.close(deadline=0 if closing == "closed in no time" else None)
        return report.left

    kept: list[Remote[str, str]] = []
    began = time.monotonic()
    left = anyio.run(main, backend=runner)
    assert time.monotonic() - began < 2 * SHORT.total + 1
    assert there.log == ["start", "cancel job-1"]
    if closing == "left open":
        assert "job job-1" in caplog.text
    else:
        assert [one.kind for one in left] == ["remote"]
        assert caplog.text.count("job job-1") <= 1


@pytest.mark.parametrize("runner", RUNNERS)
def test_work_that_is_left_open_is_cancelled_when_the_program_ends(
    runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    there = Elsewhere()
    kept: list[Remote[str, str]] = []

    async def main() -> None:
        kept.append(await there.work(grace=SHORT).open())

    anyio.run(main, backend=runner)
    assert there.log == ["start", "cancel job-1"]
    assert not there.running
    assert "left" not in caplog.text
