"""What comes before what: notifications, answers, and handlers that ask back."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce.wire import Limits, Notification, Peer, memory_pair
from tests.kernel.temperaments import turns
from tests.wire.bare import answers, asks, bare_and_peer, tells, two_peers


class Notes:
    """A handler that takes longer for the first than for the last, and keeps the order of their ends."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    async def __call__(self, params: Any) -> None:
        await turns(params["turns"])
        self.done.append((params.get("lane"), params["number"]))


def lane_of(params: Any) -> Any:
    return params.get("lane")


async def test_notifications_are_handled_in_order_however_long_each_takes() -> None:
    notes = Notes()
    async with two_peers(their_options={"notifications": {"note": notes}}) as (us, _):
        for number in range(20):
            await us.notify("note", {"number": number, "turns": 20 - number})
        while len(notes.done) < 20:
            await turns()
    assert [number for _, number in notes.done] == list(range(20))


async def test_lanes_are_each_in_order_and_do_not_wait_for_each_other() -> None:
    stuck = anyio.Event()
    done: list[tuple[str, int]] = []

    async def note(params: Any) -> None:
        if params["lane"] == "stuck" and params["number"] == 0:
            await stuck.wait()
        await turns(3 - params["number"])
        done.append((params["lane"], params["number"]))

    lanes = {"note": Notification(note, lane=lane_of)}
    async with two_peers(their_options={"notifications": lanes}) as (us, _):
        for number in range(3):
            for lane in ("stuck", "a", "b"):
                await us.notify("note", {"lane": lane, "number": number})
        while len(done) < 6:
            await turns()
        assert [it for it in done if it[0] == "a"] == [("a", 0), ("a", 1), ("a", 2)]
        assert [it for it in done if it[0] == "b"] == [("b", 0), ("b", 1), ("b", 2)]
        stuck.set()
        while len(done) < 9:
            await turns()
    assert done[6:] == [("stuck", 0), ("stuck", 1), ("stuck", 2)]


async def test_methods_without_a_lane_share_one() -> None:
    done: list[str] = []

    async def slow(params: Any) -> None:
        await turns(10)
        done.append("slow")

    async def quick(params: Any) -> None:
        done.append("quick")

    async with bare_and_peer(notifications={"slow": slow, "quick": quick}) as (bare, _):
        await bare.send(tells("slow"), tells("quick"), tells("slow"))
        while len(done) < 3:
            await turns()
    assert done == ["slow", "quick", "slow"]


async def test_an_answer_comes_after_the_notifications_that_were_sent_ahead_of_it() -> None:
    notes = Notes()

    async def load(params: Any) -> str:
        for number in range(10):
            await them.notify("note", {"number": number, "turns": 10 - number})
        return "loaded"

    async with two_peers(theirs={"load": load}, our_options={"notifications": {"note": notes}}) as (us, them):
        for _ in range(3):
            notes.done.clear()
            assert await us.request("load") == "loaded"
            assert [number for _, number in notes.done] == list(range(10))


