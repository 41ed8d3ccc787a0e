"""Processes that a held context manager, or a streamed generator, has started: they end with it, with their trees."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Held, NotHeld, Scope, Stream, contain, own, shielded, stream
from quiesce.kernel.contain import block_processes
from quiesce.kernel.contain.adopted_tree import AdoptedTree
from quiesce.kernel.inner import look_at_processes, stop_orphans, stop_processes
from quiesce.kernel.scope import unseen
from tests.kernel.processes import is_gone, running, token_of_processes, wait_until
from tests.world import asyncio_only

pytestmark = [pytest.mark.slow, asyncio_only, pytest.mark.real_time]

BRISK = Grace(cancel=0.3, terminate=0.2, kill=10.0)
Started = Any  # whatever the way of starting it gives: it has a `pid`


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as made:
        yield made


def tree(token: str) -> list[str]:
    """A shell with two children, all of which end when they are asked."""
    return ["sh", "-c", f"sleep 1{token} & sleep 2{token} & echo up; wait; exit 7"]


def deaf(token: str) -> list[str]:
    """The same, and none of them heeds a SIGTERM, nor the end of its input."""
    return [
        "sh",
        "-c",
        f"trap '' TERM HUP INT; sleep 1{token} & sleep 2{token} & echo up; while :; do wait; done",
    ]


def polite(token: str) -> list[str]:
    """Ends with its input, as a good server does."""
    return ["sh", "-c", f": {token}; echo up; while read line; do :; done; exit 5"]


def careless(token: str) -> list[str]:
    """Ends with its input, and leaves a child that heeds nothing."""
    return ["sh", "-c", f"(trap '' TERM HUP; exec sleep 1{token}) & echo up; while read line; do :; done"]


async def start(argv: list[str], **options: Any) -> Started:
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, **options)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    return process


async def start_without_pipes(argv: list[str]) -> Started:
    process = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=DEVNULL)
    token = argv[2].partition("sleep 1")[2].split()[0]
    assert await asyncio.to_thread(wait_until, lambda: len(running(token)) == 3)
    return process


async def start_in_a_session(argv: list[str]) -> Started:
    return await start(argv, start_new_session=True)


async def start_by_anyio(argv: list[str]) -> Started:
    process = await anyio.open_process(argv)
    assert process.stdout is not None
    assert await process.stdout.receive() == b"up\n"
    return process


async def start_in_a_task(argv: list[str]) -> Started:
    return await asyncio.ensure_future(start(argv))


async def start_and_close_its_input(argv: list[str]) -> Started:
    process = await start(argv)
    process.stdin.close()
    await asyncio.sleep(0.01)
    return process


WAYS = [
    start,
    start_without_pipes,
    start_in_a_session,
    start_by_anyio,
    start_in_a_task,
    start_and_close_its_input,
]


@contextlib.asynccontextmanager
async def leaves_it(
    argv: list[str], how: Callable[[list[str]], Awaitable[Started]] = start
) -> AsyncIterator[Started]:
    """Starts a process, and never ends it."""
    yield await how(argv)


@contextlib.asynccontextmanager
async def waits_for_it(argv: list[str]) -> AsyncIterator[Started]:
    """As SDKs do it: closes its input, and waits, for longer than anybody has time."""
    process = await start(argv)
    try:
        yield process
    finally:
        process.stdin.close()
        await process.wait()


@contextlib.asynccontextmanager
async def ends_it(argv: list[str]) -> AsyncIterator[Started]:
    """Kills the process, and only that: what it had started is nobody's any more."""
    process = await start(argv)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def words(argv: list[str], n: int = 1000) -> AsyncIterator[Started]:
    """Starts a process, hands it out again and again, and never ends it."""
    process = await start(argv)
    for _ in range(n):
        yield process
        await asyncio.sleep(0.001)


async def words_of_one_that_waits(argv: list[str]) -> AsyncIterator[Started]:
    process = await start(argv)
    try:
        while True:
            yield process
            await asyncio.sleep(1000)
    finally:
        process.stdin.close()
        await process.wait()


