"""Scenarios of two peers, for the audit to stop at every point. `SCENARIOS` is all of them.

Beside what the ledger knows (every clean-up that began came to its end), each run must leave peers that are settled, in which no call
waits, and that have answered exactly what they were asked: once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec

from quiesce import Grace, Scope
from quiesce.wire import (
    ConnectionEnded,
    Limits,
    MessageTransport,
    Notification,
    Peer,
    RequestCancelled,
    RpcError,
    memory_pair,
)
from tests.kernel.audited import WORLDS, Audited, clock, ledger, pause, tidy_up, work
from tests.wire.bare import Bare, asks, cancels, tells

SCENARIOS: list[Audited] = []


class Watched:
    """The peers of a run, and what each was asked and has answered."""

    def __init__(self) -> None:
        self.peers: list[tuple[Peer, Counter[Any], Counter[Any]]] = []

    def start(self) -> None:
        """A new run."""
        ledger.start()
        self.peers = []

    def peer(self, transport: object, handlers: dict[str, Any], **options: Any) -> Peer:
        asked: Counter[Any] = Counter()
        answered: Counter[Any] = Counter()

        def tap(way: str, frame: bytes) -> None:
            message = msgspec.json.decode(frame)
            if way == "in" and "method" in message and "id" in message:
                asked[message["id"]] += 1
            elif way == "out" and "method" not in message:
                answered[message["id"]] += 1

        peer = Peer(transport, handlers, tap=tap, **options)
        self.peers.append((peer, asked, answered))
        return peer

    def check(self) -> None:
        """After a run: nothing is half done."""
        for peer, asked, answered in self.peers:
            connection = peer._connection
            if peer._holding is None:
                continue
            ledger.expect(peer._held().core.is_settled(), f"{peer} is not settled")
            ledger.expect(len(connection.calls) == 0, f"{len(connection.calls)} calls of {peer} wait")
            ledger.expect(
                asked == answered, f"{peer} was asked {dict(asked)} and has answered {dict(answered)}"
            )
            ledger.expect(not connection.requests._open, f"{peer} has open requests")
            ledger.expect(not connection.lanes.busy, f"{peer} has busy lanes")
            ledger.expect(
                connection.sender.link is None or connection.sender.link.over, f"{peer} has its link"
            )
        self.peers = []
        ledger.check()


watched = Watched()


def audited(word: str, **options: Any) -> Callable[[Any], Any]:
    def take(function: Any) -> Any:
        SCENARIOS.append(Audited(word, function, WORLDS, {}, {}, False, {"check": watched.check, **options}))
        return function

    return take


async def echo(params: Any) -> Any:
    await pause(0.1)
    return params


async def slow(params: Any) -> Any:
    """Somebody's work, that tidies up when it is cancelled."""
    return await work(params)


@asynccontextmanager
async def two_peers(
    ours: dict[str, Any] | None = None, theirs: dict[str, Any] | None = None, **their_options: Any
) -> AsyncIterator[tuple[Peer, Peer]]:
    one, other = memory_pair()
    async with (
        watched.peer(one, {"echo": echo, "slow": slow, **(ours or {})}, name="we") as us,
        watched.peer(
            other, {"echo": echo, "slow": slow, **(theirs or {})}, name="they", **their_options
        ) as them,
    ):
        yield us, them


@audited("request")
async def requests_and_an_error() -> None:
    watched.start()

    async def fail(params: Any) -> None:
        raise RpcError(1, "no")

    async with two_peers(theirs={"fail": fail}) as (us, _):
        with suppress(ConnectionEnded, RequestCancelled):
            ledger.expect(await us.request("echo", 1) == 1, "the answer is another")
            with suppress(RpcError):
                await us.request("fail")


@audited("request")
async def requests_at_once_of_which_one_is_given_up() -> None:
    watched.start()
    async with two_peers() as (us, _):

        async def ask(seconds: float) -> None:
            with suppress(ConnectionEnded, RpcError):
                await us.request("slow", seconds)

        async with Scope("callers") as callers:
            callers.spawn(ask, 0.5)
            given_up = callers.spawn(ask, 5)
            await pause(1)
            given_up.cancel()


@audited("serve")
async def a_peer_that_is_asked_and_cancelled() -> None:
    watched.start()
    one, other = memory_pair()
    bare = Bare(other)
    try:
        async with watched.peer(one, {"echo": echo, "slow": slow}, limits=Limits(concurrent=2)):
            with suppress(BrokenPipeError):
                await bare.send(
                    asks(1, "slow", 5), asks(2, "slow", 1), asks(3, "echo", 3), asks(4, "slow", 5)
                )
                await pause(0.5)
                await bare.send(cancels(1), cancels(4))
                await bare.lines(4)
    finally:
        bare.close()


@audited("notify")
async def notifications_before_an_answer() -> None:
    watched.start()
    told: list[int] = []

    async def note(number: int) -> None:
        await pause(0.3 / (number + 1))
        told.append(number)

    async def load(params: Any) -> str:
        for number in range(3):
            await them.notify("note", number)
        return "loaded"

    one, other = memory_pair()
    async with (
        watched.peer(one, {}, notifications={"note": Notification(note)}, name="we") as us,
        watched.peer(other, {"load": load}, name="they") as them,
    ):
        with suppress(ConnectionEnded, RequestCancelled):
            await us.request("load")


