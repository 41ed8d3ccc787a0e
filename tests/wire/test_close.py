"""The end of a connection: by whomever, whenever, in whichever state. It never hangs and never swallows."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Coroutine
from typing import Any

import anyio
import pytest
import trio

from quiesce import Grace, Scope, ScopeClosed, current_scope
from quiesce.wire import (
    ConnectionEnded,
    Limits,
    Notification,
    Peer,
    RequestCancelled,
    SocketTransport,
    Transport,
    memory_pair,
)
from tests.kernel.temperaments import Stubborn, an_innocent_bystander, cancellation, tidy_up, turns
from tests.wire.bare import Bare, Worker, answers, asks, bare_and_peer, echo, tells, two_peers
from tests.world import World, asyncio_only, trio_only

CANCELLED = {"code": -32800, "message": "Request cancelled"}


async def ends_with_the_connection(peer: Peer, method: str = "work") -> str:
    """A call that is still waiting when the connection ends, and what it is told."""
    with pytest.raises(ConnectionEnded) as caught:
        await peer.request(method)
    return str(caught.value)


# What a close does -------------------------------------------------------------------------------------------


async def test_a_close_stops_handlers_and_sends_their_answers_before_the_end() -> None:
    workers = [Worker(), Worker(tidy=0.02)]
    async with bare_and_peer({"quick": workers[0], "slow": workers[1]}) as (bare, peer):
        await bare.send(asks(1, "quick"), asks(2, "slow"))
        for worker in workers:
            await worker.begun.wait()
        report = await peer.close()
        assert report.clean
        assert peer.closed
        assert peer.report is report
        assert [worker.log[-1] for worker in workers] == ["cancelled", "cancelled"]
        last = await bare.rest()
        assert sorted(it["id"] for it in last) == [1, 2]
        assert [it["error"] for it in last] == [CANCELLED, CANCELLED]


async def test_the_report_of_a_block_says_why_it_was_left() -> None:
    near, _ = memory_pair()
    peer = Peer(near)
    async with Scope() as scope:
        begun = anyio.Event()

        async def use() -> None:
            async with peer:
                begun.set()
                await anyio.sleep_forever()

        handle = scope.spawn(use)
        await begun.wait()
        handle.cancel("Esc")
        await handle.wait()
    assert peer.report is not None
    assert str(peer.report.reason) == "user: Esc"


async def test_requests_that_wait_for_their_turn_are_answered_too_and_never_begin() -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}, limits=Limits(concurrent=1)) as (bare, peer):
        await bare.send(*(asks(number, "work") for number in range(5)))
        await worker.begun.wait()
        await peer.close()
        last = await bare.rest()
    assert sorted(it["id"] for it in last) == [0, 1, 2, 3, 4]
    assert all(it["error"] == CANCELLED for it in last)
    assert worker.log == ["begins", "cancelled"]


async def test_a_handler_that_turns_its_cancel_into_a_value_answers_with_that() -> None:
    begun = anyio.Event()

    async def prompt(params: Any) -> Any:
        try:
            begun.set()
            await anyio.sleep_forever()
        except cancellation():
            with anyio.CancelScope(shield=True):
                await peer.notify("update", "stopping")
                await tidy_up(0.01)
            return {"stopReason": "cancelled"}

    async with bare_and_peer({"prompt": prompt}) as (bare, peer):
        await bare.send(asks(1, "prompt"))
        await begun.wait()
        await peer.close()
        assert await bare.rest() == [tells("update", "stopping"), answers(1, {"stopReason": "cancelled"})]


async def test_every_call_that_waits_fails_and_says_why() -> None:
    said: list[str] = []
    async with bare_and_peer() as (bare, peer), anyio.create_task_group() as group:

        async def ask(method: str) -> None:
            said.append(await ends_with_the_connection(peer, method))

        group.start_soon(ask, "one")
        group.start_soon(ask, "two")
        await bare.lines(2)
        await peer.close(reason="enough")
    assert sorted(said) == [
        "'one' was not answered: one end is closed (user: enough)",
        "'two' was not answered: one end is closed (user: enough)",
    ]
    assert peer.statistics().calls_waiting == 0


async def test_calls_fail_at_once_even_if_a_handler_takes_its_time() -> None:
    worker = Worker(tidy=0.05)
    failed_first: list[bool] = []
    async with bare_and_peer({"work": worker}) as (bare, peer), anyio.create_task_group() as group:

        async def ask() -> None:
            await ends_with_the_connection(peer)
            failed_first.append(worker.log == ["begins"])

        group.start_soon(ask)
        await bare.line()
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await peer.close()
    assert failed_first == [True]


async def test_a_handler_that_waits_for_an_answer_is_cancelled_not_failed() -> None:
    seen: list[str] = []

    async def work(params: Any) -> None:
        try:
            await peer.request("x")
        except BaseException as error:
            seen.append("cancelled" if isinstance(error, cancellation()) else repr(error))
            raise

    async with bare_and_peer({"work": work}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await bare.line()
        await peer.close()
        assert [it["error"] for it in await bare.rest()] == [CANCELLED]
    assert seen == ["cancelled"]


async def test_a_handler_that_shields_its_question_gets_an_end_to_it() -> None:
    seen: list[str] = []
    begun = anyio.Event()

    async def work(params: Any) -> str:
        begun.set()
        with anyio.CancelScope(shield=True):
            try:
                await peer.request("x")
            except (ConnectionEnded, asyncio.CancelledError) as error:
                seen.append(type(error).__name__)
        try:
            with anyio.CancelScope(shield=True):
                await peer.request("y")
        except ConnectionEnded as error:
            seen.append(str(error))
        return "done"

    async with bare_and_peer({"work": work}, grace=Grace(cancel=30)) as (bare, peer):
        await bare.send(asks(1, "work"))
        await bare.line()
        started = anyio.current_time()
        await peer.close(reason="enough")
        assert anyio.current_time() - started < 10
        assert await bare.rest() == [answers(1, "done")]
    assert seen[1] == "'y' cannot be sent: one end is closed (user: enough)"


async def test_notifications_that_wait_are_dropped_and_answers_among_them_are_not() -> None:
    told: list[Any] = []
    began = anyio.Event()

    async def note(params: Any) -> None:
        told.append(params)
        began.set()
        await anyio.sleep_forever()

    got: list[Any] = []
    async with (
        bare_and_peer(notifications={"note": note}) as (bare, peer),
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            got.append(await peer.request("x"))

        group.start_soon(ask)
        number = (await bare.line())["id"]
        await bare.send(tells("note", 1), tells("note", 2), answers(number, "answer"), tells("note", 3))
        await began.wait()
        await bare.ping()
        await peer.close()
        assert peer.statistics().notifications_waiting == 0
    assert (told, got) == ([1], ["answer"])


async def test_the_other_side_sees_the_end_and_ends_too() -> None:
    worker = Worker()
    async with two_peers(theirs={"work": worker}) as (us, them), anyio.create_task_group() as group:
        group.start_soon(ends_with_the_connection, us)
        await worker.begun.wait()
        await us.close()
        report = await them.wait_closed()
        assert report.clean
        assert str(report.reason) == "disconnect: the other side has closed it"
        assert worker.log == ["begins", "cancelled"]
        assert them.error is None


async def test_a_close_of_an_idle_peer_is_clean_and_quick() -> None:
    async with two_peers(our_options={"grace": Grace(cancel=30)}) as (us, _):
        started = anyio.current_time()
        report = await us.close()
        assert report.clean
        assert anyio.current_time() - started < 10


async def test_what_was_sent_before_the_close_arrives() -> None:
    got: list[Any] = []
    async with bare_and_peer(capacity=10_000) as (bare, peer), anyio.create_task_group() as group:

        async def read() -> None:
            got.extend(await bare.rest())

        for number in range(50):
            await peer.notify("note", [number, "x" * 1000])
        group.start_soon(read)
        await peer.close()
    assert [it["params"][0] for it in got] == list(range(50))


# Who closes --------------------------------------------------------------------------------------------------


async def test_any_task_may_close() -> None:
    one, other = memory_pair()
    bare = Bare(other)
    peers: list[Peer] = []

    async def opener() -> None:
        peers.append(await Peer.open(one, {"echo": echo}))

    async def user() -> None:
        await bare.ping()

    async def closer() -> None:
        assert (await peers[0].close()).clean

    for step in (opener, user, closer):
        async with anyio.create_task_group() as group:
            group.start_soon(step)
    assert await bare.rest() == []


@pytest.mark.parametrize("tidy", [0.0, 0.02])
async def test_a_handler_may_close_its_own_peer_and_still_answers(tidy: float) -> None:
    other = Worker(tidy=tidy)

    async def leave(params: Any) -> str:
        report = await peer.close(reason="asked to")
        assert report.clean
        return "bye"

    async with bare_and_peer({"leave": leave, "work": other}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await other.begun.wait()
        await bare.send(asks(2, "leave"))
        last = {it["id"]: it for it in await bare.rest()}
        assert last[2] == answers(2, "bye")
        assert last[1]["error"] == CANCELLED
        assert (await peer.wait_closed()).clean
    assert other.log == ["begins", "cancelled"]


async def test_several_handlers_may_close_their_peer_at_once() -> None:
    closed: list[str] = []

    async def leave(params: Any) -> Any:
        await peer.close()
        closed.append(params)
        return params

    async def note(params: Any) -> None:
        await peer.close()
        closed.append(params)

    async with bare_and_peer({"leave": leave}, notifications={"note": note}) as (bare, peer):
        await bare.send(asks(1, "leave", "a"), tells("note", "b"), asks(2, "leave", "c"))
        assert (await peer.wait_closed()).clean
        answered = [it["id"] for it in await bare.rest()]
    assert set(closed) >= {"a"}
    assert set(answered) == {1, 2}


async def test_a_handler_of_notifications_may_close_its_peer() -> None:
    after: list[str] = []

    async def note(params: Any) -> None:
        assert (await peer.close()).clean
        after.append("closed")

    async with bare_and_peer(notifications={"note": note}) as (bare, peer):
        await bare.send(tells("note"), tells("note"))
        assert await bare.rest() == []
        assert (await peer.wait_closed()).clean
    assert after == ["closed"]


async def test_a_task_that_was_started_at_once_may_close() -> None:
    after: list[str] = []

    async def leave() -> None:
        assert (await peer.close()).clean
        after.append("closed")

    exit_ = Notification(lambda params: current_scope().spawn(leave), at_once=True)
    async with bare_and_peer(notifications={"exit": exit_}) as (bare, peer):
        await bare.send(tells("exit"))
        assert await bare.rest() == []
        assert (await peer.wait_closed()).clean
    assert after == ["closed"]


async def test_a_stop_may_be_asked_for_in_a_handler_at_once() -> None:
    exit_ = Notification(lambda params: peer.cancel("asked to"), at_once=True)
    worker = Worker()
    async with bare_and_peer({"work": worker}, notifications={"exit": exit_}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await bare.send(tells("exit"), asks(2, "echo", "too late"))
        last = await bare.rest()
        report = await peer.wait_closed()
    found = {it["id"]: it for it in last}
    assert found[1]["error"] == CANCELLED
    assert found[2].get("result") == "too late" or found[2]["error"] == CANCELLED
    assert str(report.reason) == "user: asked to"


async def test_it_is_closed_twice_and_by_three_at_once() -> None:
    worker = Worker(tidy=0.02)
    reports: list[Any] = []
    async with bare_and_peer({"work": worker}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()

        async def close() -> None:
            reports.append(await peer.close())

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(close)
        reports.append(await peer.close())
        assert len(await bare.rest()) == 1
    assert len(reports) == 4
    assert all(report.clean for report in reports)
    assert worker.log == ["begins", "cancelled"]


async def test_two_peers_that_close_each_other_both_end() -> None:
    async def leave(params: Any) -> str:
        await peers[params].close()
        return "bye"

    handlers = {"leave": leave}
    async with two_peers(handlers, handlers) as peers, anyio.create_task_group() as group:

        async def ask(peer: Peer, which: int) -> None:
            try:
                assert await peer.request("leave", which) == "bye"
            except (ConnectionEnded, RequestCancelled):
                pass

        group.start_soon(ask, peers[0], 1)
        group.start_soon(ask, peers[1], 0)


async def test_the_end_of_its_owner_is_its_end() -> None:
    worker = Worker()
    one, other = memory_pair()
    bare = Bare(other)
    scope = await Scope.open("owner")
    peer = await Peer.open(one, {"work": worker}, scope=scope)
    await bare.send(asks(1, "work"))
    await worker.begun.wait()
    report = await scope.close(reason="enough")
    assert report.clean
    assert [it["error"] for it in await bare.rest()] == [CANCELLED]
    assert peer.closed
    with pytest.raises(ConnectionEnded):
        await peer.request("x")


async def test_an_error_in_the_block_ends_it_and_is_raised() -> None:
    worker = Worker()
    peers: list[Peer] = []
    with pytest.raises(LookupError, match="page 7"):
        async with bare_and_peer({"work": worker}) as (bare, peer):
            peers.append(peer)
            await bare.send(asks(1, "work"))
            await worker.begun.wait()
            raise LookupError("page 7")
    assert worker.log == ["begins", "cancelled"]
    assert peers[0].report is not None
    assert "page 7" in str(peers[0].report.reason)


async def test_a_bystander_is_not_disturbed() -> None:
    worker = Worker()
    async with an_innocent_bystander(), bare_and_peer({"work": worker}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await peer.close()


# The closer's own cancel -------------------------------------------------------------------------------------


async def test_a_closer_that_is_cancelled_has_closed_and_is_cancelled() -> None:
    worker = Worker(tidy=0.03)
    async with bare_and_peer({"work": worker}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        with anyio.move_on_after(0.01) as scope:
            await peer.close()
            pytest.fail("the cancellation was swallowed")
        assert scope.cancelled_caught
        assert worker.log == ["begins", "cancelled"]
        assert peer.report is not None
        assert peer.report.clean
        assert len(await bare.rest()) == 1


@asyncio_only
async def test_a_closer_that_is_cancelled_twice_has_closed_and_is_cancelled() -> None:
    worker = Worker(tidy=0.03)
    async with bare_and_peer({"work": worker}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        closer = asyncio.create_task(peer.close())
        await turns()
        closer.cancel()
        await turns()
        closer.cancel()
        await asyncio.wait([closer])
        assert closer.cancelled()
        assert worker.log == ["begins", "cancelled"]
        assert len(await bare.rest()) == 1


@asyncio_only
async def test_a_timeout_around_a_block_is_a_timeout() -> None:
    worker = Worker(tidy=0.02)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            async with bare_and_peer({"work": worker}) as (bare, _):
                await bare.send(asks(1, "work"))
                await worker.begun.wait()
                limit.reschedule(asyncio.get_running_loop().time() + 0.01)
                await asyncio.sleep(3600)
    assert worker.log == ["begins", "cancelled"]


@asyncio_only
async def test_a_timeout_around_a_close_is_a_timeout() -> None:
    worker = Worker(tidy=0.03)
    async with bare_and_peer({"work": worker}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await peer.close()
        assert worker.log == ["begins", "cancelled"]


@trio_only
async def test_a_deadline_of_trio_around_a_block_ends_it() -> None:
    worker = Worker(tidy=0.02)
    with trio.move_on_after(0.01) as scope:
        async with bare_and_peer({"work": worker}) as (bare, _):
            await bare.send(asks(1, "work"))
            await trio.sleep(3600)
    assert scope.cancelled_caught
    assert worker.log == ["begins", "cancelled"]


# Who does not let it end -------------------------------------------------------------------------------------

# Squeezed into a deadline: little of it is for what is cancelled, and there is time for the rest to go, on any machine.
LONG_AFTER_A_CANCEL = Grace(cancel=1, terminate=30, kill=30)


async def test_a_handler_that_ignores_its_cancel_is_named_and_the_deadline_holds() -> None:
    stubborn = Stubborn()
    begun = anyio.Event()

    async def work(params: Any) -> str:
        begun.set()
        await stubborn()
        return "at last"

    async with (
        bare_and_peer({"work": work}, grace=LONG_AFTER_A_CANCEL) as (bare, peer),
        anyio.create_task_group() as group,
    ):
        group.start_soon(ends_with_the_connection, peer, "x")
        await bare.line()
        await bare.send(asks(1, "work"))
        await begun.wait()
        started = anyio.current_time()
        report = await peer.close(deadline=3)
        stubborn.let_go()
        assert anyio.current_time() - started < 10
        assert [left.name.split()[0] for left in report.left] == ["work"], str(report)
        assert "Stubborn" in str(report)
        assert await bare.rest() == []  # the link is closed all the same
        assert (await peer.close()).clean


async def test_the_end_of_a_block_does_not_wait_again_for_what_has_had_its_grace() -> None:
    stubborn = Stubborn()
    begun = anyio.Event()

    async def work(params: Any) -> None:
        begun.set()
        await stubborn()

    async with bare_and_peer({"work": work}, grace=Grace(cancel=30)) as (bare, peer):
        await bare.send(asks(1, "work"))
        await begun.wait()
        report = await peer.close(deadline=0.1)
        started = anyio.current_time()
    assert anyio.current_time() - started < 10
    assert peer.report is not None
    assert [left.name for left in peer.report.left] == [left.name for left in report.left] == ["work"]
    stubborn.let_go()
    assert (await peer.close()).clean, "closing again waits again"


async def test_a_handler_of_notifications_that_ignores_its_cancel_holds_up_no_answer() -> None:
    stubborn = Stubborn()

    async def note(params: Any) -> None:
        await stubborn()

    got: list[Any] = []
    async with (
        bare_and_peer(notifications={"note": note}, grace=LONG_AFTER_A_CANCEL) as (bare, peer),
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            got.append(await peer.request("x"))

        group.start_soon(ask)
        number = (await bare.line())["id"]
        await bare.send(tells("note"), answers(number, "answer"))
        await bare.ping()
        report = await peer.close(deadline=3)
        await turns()
        assert got == ["answer"]
        stubborn.let_go()
        assert [left.name for left in report.left] == ["notifications"], str(report)
        assert (await peer.close()).clean
    assert got == ["answer"]


async def test_a_second_close_with_less_time_is_quicker() -> None:
    stubborn = Stubborn()
    begun = anyio.Event()

    async def work(params: Any) -> None:
        begun.set()
        await stubborn()

    async with bare_and_peer({"work": work}, grace=Grace(cancel=30)) as (bare, peer):
        await bare.send(asks(1, "work"))
        await begun.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(peer.close)
            await turns()
            started = anyio.current_time()
            report = await peer.close(deadline=0.1)
            stubborn.let_go()
            assert anyio.current_time() - started < 10
            assert not report.clean
        assert (await peer.close()).clean


@pytest.mark.parametrize("what", ["notify", "request", "answer"])
async def test_a_close_while_the_peer_does_not_read_returns_in_time_and_frees_who_waits(what: str) -> None:
    freed: list[str] = []

    async def long(params: Any) -> str:
        return "x" * 5000

    limits = Limits(unsent=1000)
    async with bare_and_peer({"long": long}, capacity=100, limits=limits, grace=LONG_AFTER_A_CANCEL) as (
        bare,
        peer,
    ):
        async with anyio.create_task_group() as group:

            async def use() -> None:
                try:
                    if what == "notify":
                        await peer.notify("note", "x" * 5000)
                    else:
                        await peer.request("ask", "x" * 5000)
                except ConnectionEnded as error:
                    freed.append(str(error))

            if what == "answer":
                await bare.send(asks(1, "long"))
            else:
                group.start_soon(use)
            while peer.statistics().bytes_unsent < 1000:
                await turns()
            await turns()
            started = anyio.current_time()
            report = await peer.close(deadline=6)  # a tenth of a second before it is broken off
            assert report.clean
            assert anyio.current_time() - started < 5.5
        if what == "notify":
            assert freed == ["'note' cannot be sent: one end is closed (user: closed)"]
        elif what == "request":
            assert freed == ["'ask' was not answered: one end is closed (user: closed)"]


async def test_a_close_from_inside_while_the_peer_does_not_read_returns_in_time() -> None:
    closed: list[bool] = []

    async def leave(params: Any) -> str:
        await peer.notify("note", "x" * 900)
        try:
            await peer.close()
        finally:
            closed.append(True)  # a cancel, when the time was over, is its own and is raised
        return "bye"

    grace = Grace(cancel=0.1, terminate=5, kill=5)
    async with bare_and_peer({"leave": leave}, capacity=100, grace=grace) as (bare, peer):
        await bare.send(asks(1, "leave"))
        started = anyio.current_time()
        assert (await peer.wait_closed()).clean
        assert anyio.current_time() - started < 5
    assert len(closed) == 1


# The other side ends -----------------------------------------------------------------------------------------


async def test_at_the_end_of_the_file_handlers_are_cancelled_and_calls_fail() -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}) as (bare, peer), anyio.create_task_group() as group:
        group.start_soon(ends_with_the_connection, peer, "x")
        await bare.line()
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        bare.close()
        report = await peer.wait_closed()
        assert report.clean
        assert report.reason is not None
        assert report.reason.kind == "disconnect"
        assert worker.log == ["begins", "cancelled"]
        assert peer.closed


async def test_at_the_end_of_the_file_answers_are_still_sent_if_the_other_side_reads() -> None:
    begun = anyio.Event()

    async def work(params: Any) -> str:
        try:
            begun.set()
            await anyio.sleep_forever()
        except cancellation():
            with anyio.CancelScope(shield=True):
                await peer.notify("update", "stopping")
                await tidy_up(0.01)
            return "partial"
        return ""

    async with bare_and_peer({"work": work}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await begun.wait()
        half_close(bare)
        assert await bare.rest() == [tells("update", "stopping"), answers(1, "partial")]
        assert (await peer.wait_closed()).clean


def half_close(bare: Bare) -> None:
    """Send no more, and read on."""
    pipe = bare.channel._sink  # type: ignore[attr-defined]
    pipe.ended = True
    pipe.changed()


async def test_the_last_message_before_the_end_of_the_file_needs_no_line_end() -> None:
    told: list[Any] = []
    stop = Notification(told.append, at_once=True)
    async with bare_and_peer(notifications={"stop": stop}) as (bare, peer):
        await bare.send(b'{"jsonrpc":"2.0","method":"stop","params":1}')
        half_close(bare)
        await peer.wait_closed()
    assert told == [1]


async def test_who_sends_after_the_other_side_has_gone_is_told() -> None:
    async with bare_and_peer() as (bare, peer):
        bare.close()
        with pytest.raises(ConnectionEnded):
            while True:
                await peer.notify("note")
                await turns()


async def test_closing_after_the_other_side_has_gone_is_fine() -> None:
    async with bare_and_peer() as (bare, peer):
        bare.close()
        assert (await peer.close()).clean


async def test_a_peer_whose_other_side_has_gone_before_opens_and_has_ended() -> None:
    one, other = memory_pair()
    Bare(other).close()
    peer = await Peer.open(one)
    assert (await peer.wait_closed()).clean
    with pytest.raises(ConnectionEnded):
        await peer.request("x")
    assert (await peer.close()).clean


async def test_a_block_around_a_peer_whose_other_side_has_gone_before_is_run() -> None:
    one, other = memory_pair()
    Bare(other).close()
    async with Peer(one) as peer:
        with pytest.raises(ConnectionEnded):
            await peer.request("x")


# Before it has begun -----------------------------------------------------------------------------------------


class Slow(Transport):
    """A transport that takes its time to connect, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.connect = anyio.Event()
        self.begun = anyio.Event()
        self.error = error
        self.discarded = 0
        self.inner, self.other = memory_pair()

    async def open(self, limits: Limits, scope: Scope) -> Any:
        self.begun.set()
        await self.connect.wait()
        if self.error is not None:
            raise self.error
        return await self.inner.open(limits, scope)

    def discard(self) -> None:
        self.discarded += 1
        self.inner.discard()