async def test_an_error_comes_after_them_too() -> None:
    notes = Notes()
    async with (
        bare_and_peer(notifications={"note": notes}) as (bare, peer),
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            with pytest.raises(Exception, match="refused"):
                await peer.request("load")
            assert len(notes.done) == 1

        group.start_soon(ask)
        number = (await bare.line())["id"]
        await bare.send(
            tells("note", {"number": 0, "turns": 10}),
            {"jsonrpc": "2.0", "id": number, "error": {"code": 1, "message": "refused"}},
        )


async def test_an_answer_waits_for_its_own_lane_alone() -> None:
    stuck = anyio.Event()
    done: list[str] = []

    async def note(params: Any) -> None:
        if params["lane"] == "stuck":
            await stuck.wait()
        await turns(5)
        done.append(params["lane"])

    lanes = {"note": Notification(note, lane=lane_of)}
    async with bare_and_peer(notifications=lanes) as (bare, peer), anyio.create_task_group() as group:
        await bare.send(tells("note", {"lane": "stuck"}), tells("note", {"lane": "mine"}))

        async def ask() -> None:
            assert await peer.request("load", lane="mine") == 1
            assert done == ["mine"]
            stuck.set()

        group.start_soon(ask)
        await bare.send(answers((await bare.line())["id"], 1))


async def test_notifications_behind_an_answer_do_not_hold_it_up() -> None:
    stuck = anyio.Event()

    async def note(params: Any) -> None:
        await stuck.wait()

    async with (
        bare_and_peer(notifications={"note": note}) as (bare, peer),
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            assert await peer.request("load") == 1
            stuck.set()

        group.start_soon(ask)
        await bare.send(answers((await bare.line())["id"], 1), tells("note"), tells("note"))


async def test_a_caller_that_is_cancelled_while_its_answer_waits_in_the_lane_is_cancelled() -> None:
    go = anyio.Event()

    async def note(params: Any) -> None:
        await go.wait()

    async with bare_and_peer(notifications={"note": note}) as (bare, peer):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(peer.request, "load")
                number = (await bare.line())["id"]
                await bare.send(tells("note"), answers(number, 1))
                await bare.ping()
                scope.cancel()
        go.set()
        await bare.ping()
        while peer.statistics().notifications_waiting:
            await turns()


# Nobody waits for himself ------------------------------------------------------------------------------------


async def test_a_handler_of_notifications_may_ask_and_waits_for_nothing_behind_it() -> None:
    got: list[Any] = []

    async def note(params: Any) -> None:
        got.append(await us.request("echo", params))

    options = {"notifications": {"note": note}}
    async with two_peers(our_options=options) as (us, them):
        for number in range(3):
            await them.notify("note", number)
        while len(got) < 3:
            await turns()
    assert got == [0, 1, 2]


async def test_a_handler_of_notifications_asks_while_others_wait_behind_it_and_the_order_holds() -> None:
    got: list[Any] = []

    async def note(number: int) -> None:
        got.append(("begins", number))
        assert await peer.request("x") == number
        got.append(("ends", number))

    async with bare_and_peer(notifications={"note": note}) as (bare, peer):
        await bare.send(*(tells("note", number) for number in range(3)))
        for number in range(3):
            await bare.send(answers((await bare.line())["id"], number))
        await bare.ping()
        while len(got) < 6:
            await turns()
    assert got == [(what, number) for number in range(3) for what in ("begins", "ends")]


async def test_an_answer_for_another_waits_behind_a_handler_that_asks() -> None:
    got: list[str] = []

    async def note(params: Any) -> None:
        await peer.request("for the note")
        got.append("note")

    async with (
        bare_and_peer(notifications={"note": note}) as (bare, peer),
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            await peer.request("for the caller")
            got.append("caller")

        group.start_soon(ask)
        caller = (await bare.line())["id"]
        await bare.send(tells("note"))
        noted = (await bare.line())["id"]
        await bare.send(answers(caller, 1))
        await bare.ping()
        assert not got
        await bare.send(answers(noted, 1))
    assert got == ["note", "caller"]


async def test_handlers_that_wait_for_each_other_by_way_of_the_peer_all_get_their_answers() -> None:
    """A note asks the peer, which asks us first; and that handler asks the peer, whose answer comes behind the note."""
    done: list[str] = []

    async def note(params: Any) -> None:
        assert await us.request("question") == "answer"
        done.append("note")

    async def question(params: Any) -> str:
        assert await them.request("counter-question") == "counter-answer"
        return "answer"

    async def counter_question(params: Any) -> str:
        assert await us.request("echo", 7) == 7
        return "counter-answer"

    options = {"notifications": {"note": note}}
    ours, theirs = {"counter-question": counter_question}, {"question": question}
    async with two_peers(ours, theirs, our_options=options) as (us, them):
        await them.notify("note")
        while not done:
            await turns()


async def test_an_answer_that_a_handler_waits_for_is_let_through_when_the_lane_begins_to_ask() -> None:
    log: list[str] = []
    go, began = anyio.Event(), anyio.Event()

    async def note(params: Any) -> None:
        began.set()
        await go.wait()
        log.append(f"note heard {await peer.request('from the note')}")

    async def work(params: Any) -> str:
        log.append(f"work heard {await peer.request('from the work')}")
        return "done"

    async with bare_and_peer({"work": work}, notifications={"note": note}) as (bare, peer):
        await bare.send(asks(1, "work"))
        of_work = (await bare.line())["id"]
        await bare.send(tells("note"), answers(of_work, "A"))  # held: it came behind the note
        await began.wait()
        await bare.ping()
        assert log == []
        go.set()
        of_note = (await bare.line())["id"]
        assert await bare.line() == answers(1, "done")  # what the note waits for might have hung on this
        await bare.send(answers(of_note, "B"))
        await bare.ping()
        while len(log) < 2:
            await turns()
    assert log == ["work heard A", "note heard B"]


async def test_two_lanes_that_ask_in_the_lane_of_each_other_do_not_block() -> None:
    done: list[str] = []

    async def note(lane: str) -> None:
        other = {"a": "b", "b": "a"}[lane]
        assert await us.request("echo", lane, lane=other) == lane
        done.append(lane)

    lanes = {"note": Notification(note, lane=lambda lane: lane)}
    async with two_peers(our_options={"notifications": lanes}) as (us, them):
        await them.notify("note", "a")
        await them.notify("note", "b")
        while len(done) < 2:
            await turns()


@pytest.mark.parametrize("concurrent", [1, 2, 5])
async def test_requests_that_ask_back_end_whatever_the_limit_is(concurrent: int) -> None:
    """Each question is answered by asking back, ten deep; so more handlers wait than may be at work."""
    peers: list[Peer] = []

    async def down(depth: int) -> int:
        return depth if depth == 0 else 1 + await peers[(depth + 1) % 2].request("down", depth - 1)

    options = {"limits": Limits(concurrent=concurrent)}
    handlers = {"down": down}
    async with two_peers(handlers, handlers, our_options=options, their_options=options) as (us, them):
        peers += [us, them]
        async with anyio.create_task_group() as group:

            async def ask(peer: Peer, depth: int) -> None:
                assert await peer.request("down", depth) == depth

            for _ in range(5):
                group.start_soon(ask, us, 10)
                group.start_soon(ask, them, 11)
        while us.statistics().requests_at_work or them.statistics().requests_at_work:
            await turns()
        for peer in peers:
            assert peer._connection.requests.lent == 0
            assert peer._connection.backlog.nested == 0


async def test_a_task_that_outlives_its_handler_is_no_part_of_it() -> None:
    async with bare_and_peer() as (bare, peer), anyio.create_task_group() as group:

        async def work(params: Any) -> str:
            group.start_soon(peer.request, "later")
            return "done"

        peer._connection._handlers["work"] = type(peer._connection._handlers["echo"])(work)
        await bare.send(asks(1, "work"))
        first, second = await bare.lines(2)
        later = first if "method" in first else second
        await bare.ping()
        assert peer._connection.requests.lent == 0
        await bare.send(answers(later["id"], None))
    assert peer._connection.requests.lent == 0
    assert peer._connection.backlog.nested == 0


async def echo(params: Any) -> Any:
    return params


async def gather(peer: Peer, count: int, answers: list[Any]) -> None:
    async def ask(number: int) -> None:
        answers.append(await peer.request("echo", number))

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(ask, number)


async def test_a_long_queue_of_quick_requests_is_answered_to_the_last() -> None:
    one, other = memory_pair()
    answers: list[int] = []
    async with (
        Peer(one, {"echo": echo}, limits=Limits(concurrent=1)),
        Peer(other) as peer,
    ):
        await gather(peer, 900, answers)
    assert sorted(answers) == list(range(900))


async def test_what_the_other_side_told_before_it_went_is_handled_and_then_its_answer_delivered() -> None:
    one, other = memory_pair()
    handled: list[int] = []
    worked = anyio.Event()

    async def work(params: Any) -> str:
        for number in range(50):
            await server.notify("progress", number)
        worked.set()
        return "done"

    async def progress(number: int) -> None:
        await anyio.sleep(0.001)
        handled.append(number)

    server = Peer(one, {"work": work})
    client = Peer(other, notifications={"progress": progress})

    async def ask() -> None:
        assert await client.request("work") == "done"
        assert handled == list(range(50))

    async with server, client, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await worked.wait()
        await server.close()
    assert handled == list(range(50))