@audited("notify")
async def a_lane_whose_handler_asks() -> None:
    watched.start()

    async def note(number: int) -> None:
        with suppress(ConnectionEnded, RpcError):
            await them.request("echo", number)

    async with two_peers(notifications={"note": note}) as (us, them):
        with suppress(ConnectionEnded):
            for number in range(2):
                await us.notify("note", number)
            await pause(1)


@audited("close")
async def closed_by_another_task_while_much_is_going_on() -> None:
    watched.start()
    one, other = memory_pair()
    us = watched.peer(one, {"echo": echo}, name="we")
    them = watched.peer(other, {"slow": slow}, name="they")
    us.start()
    them.start()

    async def ask() -> None:
        with suppress(ConnectionEnded, RpcError):
            await us.request("slow", 5)

    try:
        async with Scope("callers") as callers:
            callers.spawn(ask)
            await pause(0.5)
            ledger.report(await them.close())
    finally:
        try:
            ledger.report(await us.close())
        finally:
            ledger.report(await them.close())


@audited("close")
async def closed_by_its_own_handler() -> None:
    watched.start()

    async def leave(params: Any) -> str:
        await them.close()
        return "bye"

    async with two_peers(theirs={"leave": leave}) as (us, them):
        with suppress(ConnectionEnded, RpcError):
            async with Scope("callers") as callers:

                async def ask() -> None:
                    with suppress(ConnectionEnded, RpcError):
                        await us.request("slow", 5)

                callers.spawn(ask)
                await us.request("leave")


@audited("close")
async def closed_by_its_own_handler_over_what_a_task_closes() -> None:
    """Messages of others. Each answer is sent once, or the report tells of what could not be."""
    watched.start()
    put, get = anyio.create_memory_object_stream[str](10)
    sent: list[Any] = []

    async def send(text: str) -> None:
        await pause(0.1)
        sent.append(msgspec.json.decode(text)["id"])

    async def close() -> None:
        put.close()

    async def leave(params: Any) -> str:
        await peer.close()
        return "bye"

    peer = watched.peer(MessageTransport(get.receive, send, close), {"slow": slow, "leave": leave})
    try:
        async with peer:
            for number, method in enumerate(("slow", "leave"), 1):
                put.send_nowait(msgspec.json.encode(asks(number, method, 5)).decode())
            with anyio.move_on_after(clock.seconds(20)):  # the one who would close it may be cancelled
                await peer.wait_closed()
    finally:
        put.close()
        get.close()
        asked, notes = watched.peers[-1][1], peer.report.notes if peer.report is not None else ()
        is_sent = Counter(sent) == asked
        ledger.expect(
            is_sent or bool(notes), f"it was asked {dict(asked)}, and {sent} were sent, without a word"
        )


@audited("close")
async def the_other_side_ends() -> None:
    watched.start()
    one, other = memory_pair()
    bare = Bare(other)
    try:
        async with watched.peer(one, {"slow": slow}) as peer:
            with suppress(BrokenPipeError, ConnectionEnded):
                await bare.send(asks(1, "slow", 5), tells("nobody"))
                await pause(0.2)
                bare.close()
                await peer.wait_closed()
    finally:
        bare.close()


@audited("close")
async def while_the_peer_does_not_read() -> None:
    watched.start()
    one, other = memory_pair(capacity=50)
    grace = Grace(cancel=clock.seconds(10), terminate=clock.seconds(10), kill=clock.seconds(10))
    bare = Bare(other)
    try:
        async with (
            watched.peer(one, {"echo": echo}, limits=Limits(unsent=100), grace=grace) as peer,
            Scope("callers") as callers,
        ):

            async def tell() -> None:
                with suppress(ConnectionEnded):
                    await peer.notify("note", "x" * 500)

            callers.spawn(tell)
            await pause(0.2)
            await peer.close()
    finally:
        bare.close()


@audited("nested")
async def questions_that_are_answered_by_asking_back() -> None:
    watched.start()
    peers: list[Peer] = []

    async def down(depth: int) -> int:
        if depth == 0:
            await pause(0.2)
            return 0
        try:
            return 1 + int(await peers[(depth + 1) % 2].request("down", depth - 1))
        except anyio.get_cancelled_exc_class():
            await tidy_up(0.1)
            raise

    async with two_peers({"down": down}, {"down": down}, limits=Limits(concurrent=1)) as (us, them):
        peers += [us, them]
        with suppress(ConnectionEnded, RpcError):
            ledger.expect(await us.request("down", 4) == 4, "the answer is another")


@audited("start")
async def asked_before_it_is_connected() -> None:
    watched.start()
    one, other = memory_pair()
    us = watched.peer(one, {}, name="we")
    them = watched.peer(other, {"echo": echo}, name="they")
    us.start()
    them.start()
    try:
        with suppress(ConnectionEnded, RequestCancelled):
            await us.request("echo", 1)
    finally:
        try:
            ledger.report(await us.close())
        finally:
            ledger.report(await them.close())