async def test_what_is_sent_before_it_is_connected_is_sent_then() -> None:
    slow = Slow()
    peer = Peer(slow)
    peer.start()
    await peer.notify("early", 1)
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            assert await peer.request("x") == "answer"

        group.start_soon(ask)
        await turns()
        slow.connect.set()
        bare = Bare(slow.other)
        assert await bare.line() == tells("early", 1)
        await bare.send(answers((await bare.line())["id"], "answer"))
    assert (await peer.close()).clean


async def test_a_close_before_it_is_connected_ends_it_and_fails_who_waits() -> None:
    slow = Slow()
    peer = Peer(slow, name="slow")
    peer.start()
    said: list[str] = []
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            said.append(await ends_with_the_connection(peer, "x"))

        group.start_soon(ask)
        await slow.begun.wait()
        await turns()
        assert (await peer.close(reason="enough")).clean
    assert said == ["'x' was not answered: slow was not opened (user: enough)"]
    assert slow.discarded == 1
    with pytest.raises(ConnectionEnded):
        await peer.request("x")
    with pytest.raises(ConnectionEnded):
        await peer.notify("x")


async def test_a_close_right_after_the_start_is_clean() -> None:
    one, other = memory_pair()
    peer = Peer(one)
    peer.start()
    async with anyio.create_task_group() as group:
        group.start_soon(peer.close)
        with pytest.raises(ConnectionEnded):
            await peer.request("x")
    assert (await peer.close()).clean
    assert len(await Bare(other).rest()) <= 1  # it has an end, and the question may have come through