@contextlib.asynccontextmanager
async def not_touched(token: str) -> AsyncIterator[None]:
    """A process of somebody else's, which must be there in the end."""
    process = await start(tree(token))
    try:
        yield
        assert len(running(token)) == 3
        assert process.returncode is None
    finally:
        process.terminate()
        for pid in running(token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()
        await asyncio.sleep(0.05)  # for the loop to notice


# own --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS, ids=lambda way: way.__name__)
async def test_a_process_that_a_held_thing_has_left_is_ended_with_its_tree(
    how: Callable[[list[str]], Awaitable[Started]], token: str
) -> None:
    held = await own(leaves_it(tree(token), how), grace=Grace(terminate=30)).open()
    process = held.value
    assert len(running(token)) == 3
    report = await held.close()
    assert running(token) == []
    assert process.returncode == -signal.SIGTERM
    assert report.clean
    assert [outcome.name for outcome in report.outcomes][1:] == ["sh"]
    assert report.notes == ()


async def test_one_that_ends_as_its_context_manager_asks_is_left_to_that(token: str) -> None:
    held = await own(waits_for_it(polite(token))).open()
    process = held.value
    report = await held.close()
    assert process.returncode == 5
    assert [outcome.state for outcome in report.outcomes] == ["finished"]


async def test_where_the_time_to_leave_is_over_the_process_is_ended_under_it(token: str) -> None:
    held = await own(waits_for_it(deaf(token)), grace=BRISK).open()
    pid = held.value.pid
    began = time.monotonic()
    report = await held.close()
    assert time.monotonic() - began < BRISK.total
    assert running(token) == []
    assert report.clean
    assert report.notes == [
        f"process 'sh' (pid {pid}) did not respond to SIGTERM and was killed with its tree"
    ]


@pytest.mark.parametrize("how", ["block", "block that fails", "block that is cancelled", "scope", "dropped"])
async def test_however_it_is_left_its_processes_end(how: str, token: str) -> None:
    async def use() -> None:
        if how == "scope":
            async with Scope("app"):
                held.append(await own(waits_for_it(deaf(token)), grace=BRISK).open())
            return
        if how == "dropped":
            async with Scope("app"):
                with pytest.warns(ResourceWarning, match="dropped without close"):
                    await own(leaves_it(deaf(token)), grace=BRISK).open()
            return
        async with own(waits_for_it(deaf(token)), grace=BRISK):
            up.set()
            if how == "block that fails":
                raise LookupError("in the body")
            if how == "block that is cancelled":
                await asyncio.sleep(1000)

    up, held = asyncio.Event(), list[Held[Started]]()
    task = asyncio.ensure_future(use())
    if how == "block that is cancelled":
        await up.wait()
        task.cancel()
        for _ in range(2):  # and again, and a third time
            await asyncio.sleep(0.05)
            task.cancel()
    await asyncio.wait({task})
    assert running(token) == []
    assert task.cancelled() == (how == "block that is cancelled")
    if how == "block that fails":
        assert isinstance(task.exception(), LookupError)
    elif not task.cancelled():
        assert task.exception() is None


async def test_a_closer_that_is_cancelled_three_times_still_leaves_nothing(token: str) -> None:
    held = await own(waits_for_it(deaf(token)), grace=BRISK).open()
    task = asyncio.ensure_future(held.close())
    for _ in range(3):
        await asyncio.sleep(0.05)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running(token) == []


async def test_of_two_the_first_can_go_first_and_each_takes_its_own(token: str) -> None:
    first = await own(waits_for_it(deaf(f"0{token}")), grace=BRISK).open()
    second = await own(waits_for_it(deaf(f"1{token}")), grace=BRISK).open()

    async def close(held: Held[Started]) -> None:
        assert (await held.close()).clean

    await asyncio.ensure_future(close(first))
    assert running(f"0{token}") == []
    assert len(running(f"1{token}")) == 3
    await asyncio.ensure_future(close(second))
    assert running(token) == []


@pytest.mark.parametrize("server", [careless, tree, deaf], ids=lambda server: server.__name__)
async def test_what_the_clean_up_has_made_an_orphan_is_ended_too(
    server: Callable[[str], list[str]], token: str
) -> None:
    make = waits_for_it if server is careless else ends_it
    held = await own(make(server(token)), grace=BRISK).open()
    report = await held.close()
    assert running(token) == []
    assert report.clean


async def test_one_that_was_started_while_leaving_is_found(token: str) -> None:
    @contextlib.asynccontextmanager
    async def starts_late() -> AsyncIterator[None]:
        yield
        await start(tree(token))

    held = await own(starts_late()).open()
    assert (await held.close()).clean
    assert running(token) == []


async def test_one_whose_context_manager_could_not_be_entered_is_ended(token: str) -> None:
    @contextlib.asynccontextmanager
    async def fails() -> AsyncIterator[None]:
        await start(tree(token))
        if token:
            raise LookupError("no such thing")
        yield

    with pytest.raises(LookupError):
        await own(fails()).open()
    assert running(token) == []


async def test_one_whose_opener_was_cancelled_is_ended(token: str) -> None:
    @contextlib.asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        await start(deaf(token))
        await asyncio.sleep(1000)
        yield

    task = asyncio.ensure_future(own(slow(), grace=BRISK).open())
    await asyncio.to_thread(wait_until, lambda: len(running(token)) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running(token) == []


async def test_one_of_a_context_manager_that_fails_by_itself_is_ended(token: str) -> None:
    @contextlib.asynccontextmanager
    async def crashes() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            await start(tree(token))
            tasks.create_task(crash())
            yield

    async def crash() -> None:
        raise LookupError("it crashed")

    held = await own(crashes()).open()
    with contextlib.suppress(NotHeld):
        while held.value is None:
            await asyncio.sleep(0.001)
    with pytest.raises(ExceptionGroup):
        await held.close()
    assert running(token) == []


async def test_one_that_could_not_be_ended_in_time_is_named_and_can_be_closed_again(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SIGKILL is quick, so that it is kept back: as if the process hung in the kernel.
    monkeypatch.setattr(AdoptedTree, "signal", lambda self, number: None)
    held = await own(
        leaves_it(deaf(token)), grace=Grace(cooperate=0.1, cancel=0.1, terminate=0.1, kill=0.1)
    ).open()
    report = await held.close()
    (left,) = report.left
    assert (left.kind, left.name) == ("process", "sh")
    monkeypatch.undo()
    assert (await held.close(grace=BRISK)).clean
    assert running(token) == []


async def test_a_deadline_bounds_it(token: str) -> None:
    held = await own(waits_for_it(deaf(token)), grace=Grace(cancel=30, terminate=30, kill=600)).open()
    began = time.monotonic()
    report = await held.close(deadline=5)
    assert time.monotonic() - began < 5
    assert report.clean
    assert running(token) == []


# Whose ------------------------------------------------------------------------------------------------------


async def test_what_the_body_has_started_is_the_bodys(token: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with own(leaves_it(tree(f"0{token}"))):
            await stack.enter_async_context(not_touched(f"1{token}"))
        assert running(f"0{token}") == []


async def test_what_a_user_has_started_meanwhile_is_not_touched(token: str) -> None:
    async def user() -> None:
        await stack.enter_async_context(not_touched(f"1{token}"))

    async with contextlib.AsyncExitStack() as stack:
        held = await own(leaves_it(tree(f"0{token}"))).open()
        await asyncio.ensure_future(user())
        await held.close()
        assert running(f"0{token}") == []


async def test_one_from_before_is_not_touched(token: str) -> None:
    async with not_touched(token):
        held = await own(leaves_it(["sh", "-c", "echo up"])).open()
        assert (await held.close()).clean
        assert running(token)


async def test_what_a_held_thing_further_in_has_started_is_that_ones_to_end(token: str) -> None:
    @contextlib.asynccontextmanager
    async def pool() -> AsyncIterator[Started]:
        inner = await own(waits_for_it(polite(token))).open()
        yield inner.value
        held_inside.append(inner)

    held_inside: list[Held[Started]] = []

    held = await own(pool()).open()
    process = held.value
    assert (await held.close()).clean
    assert process.returncode == 5  # it was asked, and not signalled
    assert running(token) == []


async def test_inside_a_containment_each_process_is_ended_once(token: str) -> None:
    async with contain(grace=BRISK) as box:
        held = await own(waits_for_it(deaf(f"0{token}")), grace=BRISK).open()
        assert (await held.close()).clean
        assert running(f"0{token}") == []
        kept = await own(waits_for_it(polite(f"1{token}"))).open()
        polite_one = kept.value
        left = await own(leaves_it(tree(f"2{token}"))).open()
        process = left.value
    assert box.report is not None
    assert box.report.clean
    assert running(token) == []
    assert process.returncode == -signal.SIGTERM
    assert polite_one.returncode == 5


async def test_a_containment_inside_a_held_thing_ends_its_own(token: str) -> None:
    @contextlib.asynccontextmanager
    async def careful() -> AsyncIterator[None]:
        async with contain() as box:
            await start(tree(token))
            yield
        reports.append(box.report)

    reports: list[Any] = []
    held = await own(careful()).open()
    report = await held.close()
    assert [outcome.name for outcome in reports[0].outcomes] == ["sh"]
    assert len(report.outcomes) == 1
    assert running(token) == []


async def test_a_shielded_clean_up_inside_may_need_its_process_to_the_end(token: str) -> None:
    codes: list[int] = []

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[None]:
        process = await start(polite(token))

        async def say_goodbye() -> None:
            await asyncio.sleep(0.1)
            process.stdin.close()
            codes.append(await process.wait())

        yield
        await shielded(say_goodbye)

    held = await own(connect()).open()
    assert (await held.close()).clean
    assert codes == [5]


async def test_a_loop_that_shows_its_processes_in_another_way_breaks_no_stop(
    token: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def of_another_make(loop: object) -> None:
        raise AttributeError("no such thing in this loop")

    monkeypatch.setattr(block_processes, "known_starts", of_another_make)
    monkeypatch.setattr(unseen, "_has_warned", False)
    with await asyncio.to_thread(subprocess.Popen, ["sleep", f"300{token}"]) as anothers:
        held = await own(ends_it(polite(token))).open()
        report = await held.close()
        anothers.kill()
    assert not report.left
    assert not report.clean
    assert report.unseen == (
        "processes that were started in 'ends_it': they could not be looked for: no such thing in this loop",
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no such thing in this loop" in caplog.text


# stream -----------------------------------------------------------------------------------------------------


async def take_one(items: Stream[Started]) -> Started:
    async for item in items:
        return item
    raise AssertionError("there was none")


@pytest.mark.parametrize("how", ["close", "aclose", "block", "scope", "end"])
async def test_the_processes_of_a_generator_end_with_it(how: str, token: str) -> None:
    if how == "block":
        async with stream(words(tree(token))) as items:
            async for _ in items:
                break
    elif how == "scope":
        async with Scope("app"):
            items = stream(words(tree(token)))
            async with items:
                await take_one(items)
    elif how == "end":
        assert len([item async for item in stream(words(tree(token), 3))]) == 3
    else:
        items = stream(words(tree(token)))
        iterator = aiter(items)
        process = await anext(iterator)
        report = await (items.close() if how == "close" else items.aclose())
        assert report.clean
        assert [outcome.name for outcome in report.outcomes][1:] == ["sh"]
        assert process.returncode == -signal.SIGTERM
    assert running(token) == []


async def test_after_a_bare_break_they_have_been_signalled_before_the_next_line_runs(token: str) -> None:
    items = stream(words(tree(token)))
    started: list[Started] = []
    async for process in items:
        started.append(process)
        break
    assert items.token.cancelled
    deadline = time.monotonic() + 10
    while not is_gone(started[0].pid):  # without a turn of the loop: it has been told already
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert (await items.close()).clean
    assert running(token) == []


async def test_after_a_bare_break_one_that_does_not_heed_that_is_killed_behind(token: str) -> None:
    items = stream(words_of_one_that_waits(deaf(token)), grace=BRISK)
    async for _ in items:
        break
    report = await items.close()
    assert report.clean
    assert "was killed with its tree" in report.notes[0]
    assert running(token) == []


async def test_a_consumer_that_is_cancelled_finds_them_ended(token: str) -> None:
    async def consume() -> None:
        async for _ in stream(words_of_one_that_waits(deaf(token)), grace=BRISK):
            up.set()

    up = asyncio.Event()
    task = asyncio.ensure_future(consume())
    await up.wait()
    for _ in range(3):
        await asyncio.sleep(0.05)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running(token) == []


async def test_two_streams_closed_by_others_first_in_first_out(token: str) -> None:
    async def consume(items: Stream[Started]) -> None:
        async for _ in items:
            pass

    both = [stream(words_of_one_that_waits(deaf(f"{n}{token}")), grace=BRISK) for n in range(2)]
    tasks = [asyncio.ensure_future(consume(items)) for items in both]
    await asyncio.to_thread(wait_until, lambda: len(running(token)) == 6)
    for n, items in enumerate(both):
        assert (await items.close()).clean
        assert running(f"{n}{token}") == []
        assert len(running(token)) == 3 * (1 - n)
    await asyncio.gather(*tasks)


async def test_what_the_consumer_has_started_is_the_consumers(token: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async for _ in stream(words(tree(f"0{token}"))):
            await stack.enter_async_context(not_touched(f"1{token}"))
            break
        await asyncio.to_thread(wait_until, lambda: running(f"0{token}") == [])
        assert running(f"0{token}") == []


@pytest.mark.parametrize("cooperate", [0, 0.5])
async def test_what_the_clean_up_orphans_is_seen_before_it_also_with_time_to_cooperate(
    token: str, cooperate: float
) -> None:
    @contextlib.asynccontextmanager
    async def server() -> AsyncIterator[None]:
        shell = f"setsid sleep 1{token} & echo up; wait"
        process = await asyncio.create_subprocess_exec("sh", "-c", shell, stdout=PIPE)
        assert process.stdout is not None
        await process.stdout.readline()
        try:
            yield
        finally:
            process.kill()
            await process.wait()

    async with own(server(), grace=Grace(cooperate=cooperate)):
        pass
    assert running(token) == []


LATE = """
import asyncio
from contextlib import asynccontextmanager
from quiesce import own

@asynccontextmanager
async def server():
    async def start():
        await asyncio.sleep(0.05)
        process = await asyncio.create_subprocess_exec("sh", "-c", "trap '' TERM; : %s; echo; while :; do sleep 1; done")
        print(process.pid, flush=True)
        started.set()
        await asyncio.sleep(100)
    started = asyncio.Event()
    task = asyncio.create_task(start())
    yield started
    await asyncio.wait([task], timeout=0)

async def main():
    global held
    held = await own(server()).open()
    await held.value.wait()

asyncio.run(main())
"""


def test_a_process_that_was_told_to_go_when_the_loop_ended_goes_with_the_program(
    token: str, tmp_path: Path
) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE % token)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], stdout=subprocess.PIPE, timeout=15, check=False
    )
    pid = int(done.stdout.split()[0])
    give_up_at = time.monotonic() + 10
    while not is_gone(pid) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    gone = is_gone(pid)
    if not gone:
        os.kill(pid, 9)
    assert gone


# What other packages may ask for ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["own", "stream"])
async def test_in_a_stop_the_processes_can_be_stopped_before_the_clean_up_has_ended(
    kind: str, token: str
) -> None:
    patient = Grace(cancel=1000)
    thing: Held[Started] | Stream[Started]
    if kind == "own":
        thing = await own(waits_for_it(tree(token)), grace=patient).open()
    else:
        thing = stream(words_of_one_that_waits(tree(token)), grace=patient)
        await anext(thing)
    closing = asyncio.ensure_future(thing.close())
    await asyncio.sleep(0.1)
    assert len(running(token)) == 3
    stop_processes(thing)
    assert (await closing).clean
    assert running(token) == []


@pytest.mark.parametrize("kind", ["own", "stream"])
async def test_after_a_look_the_children_of_a_process_that_has_exited_are_still_known(
    kind: str, token: str
) -> None:
    thing: Held[Started] | Stream[Started]
    if kind == "own":
        thing = held = await own(leaves_it(careless(token)), grace=BRISK).open()
        process = held.value
    else:
        thing = stream(words(careless(token)), grace=BRISK)
        process = await anext(thing)
    look_at_processes(thing)
    process.stdin.close()
    while process.returncode is None:  # `wait()` would wait for the child, which holds a pipe
        await asyncio.sleep(0.01)
    assert len(running(token)) == 1
    assert (await thing.close()).clean
    assert running(token) == []


async def test_what_a_process_has_left_that_has_exited_can_be_stopped_while_the_thing_is_held(
    token: str,
) -> None:
    held = await own(leaves_it(careless(token)), grace=BRISK).open()
    look_at_processes(held)
    stop_orphans(held)  # there are none
    await asyncio.sleep(0.1)
    assert len(running(token)) == 2
    held.value.stdin.close()
    while held.value.returncode is None:
        await asyncio.sleep(0.01)
    stop_orphans(held)
    assert await asyncio.to_thread(wait_until, lambda: not running(token))
    assert (await held.close()).clean
