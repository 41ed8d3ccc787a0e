"""The contract of closing, on every transport and for every way to close: each request that was read is answered, once.

What else closing does, and in which order, is in `test_close`.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Handle, Scope
from quiesce.wire import Limits, MessageTransport, Peer, connect_tcp
from tests.kernel.temperaments import cancellation
from tests.wire.bare import Worker, asks, tells
from tests.wire.both_ends import (
    EVERYWHERE,
    ON_ASYNCIO,
    BothEnds,
    Far,
    Mailbox,
    MemoryFar,
    SocketFar,
    over_asyncio_streams,
)
from tests.world import asyncio_only

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(60)]

GRACE = Grace(cancel=1, terminate=1, kill=3)  # what never closes costs a second


class Used:
    """A peer in use: three requests at work, one that waits for its turn, and a task that holds the block."""

    def __init__(self, near: Any, owner: Scope, leave: Callable[[Used], Awaitable[Any]]) -> None:
        self.owner = owner
        self.worker = Worker(tidy=0.01)
        self.opened, self.all_came, self.leave_block = anyio.Event(), anyio.Event(), anyio.Event()
        self.error: Exception | None = None
        self._leave = leave
        handlers: dict[str, Any] = {"work": self.worker, "keep": self.keep, "leave": self.leave}
        self.peer = Peer(
            near,
            handlers,
            notifications={"leave": self.leave},
            limits=Limits(concurrent=3),
            grace=GRACE,
            scope=owner,
        )

    async def keep(self, params: Any) -> str:
        """Answers with a value, though it is cancelled."""
        try:
            await anyio.sleep_forever()
        except cancellation():
            return "kept"
        raise AssertionError

    async def leave(self, params: Any) -> Any:
        await self.all_came.wait()
        return await self._leave(self)

    async def hold(self) -> None:
        with anyio.CancelScope() as self.time_limit:
            async with self.peer:
                self.opened.set()
                await self.leave_block.wait()
                if self.error is not None:
                    raise self.error


# How it is closed: by one of its handlers (which answers with what this returns), or by somebody else ------------


async def close(used: Used) -> str:
    await used.peer.close()
    return "bye"


async def close_the_owner(used: Used) -> str:
    await used.owner.close()
    return "bye"


async def cancel(used: Used) -> None:
    used.peer.cancel("enough")
    await anyio.sleep_forever()


async def cancel_the_owner(used: Used) -> None:
    used.owner.cancel("enough")
    await anyio.sleep_forever()


async def cancel_in_a_thread(used: Used) -> None:
    thread = threading.Thread(target=used.peer.cancel)
    thread.start()
    thread.join()
    await anyio.sleep_forever()


async def stay(used: Used) -> None:
    await anyio.sleep_forever()


IN_A_HANDLER = {
    "close() in a handler": close,
    "close() of its owner in a handler": close_the_owner,
    "cancel() in a handler": cancel,
    "cancel() of its owner in a handler": cancel_the_owner,
    "cancel() in a thread": cancel_in_a_thread,
}
FROM_OUTSIDE = [
    "close() in another task",
    "close() of its owner in another task",
    "the end of the block",
    "an error in the block",
    "a cancel of the block",
    "a timeout of the block",
]


async def end(used: Used, way: str, holder: Any) -> None:
    if way == "close() in another task":
        await used.peer.close()
    elif way == "close() of its owner in another task":
        await used.owner.close()
    elif way == "a cancel of the block":
        holder.cancel()
    elif way == "a timeout of the block":
        used.time_limit.deadline = anyio.current_time()
    else:
        used.error = LookupError("in the block") if way == "an error in the block" else None
        used.leave_block.set()


def failed(handle: Handle, error: BaseException) -> None:
    assert isinstance(error, LookupError)


@asynccontextmanager
async def in_use(
    ends: BothEnds, folder: Path, messages: list[Any], leave: Callable[[Used], Awaitable[Any]]
) -> AsyncIterator[tuple[Used, Far, Handle]]:
    """A peer that has read these: three are at work, and one waits for its turn. When the block ends, it is over."""
    async with ends(folder) as (near, far), Scope(on_error="report", on_child_error=failed) as tasks:
        owner = await Scope.open("owner", grace=GRACE)
        used = Used(near, owner, leave)
        holder = tasks.spawn(used.hold)
        with anyio.fail_after(20):
            await used.opened.wait()
            await far.ask(messages)
            while used.peer.statistics().requests_waiting < 1:
                await anyio.sleep(0.001)
            await used.worker.begun.wait()
        yield used, far, holder
        used.leave_block.set()
        await holder.wait()
        await owner.close()


async def check(used: Used, far: Far, expected: dict[int, Any]) -> None:
    """Each request was answered once, with this result or the code of this error; nothing is left, and nothing was dropped."""
    with anyio.fail_after(20):
        report = await used.peer.wait_closed()
        answers = await far.answers()
    assert Counter(it["id"] for it in answers) == Counter(list(expected)), answers
    assert {it["id"]: it.get("result") or it["error"]["code"] for it in answers} == expected
    assert report.clean, str(report)
    assert not report.notes, str(report)


everywhere = pytest.mark.parametrize("transport", EVERYWHERE)
on_asyncio = pytest.mark.parametrize("transport", ON_ASYNCIO)
in_a_handler = pytest.mark.parametrize("way", IN_A_HANDLER)
from_outside = pytest.mark.parametrize("way", FROM_OUTSIDE)
FOUR = [asks(1, "work"), asks(2, "keep"), asks(3, "work"), asks(4, "work")]
CANCELLED = {1: -32800, 2: "kept", 3: -32800, 4: -32800}


async def closes_in_a_handler(ends: BothEnds, way: str, folder: Path) -> None:
    messages = [asks(1, "work"), asks(2, "keep"), asks(3, "leave"), asks(4, "work")]
    async with in_use(ends, folder, messages, IN_A_HANDLER[way]) as (used, far, _):
        used.all_came.set()
        await check(used, far, CANCELLED | {3: "bye" if way.startswith("close()") else -32800})


async def closes_in_handlers_at_once(ends: BothEnds, folder: Path) -> None:
    messages = [asks(1, "work"), asks(2, "leave"), asks(3, "leave"), asks(4, "work"), tells("leave")]
    async with in_use(ends, folder, messages, close) as (used, far, _):
        used.all_came.set()
        await check(used, far, {1: -32800, 2: "bye", 3: "bye", 4: -32800})


async def closes_in_a_handler_of_notifications(ends: BothEnds, folder: Path) -> None:
    async with in_use(ends, folder, [*FOUR, tells("leave")], close) as (used, far, _):
        used.all_came.set()
        await check(used, far, CANCELLED)


async def closes_from_outside(ends: BothEnds, way: str, folder: Path) -> None:
    async with in_use(ends, folder, FOUR, close) as (used, far, holder):
        await end(used, way, holder)
        await check(used, far, CANCELLED)


@everywhere
@in_a_handler
async def test_a_handler_closes_and_every_request_is_answered(
    transport: str, way: str, tmp_path: Path
) -> None:
    await closes_in_a_handler(EVERYWHERE[transport], way, tmp_path)


@asyncio_only
@on_asyncio
@in_a_handler
async def test_on_asyncio_a_handler_closes_and_every_request_is_answered(
    transport: str, way: str, tmp_path: Path
) -> None:
    await closes_in_a_handler(ON_ASYNCIO[transport], way, tmp_path)


@everywhere
async def test_several_handlers_close_and_every_request_is_answered(transport: str, tmp_path: Path) -> None:
    await closes_in_handlers_at_once(EVERYWHERE[transport], tmp_path)


@asyncio_only
@on_asyncio
async def test_on_asyncio_several_handlers_close_and_every_request_is_answered(
    transport: str, tmp_path: Path
) -> None:
    await closes_in_handlers_at_once(ON_ASYNCIO[transport], tmp_path)


@everywhere
async def test_a_handler_of_notifications_closes_and_every_request_is_answered(
    transport: str, tmp_path: Path
) -> None:
    await closes_in_a_handler_of_notifications(EVERYWHERE[transport], tmp_path)


@asyncio_only
@on_asyncio
async def test_on_asyncio_a_handler_of_notifications_closes_and_every_request_is_answered(
    transport: str, tmp_path: Path
) -> None:
    await closes_in_a_handler_of_notifications(ON_ASYNCIO[transport], tmp_path)


@everywhere
@from_outside
async def test_somebody_else_closes_and_every_request_is_answered(
    transport: str, way: str, tmp_path: Path
) -> None:
    await closes_from_outside(EVERYWHERE[transport], way, tmp_path)


@asyncio_only
@on_asyncio
@from_outside
async def test_on_asyncio_somebody_else_closes_and_every_request_is_answered(
    transport: str, way: str, tmp_path: Path
) -> None:
    await closes_from_outside(ON_ASYNCIO[transport], way, tmp_path)


# The other side ends it -----------------------------------------------------------------------------------------

STILL_READ = ["a socket", "tcp", "tcp as a server", "an anyio stream", "a child process"]


async def sends_no_more(ends: BothEnds, folder: Path, *, child: bool = False) -> None:
    async with in_use(ends, folder, [*FOUR, "and no more"] if child else FOUR, close) as (used, far, _):
        if not child:
            assert isinstance(far, SocketFar)
            far.send_no_more()
        await check(used, far, CANCELLED)
        assert used.peer.report is not None
        assert used.peer.report.reason is not None
        assert used.peer.report.reason.kind == "disconnect"


@pytest.mark.parametrize("transport", STILL_READ)
async def test_one_that_sends_no_more_and_still_reads_has_every_answer(
    transport: str, tmp_path: Path
) -> None:
    await sends_no_more(EVERYWHERE[transport], tmp_path, child=transport == "a child process")


@asyncio_only
async def test_one_that_sends_no_more_to_asyncio_streams_has_every_answer(tmp_path: Path) -> None:
    await sends_no_more(ON_ASYNCIO["asyncio streams"], tmp_path)


# What could not be sent -----------------------------------------------------------------------------------------

UNREAD = ["memory", "a channel", "a socket", "tcp", "tcp as a server", "an anyio stream"]
BIG = "x" * 1_000_000


async def drops(ends: BothEnds, folder: Path) -> None:
    async with ends(folder) as (near, far):
        peer = await Peer.open(near, limits=Limits(unsent=100_000_000))
        for _ in range(20):  # more than the buffers of any system hold
            await peer.notify("long", BIG)
        started = anyio.current_time()
        report = await peer.close(deadline=0.5)
        assert anyio.current_time() - started < 10
        assert report.clean, str(report)
        arrived = len(await far.rest())  # type: ignore[attr-defined]
    total = 20 * (len(b'{"jsonrpc":"2.0","method":"long","params":""}\n') + len(BIG))
    assert len(report.notes) == 1
    dropped = int(report.notes[0].removesuffix(" bytes were dropped unsent"))
    assert total - arrived <= dropped <= total
    assert "bytes were dropped unsent" in str(report)


@pytest.mark.parametrize("transport", UNREAD)
async def test_bytes_that_the_other_side_does_not_take_are_in_the_report(
    transport: str, tmp_path: Path
) -> None:
    await drops(EVERYWHERE[transport], tmp_path)


@asyncio_only
async def test_bytes_that_asyncio_streams_keep_are_in_the_report(tmp_path: Path) -> None:
    await drops(ON_ASYNCIO["asyncio streams"], tmp_path)


@asyncio_only
async def test_bytes_in_the_buffer_of_an_asyncio_transport_are_in_the_report(tmp_path: Path) -> None:
    """So few that the stream takes them as sent."""
    async with over_asyncio_streams(tmp_path, send_buffer=4096) as (near, far):
        peer = await Peer.open(near)
        for _ in range(4):
            await peer.notify("note", "x" * 10_000)
        while peer.statistics().bytes_unsent:
            await anyio.sleep(0.001)
        report = await peer.close(deadline=0.5)
        arrived = len(await far.rest())  # type: ignore[attr-defined]
    assert report.clean
    total = 4 * (len(b'{"jsonrpc":"2.0","method":"note","params":""}\n') + 10_000)
    assert report.notes == [f"{total - arrived} bytes were dropped unsent"]


async def test_messages_that_are_not_taken_are_in_the_report() -> None:
    box = Mailbox()

    async def never_sends(text: str) -> None:
        await anyio.sleep_forever()

    peer = await Peer.open(MessageTransport(box.receive, never_sends, box.close))
    await peer.notify("note")
    report = await peer.close(deadline=0.5)
    box.throw_away()
    assert report.clean
    assert report.notes == [f"{len(tells_note)} bytes were dropped unsent"]


async def test_answers_to_one_that_has_gone_are_in_the_report(tmp_path: Path) -> None:
    async with in_use(EVERYWHERE["memory"], tmp_path, FOUR, close) as (used, far, _):
        assert isinstance(far, MemoryFar)
        far.bare.close()
        report = await used.peer.wait_closed()
    assert report.clean
    cancelled = len(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}\n')
    kept = len(b'{"jsonrpc":"2.0","id":2,"result":"kept"}\n')
    assert report.notes == [f"{3 * cancelled + kept} bytes were dropped unsent"]


async def test_what_was_told_before_it_could_be_connected_is_in_the_report() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    peer = Peer(connect_tcp("127.0.0.1", port))
    peer.start()
    await peer.notify("note")
    with pytest.raises(ConnectionError):
        await peer.wait_open()
    report = await peer.wait_closed()
    assert report.notes == [f"{len(tells_note)} bytes were dropped unsent"]


tells_note = b'{"jsonrpc":"2.0","method":"note"}\n'


# Who never confirms ---------------------------------------------------------------------------------------------


@asyncio_only
@pytest.mark.parametrize("transport", ["a writer that never confirms", "a stub writer"])
async def test_a_writer_that_never_confirms_that_it_is_closed_costs_no_time(
    transport: str, tmp_path: Path
) -> None:
    async with ON_ASYNCIO[transport](tmp_path) as (near, _), Scope() as scope:
        opened = anyio.Event()

        async def hold() -> None:
            async with Peer(near, grace=Grace(cancel=30)):
                opened.set()
                await anyio.sleep_forever()

        holder = scope.spawn(hold)
        await opened.wait()
        started = anyio.current_time()
        holder.cancel()
        await holder.wait()
        assert anyio.current_time() - started < 10