async def test_a_close_in_the_same_step_as_the_start_is_clean() -> None:
    one, other = memory_pair()
    peer = Peer(one)
    peer.start()
    assert (await peer.close()).clean
    with pytest.raises(ConnectionEnded):
        await peer.request("x")
    assert await Bare(other).rest() == []


async def test_a_transport_that_cannot_be_opened_fails_everybody_with_that() -> None:
    slow = Slow(OSError("no such host"))
    peer = Peer(slow, name="slow")
    peer.start()
    said: list[str] = []
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            said.append(await ends_with_the_connection(peer, "x"))

        group.start_soon(ask)
        await turns()
        slow.connect.set()
    assert said == ["'x' was not answered: slow was not opened: OSError('no such host')"]
    with pytest.raises(OSError, match="no such host"):
        await peer.close()
    assert isinstance(peer.error, OSError)
    assert slow.discarded == 1


async def test_an_opener_is_told_why_a_transport_cannot_be_opened() -> None:
    slow = Slow(OSError("no such host"))
    slow.connect.set()
    with pytest.raises(OSError, match="no such host"):
        await Peer.open(slow)
    assert slow.discarded == 1


async def test_an_opener_that_is_cancelled_leaves_nothing() -> None:
    slow = Slow()
    with anyio.move_on_after(0.01) as scope:
        await Peer.open(slow)
    assert scope.cancelled_caught
    assert slow.discarded == 1


