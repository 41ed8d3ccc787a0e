"""A peer takes on no more than it should, and sends no faster than the other side reads."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import anyio
import pytest

from quiesce.wire import ConnectionEnded, Limits, Peer, Request, RpcError, SocketTransport, memory_pair
from quiesce.wire.base.framing import Lines
from tests.kernel.temperaments import turns
from tests.wire.bare import Bare, Worker, answers, asks, bare_and_peer, tells, two_peers


async def test_no_more_are_at_work_than_may_and_the_others_get_their_turn() -> None:
    most, now = 0, 0

    async def work(params: Any) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await turns(5)
        now -= 1

    async with (
        two_peers(theirs={"work": work}, their_options={"limits": Limits(concurrent=3)}) as (us, _),
        anyio.create_task_group() as group,
    ):
        for _ in range(20):
            group.start_soon(us.request, "work")
    assert most == 3


async def test_requests_get_their_turn_in_the_order_in_which_they_came() -> None:
    async with bare_and_peer(limits=Limits(concurrent=1)) as (bare, _):
        await bare.send(*(asks(number, "echo", number) for number in range(20)))
        assert [it["id"] for it in await bare.lines(20)] == list(range(20))


async def test_when_too_many_requests_wait_nothing_more_is_read_until_they_are_less() -> None:
    worker = Worker()
    limits = Limits(concurrent=1, waiting=4)
    async with (
        bare_and_peer({"work": worker}, capacity=200, limits=limits) as (bare, peer),
        anyio.create_task_group() as group,
    ):

        async def ask_on() -> None:
            for number in range(100):
                await bare.send(asks(number, "work"))

        group.start_soon(ask_on)
        await worker.begun.wait()
        while peer.statistics().reading:
            await turns()
        await turns(20)
        assert peer.statistics().requests_waiting <= 4 + 5  # those of one piece more
        worker.go.set()
        assert [it["id"] for it in await bare.lines(100)] == list(range(100))
        while not peer.statistics().reading:
            await turns()


async def test_notifications_to_a_stuck_handler_are_not_read_without_end() -> None:
    go = anyio.Event()
    count = 0

    async def note(params: Any) -> None:
        nonlocal count
        await go.wait()
        count += 1

    sent = 0
    async with bare_and_peer(notifications={"note": note}) as (bare, peer):
        async with anyio.create_task_group() as group:

            async def tell_on() -> None:
                nonlocal sent
                line = b'{"jsonrpc":"2.0","method":"note"}\n' * 100
                for _ in range(200):
                    await bare.send(line)
                    sent += 100

            group.start_soon(tell_on)
            while peer.statistics().reading:
                await turns()
            await turns(50)
            statistics = peer.statistics()
            assert statistics.notifications_waiting < 1024 + 65536 // 34 + 1
            assert sent < 20_000
            go.set()
        while count < 20_000:
            await turns()
        assert peer.statistics().reading
        assert peer.statistics().notifications_waiting == 0
        await bare.ping()


async def test_few_notifications_that_are_large_are_not_read_without_end_either() -> None:
    go = anyio.Event()

    async def note(params: Any) -> None:
        await go.wait()

    limits = Limits(backlog=100_000)
    async with bare_and_peer(notifications={"note": note}, limits=limits) as (bare, peer):
        async with anyio.create_task_group() as group:

            async def tell_on() -> None:
                for _ in range(50):
                    await bare.send(tells("note", "x" * 20_000))

            group.start_soon(tell_on)
            while peer.statistics().reading:
                await turns()
            await turns(50)
            assert peer.statistics().notifications_waiting < 12
            go.set()
        await bare.ping()


async def test_while_a_handler_waits_for_an_answer_reading_goes_on() -> None:
    """Else the answer would never be seen: it comes behind the many that wait."""
    heard: list[Any] = []

    async def note(params: Any) -> None:
        heard.append(await peer.request("x") if params == 0 else params)

    limits = Limits(waiting=5)
    async with bare_and_peer(notifications={"note": note}, limits=limits) as (bare, peer):
        await bare.send(*(tells("note", number) for number in range(50)))
        number = (await bare.line())["id"]
        await bare.send(*(tells("note", number) for number in range(50, 100)))
        await bare.send(answers(number, "answer"))
        await bare.ping()
        while len(heard) < 100:
            await turns()
    assert heard == ["answer", *range(1, 100)]


async def test_meanwhile_requests_that_are_too_many_are_refused() -> None:
    async def work(params: Any) -> Any:
        return await peer.request("x")

    worker = Worker()
    limits = Limits(concurrent=1, waiting=2)
    async with bare_and_peer({"ask": work, "work": worker}, limits=limits) as (bare, peer):
        await bare.send(asks(0, "ask"))
        asked = await bare.line()
        await bare.send(*(asks(number, "work") for number in range(1, 8)))
        refused = await bare.lines(4)
        assert {it["error"]["code"] for it in refused} == {-32603}
        assert "Too many requests: 2 wait already" in refused[0]["error"]["message"]
        await bare.send(answers(asked["id"], "answer"))
        assert await bare.line() == answers(0, "answer")
        worker.go.set()
        assert {it["id"] for it in await bare.lines(3)} == {1, 2, 3}
        await bare.ping()


async def test_handlers_that_ask_do_not_lend_their_turns_without_end() -> None:
    async def work(params: Any) -> Any:
        return await peer.request("x")

    limits = Limits(concurrent=2, waiting=3)
    async with bare_and_peer({"work": work}, limits=limits) as (bare, peer):
        for number in range(5):
            await bare.send(asks(number, "work"))
            assert (await bare.line())["method"] == "x"
        await bare.send(*(asks(number, "work") for number in range(5, 20)))
        assert [it["error"]["code"] for it in await bare.lines(12)] == [-32603] * 12
        assert peer.statistics().requests_at_work == 5
        assert peer.statistics().requests_waiting == 3


async def test_a_peer_that_sends_too_much_meanwhile_is_cut_off() -> None:
    async def note(params: Any) -> None:
        await peer.request("x")

    limits = Limits(waiting=5, backlog=10_000)
    async with bare_and_peer(notifications={"note": note}, limits=limits) as (bare, peer):
        await bare.send(tells("note"))
        await bare.line()
        with pytest.raises(BrokenPipeError):
            while True:
                await bare.send(tells("note", "x" * 1000))
        report = await peer.wait_closed()
        assert report.clean
        assert isinstance(peer.error, ConnectionEnded)
        assert "more than 10000 bytes wait to be handled" in str(peer.error)


async def test_a_peer_that_goes_while_nothing_is_read_is_noticed() -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}, limits=Limits(concurrent=1, waiting=1)) as (bare, peer):
        await bare.send(asks(1, "work"), asks(2, "work"), asks(3, "work"))
        await worker.begun.wait()
        while peer.statistics().reading:
            await turns()
        bare.close()
        report = await peer.wait_closed()
        assert report.clean
        assert worker.log == ["begins", "cancelled"]


# A peer that does not read -----------------------------------------------------------------------------------


async def test_telling_waits_for_a_peer_that_does_not_read_and_no_longer() -> None:
    limits = Limits(unsent=1000)
    told = 0
    async with bare_and_peer(capacity=100, limits=limits) as (bare, peer), anyio.create_task_group() as group:

        async def tell_on() -> None:
            nonlocal told
            for _ in range(100):
                await peer.notify("note", "x" * 50)
                told += 1

        group.start_soon(tell_on)
        await turns(50)
        assert told < 20
        assert peer.statistics().bytes_unsent < 1200
        assert len(await bare.lines(100)) == 100
    assert told == 100
    assert peer.statistics().bytes_unsent == 0


async def test_asking_waits_for_a_peer_that_does_not_read_and_can_be_cancelled() -> None:
    async with bare_and_peer(capacity=100, limits=Limits(unsent=1000)) as (bare, peer):
        with anyio.move_on_after(0.02) as scope:
            await peer.request("x", "y" * 5000)
        assert scope.cancelled_caught
        asked, cancelled = await bare.lines(2)
        assert cancelled["params"] == {"requestId": asked["id"]}


async def test_a_peer_that_asks_and_does_not_read_has_to_wait() -> None:
    """Its requests wait in the pipe, not here: also those for methods that nobody has."""
    limits = Limits(concurrent=3, waiting=3, unsent=1000)
    for method in ("echo", "nothing"):
        sent = 0
        async with bare_and_peer(capacity=1000, limits=limits) as (bare, peer):

            async def ask_on(bare: Bare, method: str) -> None:
                nonlocal sent
                for number in range(500):
                    await bare.send(asks(number, method, "x" * 100))
                    sent += 1

            async with anyio.create_task_group() as group:
                group.start_soon(ask_on, bare, method)
                while peer.statistics().reading:
                    await turns()
                await turns(30)
                assert sent < 100
                assert peer.statistics().bytes_unsent < 3000
                assert {it["id"] for it in await bare.lines(500)} == set(range(500))
            assert sent == 500


async def test_nonsense_of_a_peer_that_does_not_read_is_not_answered_without_end() -> None:
    async with bare_and_peer(capacity=1000, limits=Limits(unsent=1000)) as (bare, peer):
        for _ in range(200):
            await bare.send(b"nonsense\n" * 10)
        await turns()
        assert peer.statistics().bytes_unsent < 2000
        await bare.ping()


# Asking no more than the other side takes on -----------------------------------------------------------------


async def test_no_more_is_asked_at_a_time_than_may_be_unanswered() -> None:
    done: list[int] = []
    async with bare_and_peer(limits=Limits(unanswered=2)) as (bare, peer), anyio.create_task_group() as group:

        async def ask(number: int) -> None:
            assert await peer.request("x", number) == number
            done.append(number)

        for number in range(6):
            group.start_soon(ask, number)
        await turns(10)
        asked = await bare.lines(2)
        await bare.ping()
        assert peer.statistics().calls_waiting == 2
        for _ in range(4):
            first = asked.pop(0)
            await bare.send(answers(first["id"], first["params"]))
            asked.append(await bare.line())
        await bare.send(*(answers(it["id"], it["params"]) for it in asked))
    assert sorted(done) == list(range(6))


async def test_who_waits_to_ask_may_be_cancelled_and_the_turn_is_the_next_ones() -> None:
    async with bare_and_peer(limits=Limits(unanswered=1)) as (bare, peer), anyio.create_task_group() as group:
        scopes = [anyio.CancelScope() for _ in range(4)]
        got: list[int] = []

        async def ask(number: int) -> None:
            with scopes[number]:
                await peer.request("x", number)
                got.append(number)

        group.start_soon(ask, 0)
        asked = await bare.line()
        for number in (1, 2, 3):
            group.start_soon(ask, number)
            await turns()
        scopes[1].cancel()
        await turns()
        await bare.send(answers(asked["id"], None))
        asked = await bare.line()
        assert asked["params"] == 2
        scopes[2].cancel()
        assert (await bare.line())["method"] == "$/cancel_request"
        asked = await bare.line()
        assert asked["params"] == 3
        await bare.send(answers(asked["id"], None))
        await bare.ping()
        while got != [0, 3]:
            await turns()


async def test_who_waits_to_ask_is_told_of_the_end() -> None:
    async with bare_and_peer(limits=Limits(unanswered=1)) as (bare, peer), anyio.create_task_group() as group:
        told: list[str] = []

        async def ask() -> None:
            with pytest.raises(ConnectionEnded) as caught:
                await peer.request("x")
            told.append(str(caught.value))

        for _ in range(4):
            group.start_soon(ask)
        await bare.line()
        await turns()
        await peer.close()
        while len(told) < 4:
            await turns()
        assert sum("was not answered" in it for it in told) == 1
        assert sum("cannot be sent" in it for it in told) == 3


async def test_a_handler_asks_however_many_are_unanswered() -> None:
    async def work(params: Any) -> Any:
        return await peer.request("nested")

    limits = Limits(unanswered=1)
    async with (
        bare_and_peer({"work": work}, limits=limits) as (bare, peer),
        anyio.create_task_group() as group,
    ):
        group.start_soon(peer.request, "x")
        asked = await bare.line()
        await bare.send(asks(1, "work"))
        nested = await bare.line()
        assert nested["method"] == "nested"
        await bare.send(answers(nested["id"], 5))
        assert await bare.line() == answers(1, 5)
        await bare.send(answers(asked["id"], None))


@pytest.mark.parametrize("size", [10, 1000])
async def test_two_peers_that_ask_each_other_more_than_either_takes_on_both_get_their_answers(
    size: int,
) -> None:
    """Without that limit both would stop reading, each waiting for the other to read its answers."""
    options = {"limits": Limits(concurrent=2, waiting=8, unsent=2000, unanswered=8)}
    text = "x" * size
    async with (
        two_peers(our_options=options, their_options=options, capacity=500) as (us, them),
        anyio.create_task_group() as group,
    ):

        async def ask(peer: Peer) -> None:
            assert await peer.request("echo", text) == text

        for _ in range(60):
            group.start_soon(ask, us)
            group.start_soon(ask, them)


# The longest message -----------------------------------------------------------------------------------------


async def test_a_message_that_is_too_long_is_refused_and_the_next_is_read() -> None:
    async with bare_and_peer(limits=Limits(frame=1000)) as (bare, peer):
        await bare.send(asks(1, "echo", "x" * 2000))
        refused = await bare.line()
        assert (refused["id"], refused["error"]["code"]) == (None, -32600)
        assert "longer than 1000 bytes" in refused["error"]["message"]
        await bare.send(asks(2, "echo", "x" * 900))
        assert await bare.line() == answers(2, "x" * 900)
        assert not peer.closed


async def test_an_endless_line_takes_no_memory() -> None:
    async with bare_and_peer(limits=Limits(frame=1000)) as (bare, peer):
        for _ in range(200):
            await bare.send(b"x" * 60_000)
        link = peer._connection.sender.link
        assert link is not None
        assert isinstance(link.framing, Lines)
        assert not link.framing._pieces
        await bare.send(b"\n")
        await bare.ping()


async def test_a_call_whose_answer_is_too_long_for_us_still_ends_when_the_connection_does() -> None:
    async with two_peers(our_options={"limits": Limits(frame=1000)}) as (us, them):

        async def ask() -> None:
            with pytest.raises(ConnectionEnded):
                await us.request("long")

        async def long(params: Any) -> str:
            return "x" * 2000

        them._connection._handlers["long"] = type(them._connection._handlers["echo"])(long)
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            while not us.statistics().calls_waiting:
                await turns()
            await us.request("echo")
            await us.close()


# Over sockets, where the system has buffers of its own -------------------------------------------------------


@pytest.mark.real_time
async def test_over_a_socket_a_peer_that_does_not_read_makes_us_wait_and_then_gets_all() -> None:
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    told = 0
    size = 0
    with other:
        async with Peer(SocketTransport(one), limits=Limits(unsent=10_000)) as peer:
            async with anyio.create_task_group() as group:

                async def tell_on() -> None:
                    nonlocal told
                    for _ in range(2000):
                        await peer.notify("note", "x" * 1000)
                        told += 1

                group.start_soon(tell_on)
                while peer.statistics().bytes_unsent <= 10_000:
                    await anyio.sleep(0)
                await turns(20)
                assert told < 2000
                assert peer.statistics().bytes_unsent < 12_000
                other.setblocking(False)
                while told < 2000:
                    await anyio.sleep(0)
                    size += read_all(other)
            await peer.close()
            size += read_all(other)
    assert size > 2000 * 1000


def read_all(end: socket.socket) -> int:
    size = 0
    try:
        while data := end.recv(65536):
            size += len(data)
    except BlockingIOError:
        pass
    return size


@pytest.mark.real_time
async def test_over_sockets_large_and_small_messages_arrive_whole_and_in_order() -> None:
    got: list[int] = []

    async def note(params: Any) -> None:
        got.append(len(params))

    sizes = [1, 300_000, 2, 70_000, 65_536, 3, 1_000_000, 5] * 2
    async with two_peers(their_options={"notifications": {"note": note}}, over_sockets=True) as (us, _):
        for size in sizes:
            await us.notify("note", "x" * size)
        assert await us.request("echo", "y" * 500_000) == "y" * 500_000
        while len(got) < len(sizes):
            await anyio.sleep(0.001)
    assert got == sizes


@pytest.mark.real_time
async def test_over_sockets_both_sides_may_ask_a_lot_at_once() -> None:
    text = "x" * 20_000
    async with two_peers(over_sockets=True) as (us, them), anyio.create_task_group() as group:

        async def ask(peer: Peer) -> None:
            assert await peer.request("echo", text) == text

        for _ in range(100):
            group.start_soon(ask, us)
            group.start_soon(ask, them)


@pytest.mark.real_time
async def test_over_a_socket_a_refused_answer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    options = {"limits": Limits(frame=100_000)}
    async with two_peers(their_options=options, over_sockets=True) as (us, _):
        with pytest.raises(RpcError):
            await us.request("nothing", "x" * 50_000)
        with anyio.move_on_after(0.2):
            await us.request("echo", "x" * 200_000)  # refused with nobody's id
        assert await us.request("echo", 1) == 1
    assert "could not understand a message of ours: Invalid request: longer than 100000 bytes" in caplog.text


async def forever(params: Any) -> None:
    await anyio.sleep_forever()


async def test_what_is_sent_before_the_connection_is_open_is_bounded() -> None:
    one, other = memory_pair()
    client = Peer(one, limits=Limits(unsent=1000))
    client.start()
    seen: list[int] = []

    async def take(params: str) -> None:
        seen.append(len(params))

    async def tell() -> None:
        for _ in range(10):
            await client.notify("take", "x" * 500)

    async with Peer(other, notifications={"take": take}) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(tell)
        with anyio.fail_after(5):
            while len(seen) < 10:
                await anyio.sleep(0.01)
        assert server.statistics().notifications_waiting == 0
    await client.close()


@pytest.mark.real_time
async def test_a_peer_that_asks_and_cancels_without_ever_reading_is_disconnected() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    limits = Limits(unsent=1000, backlog=20_000)
    with theirs:
        async with Peer(
            SocketTransport(ours), {"forever": Request(forever, when_cancelled="x" * 500)}, limits=limits
        ) as peer:
            os.set_blocking(theirs.fileno(), False)
            number = 0
            with anyio.fail_after(15):
                while not peer.closed:
                    number += 1
                    ask = {"jsonrpc": "2.0", "id": number, "method": "forever"}
                    cancel = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": number}}
                    try:
                        theirs.send(b"".join(json.dumps(part).encode() + b"\n" for part in (ask, cancel)))
                    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                        pass
                    await anyio.sleep(0)
            await peer.wait_closed()
            assert "does not read" in str(peer.error)
