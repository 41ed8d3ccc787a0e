"""`$/cancel_request`, both ways."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import pytest
import trio

from quiesce import CancelToken, current_token
from quiesce.wire import ConnectionEnded, Limits, Peer, Request, RequestCancelled, RpcError, memory_pair
from quiesce.wire.base.errors import REQUEST_CANCELLED
from quiesce.wire.rpc import calls
from tests.kernel.temperaments import cancellation, tidy_up, turns
from tests.wire.bare import Worker, answers, asks, bare_and_peer, cancels, complaints, two_peers
from tests.world import asyncio_only, trio_only

CANCELLED = {"code": -32800, "message": "Request cancelled"}


def refusal(id: object) -> dict[str, Any]:  # noqa: A002
    return {"jsonrpc": "2.0", "id": id, "error": CANCELLED}


# The peer cancels what it asked of us ------------------------------------------------------------------------


async def test_a_cancelled_handler_answers_that_it_was_cancelled() -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}) as (bare, _):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await bare.send(cancels(1))
        assert await bare.line() == refusal(1)
        assert worker.log == ["begins", "cancelled"]
        await bare.ping()


async def test_a_cancelled_handler_knows_by_its_token_who_did_it() -> None:
    tokens: list[CancelToken] = []
    begun = anyio.Event()

    async def work(params: Any) -> None:
        tokens.append(current_token())
        begun.set()
        await anyio.sleep_forever()

    async with bare_and_peer({"work": work}) as (bare, _):
        await bare.send(asks(1, "work"))
        await begun.wait()
        await bare.send(cancels(1))
        assert await bare.line() == refusal(1)
    assert str(tokens[0].reason) == "user: the peer has cancelled the request"


async def test_a_cancel_with_its_request_in_one_piece_is_answered_once() -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}) as (bare, peer):
        await bare.send(asks(1, "work"), cancels(1))
        assert await bare.line() == refusal(1)
        await bare.ping()
        assert worker.log in ([], ["begins", "cancelled"])  # an eager handler has begun
        await turns()
        assert peer.statistics().requests_at_work == 0


@pytest.mark.worlds("asyncio", "uvloop", "trio")
async def test_the_id_of_a_request_that_was_cancelled_before_it_began_is_free_at_once() -> None:
    async with bare_and_peer({"work": Worker()}) as (bare, _):
        await bare.send(
            asks(1, "work"), cancels(1), asks(1, "echo", "again"), cancels(1), asks(1, "echo", "at last")
        )
        assert await bare.lines(3) == [refusal(1), refusal(1), answers(1, "at last")]
        await bare.ping()


async def test_a_cancelled_request_that_waits_for_its_turn_never_begins() -> None:
    busy, queued = Worker(), Worker()
    async with bare_and_peer({"busy": busy, "queued": queued}, limits=Limits(concurrent=1)) as (bare, _):
        await bare.send(asks(1, "busy"), asks(2, "queued"), asks(3, "echo", 3))
        await busy.begun.wait()
        await bare.send(cancels(2))
        assert await bare.line() == refusal(2)
        busy.go.set()
        assert await bare.lines(2) == [answers(1, "done"), answers(3, 3)]
    assert queued.log == []


@pytest.mark.parametrize(
    "params", [None, 7, [], [1], {}, {"requestId": None}, {"requestId": [1]}, {"requestId": {}}], ids=str
)
async def test_a_cancel_that_names_nobody_does_nothing(params: Any) -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}) as (bare, _):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await bare.send({"jsonrpc": "2.0", "method": "$/cancel_request", "params": params})
        await bare.ping()
        assert worker.log == ["begins"]
        worker.go.set()
        assert await bare.line() == answers(1, "done")


@pytest.mark.parametrize("wrong", ["1", True, 2, -1, "unknown"])
async def test_a_cancel_of_an_unknown_id_does_nothing(wrong: object) -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}) as (bare, _):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await bare.send(cancels(wrong))
        await bare.ping()
        worker.go.set()
        assert await bare.line() == answers(1, "done")


async def test_a_cancel_of_a_finished_request_does_nothing_nor_to_the_next_of_that_id() -> None:
    async with bare_and_peer() as (bare, _):
        await bare.send(asks(1, "echo", "first"))
        assert await bare.line() == answers(1, "first")
        await bare.send(cancels(1), asks(1, "echo", "second"))
        assert await bare.line() == answers(1, "second")


async def test_a_handler_may_turn_its_cancel_into_a_value() -> None:
    begun = anyio.Event()

    async def work(params: Any) -> Any:
        try:
            begun.set()
            await anyio.sleep_forever()
        except cancellation():
            return {"stopReason": "cancelled"}

    async with bare_and_peer({"work": work}) as (bare, _):
        await bare.send(asks(1, "work"))
        await begun.wait()
        await bare.send(cancels(1))
        assert await bare.line() == answers(1, {"stopReason": "cancelled"})
        await bare.ping()


async def test_a_method_may_have_a_result_for_when_it_is_cancelled() -> None:
    worker, queued = Worker(), Worker()
    result = {"stopReason": "cancelled"}
    handlers = {
        "work": Request(worker, when_cancelled=result),
        "queued": Request(queued, when_cancelled=result),
    }
    async with bare_and_peer(handlers, limits=Limits(concurrent=1)) as (bare, _):
        await bare.send(asks(1, "work"), asks(2, "queued"))
        await worker.begun.wait()
        await bare.send(cancels(2))
        assert await bare.line() == answers(2, result)
        await bare.send(cancels(1))
        assert await bare.line() == answers(1, result)
    assert queued.log == []


async def test_a_handler_that_fails_in_its_clean_up_answers_with_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = anyio.Event()

    async def work(params: Any) -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            raise LookupError("page 7")

    async with bare_and_peer({"work": work}) as (bare, _):
        await bare.send(asks(1, "work"))
        await begun.wait()
        await bare.send(cancels(1))
        error = (await bare.line())["error"]
        assert (error["code"], error["data"]) == (-32603, {"details": "LookupError: page 7"})
        await bare.ping()
    assert "page 7" in caplog.text


async def test_a_group_with_an_error_in_it_is_an_error_not_a_cancel(caplog: pytest.LogCaptureFixture) -> None:
    begun = anyio.Event()

    async def work(params: Any) -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        except cancellation() as cancelled:
            raise BaseExceptionGroup("both", [cancelled, LookupError("page 7")]) from None

    async with bare_and_peer({"work": work}) as (bare, _):
        await bare.send(asks(1, "work"))
        await begun.wait()
        await bare.send(cancels(1))
        assert (await bare.line())["error"]["code"] == -32603
        await bare.ping()
    assert "page 7" in caplog.text


async def test_a_handler_that_takes_its_time_to_clean_up_is_waited_for_and_holds_up_nobody() -> None:
    worker = Worker(tidy=0.03)
    async with bare_and_peer({"work": worker}) as (bare, _):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await bare.send(cancels(1), asks(2, "echo", 2))
        assert await bare.line() == answers(2, 2)
        assert worker.log == ["begins"]
        assert await bare.line() == refusal(1)
        assert worker.log == ["begins", "cancelled"]


async def test_a_second_cancel_does_not_cut_the_clean_up() -> None:
    worker = Worker(tidy=0.03)
    async with bare_and_peer({"work": worker}) as (bare, _):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await bare.send(cancels(1))
        await bare.send(cancels(1), cancels(1))
        assert await bare.line() == refusal(1)
        assert worker.log == ["begins", "cancelled"]
        await bare.ping()


async def test_the_id_of_a_handler_that_cleans_up_is_not_free_yet() -> None:
    worker = Worker(tidy=0.03)
    async with bare_and_peer({"work": worker}) as (bare, _):
        await bare.send(asks(1, "work"))
        await worker.begun.wait()
        await bare.send(cancels(1), asks(1, "echo"))
        assert (await bare.line())["error"]["code"] == -32600
        assert await bare.line() == refusal(1)
        await bare.send(asks(1, "echo", "now"))
        assert await bare.line() == answers(1, "now")


# We cancel what we asked of the peer -------------------------------------------------------------------------


async def test_a_cancelled_caller_has_told_the_peer_and_the_late_answer_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    number = None
    async with bare_and_peer() as (bare, peer):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(peer.request, "work")
                number = (await bare.line())["id"]
                scope.cancel()
        assert peer.statistics().calls_waiting == 0
        assert await bare.line() == cancels(number)
        await bare.send(answers(number, "late"))
        await bare.ping()
        assert not peer._connection.calls._cancelled
        await bare.send(answers(number, "and again"))
        await bare.ping()
    assert not complaints(caplog)


async def test_cancelling_the_caller_cancels_the_handler_and_waits_for_nothing() -> None:
    worker = Worker(tidy=0.03)
    async with two_peers(theirs={"work": worker}) as (us, _):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(us.request, "work")
                await worker.begun.wait()
                scope.cancel()
        assert worker.log == ["begins"]
        assert await us.request("echo", 1) == 1
        while worker.log == ["begins"]:
            await anyio.sleep(0.01)
    assert worker.log == ["begins", "cancelled"]


@asyncio_only
async def test_a_timeout_of_asyncio_around_a_request_is_a_timeout() -> None:
    worker = Worker()
    async with two_peers(theirs={"work": worker}) as (us, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:

                async def run_out() -> None:
                    await worker.begun.wait()
                    limit.reschedule(asyncio.get_running_loop().time())

                group.create_task(run_out())
                await us.request("work")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(us.request("work"), 1)  # enough for it to begin
        assert await us.request("echo", 1) == 1
        assert worker.log.count("cancelled") == 2


@trio_only
async def test_a_deadline_of_trio_around_a_request_ends_it() -> None:
    worker = Worker()
    async with two_peers(theirs={"work": worker}) as (us, _):
        with trio.move_on_after(0.01) as scope:
            await us.request("work")
        assert scope.cancelled_caught
        assert await us.request("echo", 1) == 1
        assert worker.log == ["begins", "cancelled"]


async def test_a_call_that_is_cancelled_before_it_is_made_sends_nothing_that_stays() -> None:
    async with bare_and_peer() as (bare, peer):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await peer.request("work")
        asked = await bare.line()
        assert await bare.line() == cancels(asked["id"])
        assert peer.statistics().calls_waiting == 0


async def test_an_answer_and_the_cancel_of_its_call_at_the_same_time_end_it_once() -> None:
    async with bare_and_peer() as (bare, peer):
        for lateness in range(6):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(peer.request, "work")
                    number = (await bare.line())["id"]
                    await bare.send(answers(number, lateness))
                    await turns(lateness)
                    scope.cancel()
            assert peer.statistics().calls_waiting == 0
            await bare.ping()  # over the cancel, if there was one


async def test_a_cancel_goes_down_through_all_who_wait_for_each_other() -> None:
    bottom = Worker()
    peers: list[Peer] = []

    async def down(params: int) -> Any:
        return await peers[params % 2].request("down" if params else "bottom", params - 1)

    handlers = {"down": down, "bottom": bottom}
    async with two_peers(handlers, handlers) as (us, them):
        peers += [us, them]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(us.request, "down", 5)
                await bottom.begun.wait()
                scope.cancel()
        for peer in (us, them):
            await peer.request("echo")
        while us.statistics().requests_at_work or them.statistics().requests_at_work:
            await anyio.sleep(0.001)
        assert bottom.log == ["begins", "cancelled"]
        assert not us.statistics().calls_waiting
        assert not them.statistics().calls_waiting


async def test_an_answer_that_it_was_cancelled_is_no_cancellation_of_the_caller() -> None:
    async def gives_up(params: Any) -> None:
        raise RequestCancelled(-32800, "the user has closed the window")

    async with two_peers(theirs={"work": gives_up}) as (us, _):
        with pytest.raises(RequestCancelled, match="closed the window") as caught:
            await us.request("work")
        assert isinstance(caught.value, RpcError)
        assert isinstance(caught.value, Exception)


async def test_cancelled_calls_that_nobody_answers_are_not_all_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "REMEMBERED", 10)
    async with bare_and_peer() as (bare, peer):
        numbers = []
        for _ in range(15):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await peer.request("work")
            asked, _ = await bare.lines(2)
            numbers.append(asked["id"])
        assert list(peer._connection.calls._cancelled) == numbers[5:]
        await bare.send(*(answers(number, "late") for number in numbers))
        await bare.ping()
        assert not peer._connection.calls._cancelled


async def test_a_handler_cleans_up_with_a_notification_and_it_comes_before_its_answer() -> None:
    begun = anyio.Event()

    async def work(params: Any) -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await peer.notify("update", "stopping")
                await tidy_up(0.01)
                await peer.notify("update", "stopped")

    async with bare_and_peer({"work": work}) as (bare, peer):
        await bare.send(asks(1, "work"))
        await begun.wait()
        await bare.send(cancels(1))
        assert [it.get("params") for it in await bare.lines(2)] == ["stopping", "stopped"]
        assert await bare.line() == refusal(1)


async def forever(params: Any) -> None:
    await anyio.sleep_forever()


async def test_a_result_for_a_cancelled_request_that_cannot_be_said_costs_nobody_his_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, other = memory_pair()
    unsayable = Request(forever, when_cancelled=object())
    server = await Peer.open(one, {"forever": unsayable}, limits=Limits(concurrent=1))
    client = await Peer.open(other, {"forever": forever})
    outcomes: list[str] = []

    async def ask(peer: Peer) -> None:
        try:
            await peer.request("forever")
        except RpcError as error:
            outcomes.append(str(error.code))
        except ConnectionEnded:
            outcomes.append("ended")

    with caplog.at_level(logging.CRITICAL, "quiesce"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client)
            tasks.start_soon(ask, client)
            tasks.start_soon(ask, server)
            while not (
                server.statistics().requests_at_work == server.statistics().requests_waiting == 1
                and client.statistics().requests_at_work == 1
            ):
                await anyio.sleep(0.001)
            await server.close()
            await client.close()
    assert sorted(outcomes) == [str(REQUEST_CANCELLED), str(REQUEST_CANCELLED), "ended"]