async def test_a_peer_cannot_be_opened_in_a_scope_that_is_closed() -> None:
    scope = await Scope.open("owner")
    await scope.close()
    with pytest.raises(ScopeClosed):
        await Peer.open(memory_pair()[0], scope=scope)


# Nobody closes -----------------------------------------------------------------------------------------------


async def test_a_peer_that_is_dropped_warns_and_ends() -> None:
    one, other = memory_pair()
    bare = Bare(other)
    worker = Worker()
    peer = await Peer.open(one, {"work": worker}, name="dropped one")
    await bare.send(asks(1, "work"))
    await worker.begun.wait()
    holders = [peer]
    del peer
    with pytest.warns(
        ResourceWarning, match=r"'dropped one', made at .*test_close\.py.*was dropped without close"
    ):
        holders.clear()
    assert [it["error"] for it in await bare.rest()] == [CANCELLED]
    while worker.log == ["begins"]:
        await turns()


async def test_a_peer_that_is_dropped_after_the_other_side_has_ended_is_no_leak() -> None:
    one, other = memory_pair()
    peer = await Peer.open(one)
    Bare(other).close()
    await peer.wait_closed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del peer
        gc.collect()


def run_on_trio(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def main() -> Any:
        return await coroutine

    return trio.run(main)


def test_the_end_of_the_program_is_its_end(world: World) -> None:
    log: list[str] = []

    one, other = memory_pair()

    async def main() -> Peer:
        worker = Worker()
        worker.log = log
        peer = await Peer.open(one, {"work": worker})
        await Bare(other).send(asks(1, "work"))
        await worker.begun.wait()
        return peer

    async def read() -> list[Any]:
        return await Bare(other).rest()

    run = asyncio.run if world.backend == "asyncio" else run_on_trio
    peer = run(main())
    assert log == ["begins", "cancelled"]
    assert peer.closed
    assert [it["error"] for it in run(read())] == [CANCELLED]  # it was still sent


@asyncio_only
def test_ctrl_c_ends_it_and_is_raised(world: World) -> None:
    log: list[str] = []

    async def main() -> None:
        worker = Worker()
        worker.log = log
        async with bare_and_peer({"work": worker}) as (bare, _):
            await bare.send(asks(1, "work"))
            await worker.begun.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert log == ["begins", "cancelled"]


async def test_a_stop_from_another_thread_ends_it() -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await anyio.to_thread.run_sync(lambda: peer.cancel("from a thread"))
        report = await peer.wait_closed()
        assert str(report.reason) == "user: from a thread"
        assert worker.log == ["begins", "cancelled"]


async def test_waiting_for_the_end_may_be_given_up() -> None:
    async with two_peers() as (us, _):
        with anyio.move_on_after(0.01):
            await us.wait_closed()
        assert not us.closed
        assert await us.request("echo", 1) == 1


@pytest.mark.real_time
async def test_a_peer_that_its_scope_refuses_lets_go_of_its_socket() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        scope = await Scope.open("closed")
        await scope.close()
        peer = Peer(SocketTransport(ours), scope=scope)
        with pytest.raises(ScopeClosed):
            peer.start()
        assert ours.fileno() == -1


@pytest.mark.real_time
async def test_a_call_that_waits_for_room_fails_at_once_when_the_connection_closes() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        peer = await Peer.open(SocketTransport(ours))
        closed: list[bool] = []

        async def ask() -> None:
            with pytest.raises(ConnectionEnded):
                await peer.request("x", "y" * 5_000_000)
            closed.append(peer.report is not None)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not peer.statistics().bytes_unsent:
                await anyio.sleep(0.001)
            await peer.close(deadline=0.5)  # all of which it takes: nobody reads
        assert closed == [False]
