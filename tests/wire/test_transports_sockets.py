"""TCP, and sockets in the file system: connecting, serving, and the end of both."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope, ScopeClosed
from quiesce.kernel.base.source_places import describe
from quiesce.wire import ConnectionEnded, Limits, Peer, SocketTransport
from quiesce.wire.servers.line_servers import serve_tcp, serve_unix
from quiesce.wire.servers.server import AcceptedSocket
from quiesce.wire.transports import sockets
from quiesce.wire.transports.sockets import connect_tcp, connect_unix
from tests.kernel.temperaments import Stubborn

pytestmark = pytest.mark.real_time


async def echo(params: Any) -> Any:
    return params


async def answer(transport: Any) -> None:
    """The handler of a server: a peer that echoes, until the other side ends."""
    async with Peer(transport, {"echo": echo}) as peer:
        await peer.wait_closed()


async def until(condition: Any) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


def a_port_where_nobody_listens() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


# Connecting


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_peer_reaches_a_server_by_address_and_by_name(host: str) -> None:
    async with (
        serve_tcp(answer, host) as server,
        Peer(connect_tcp(host, server.port)) as one,
        Peer(connect_tcp(host, server.port)) as other,
    ):
        assert await one.request("echo", [1]) == [1]
        assert await other.request("echo", [2]) == [2]
        assert server.connections == 2
        assert one.name == f"{host}:{server.port}"
    assert server.report is not None
    assert server.report.clean


async def test_a_peer_reaches_a_server_by_path(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with serve_unix(answer, path) as server, Peer(connect_unix(path)) as peer:
        assert await peer.request("echo", "hello") == "hello"
        assert server.addresses == [str(path)]
    assert not path.exists()


async def test_nobody_listens_there() -> None:
    port = a_port_where_nobody_listens()
    with pytest.raises(
        ConnectionRefusedError, match=f"cannot connect to 127.0.0.1:{port}: .*127.0.0.1:{port}"
    ):
        await Peer.open(connect_tcp("127.0.0.1", port))


async def test_a_host_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **options: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # some resolvers take minutes to say so
    with pytest.raises(
        ConnectionError, match=r"cannot connect to no-such-host\.invalid:7000: Name or service"
    ):
        await Peer.open(connect_tcp("no-such-host.invalid", 7000))


async def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"cannot connect to .*nobody\.sock"):
        await Peer.open(connect_unix(tmp_path / "nobody.sock"))


async def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = a_port_where_nobody_listens()
    async with serve_tcp(answer, "127.0.0.1") as server:

        def several(*args: Any, **options: Any) -> list[Any]:
            kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
            return [(*kind, ("127.0.0.1", dead)), (*kind, ("127.0.0.1", server.port))]

        monkeypatch.setattr(socket, "getaddrinfo", several)
        async with Peer(connect_tcp("several.example", 1)) as peer:
            assert await peer.request("echo", 1) == 1


async def test_an_address_that_does_not_answer_does_not_hold_up_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent, fillers = a_listener_that_never_answers()
    async with serve_tcp(answer, "127.0.0.1") as server:

        def several(*args: Any, **options: Any) -> list[Any]:
            kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
            return [(*kind, silent.getsockname()), (*kind, ("127.0.0.1", server.port))]

        monkeypatch.setattr(socket, "getaddrinfo", several)
        try:
            async with Peer(connect_tcp("several.example", 1)) as peer:
                assert await peer.request("echo", 1) == 1
        finally:
            for each in (silent, *fillers):
                each.close()


def a_listener_that_never_answers() -> tuple[socket.socket, list[socket.socket]]:
    """Its queue is full: the system lets further connections wait."""
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(0)
    fillers = []
    for _ in range(3):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(silent.getsockname())
        fillers.append(filler)
    return silent, fillers


async def test_connecting_can_be_given_up_and_leaves_nothing() -> None:
    silent, fillers = a_listener_that_never_answers()
    try:
        with anyio.move_on_after(0.05) as given_up:
            await Peer.open(connect_tcp(*silent.getsockname()))
        assert given_up.cancelled_caught
    finally:
        for each in (silent, *fillers):
            each.close()


@pytest.mark.parametrize("port", [0, 70000, "80", True])
def test_a_port_that_cannot_be_is_refused_at_once(port: Any) -> None:
    with pytest.raises(ValueError, match="port must be a number from 1 to 65535"):
        connect_tcp("localhost", port)


# The end of a connection


async def test_what_was_said_last_arrives_though_the_other_side_was_still_talking() -> None:
    """A socket that is closed with something unread is reset, and what it has not delivered is lost."""
    size, finish = 300_000, anyio.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
    )  # little: most of it has to wait with the sender
    raw = socket.create_connection(listener.getsockname())
    ours, _ = listener.accept()
    listener.close()
    received = bytearray()

    async def slow_reader() -> None:
        await finish.wait()
        raw.setblocking(False)
        while True:
            await anyio.wait_readable(raw)
            data = raw.recv(65536)
            if not data:
                return
            received.extend(data)

    async with anyio.create_task_group() as group:
        peer = await Peer.open(SocketTransport(ours), limits=Limits(unsent=1))
        group.start_soon(slow_reader)
        with anyio.move_on_after(0.01):
            await peer.notify("long", "x" * size)
        raw.send(b'{"jsonrpc": "2.0", "method": "unread"}\n' * 1000)
        async with anyio.create_task_group() as closing:
            closing.start_soon(peer.close)
            await anyio.sleep(0.01)
            finish.set()
    raw.close()
    assert received.endswith(b'"}\n')
    assert len(received) > size


async def test_an_answer_that_came_before_the_other_side_went_is_not_lost_to_a_failing_write() -> None:
    ours, raw = socket.socketpair()
    answers: list[Any] = []
    async with Peer(SocketTransport(ours)) as peer, anyio.create_task_group() as group:

        async def ask() -> None:
            answers.append(await peer.request("question"))

        group.start_soon(ask)
        await until(lambda: peer.statistics().calls_waiting == 1)
        await anyio.wait_readable(raw)
        raw.recv(1000)
        raw.send(b'{"jsonrpc": "2.0", "id": 1, "result": 42}\n')
        raw.close()
        peer._connection.sender.send(b"{}", alone=True)  # in this very turn, before anything was read
    assert answers == [42]


async def test_an_end_in_order_is_no_error() -> None:
    async with serve_tcp(answer, "127.0.0.1") as server:
        peer = await Peer.open(connect_tcp("127.0.0.1", server.port))
        await peer.request("echo", 1)
        await server.close()
        await peer.wait_closed()
        assert peer.error is None
        with pytest.raises(ConnectionEnded):
            await peer.request("echo", 2)
        await peer.close()


# Serving


async def test_closing_a_server_cancels_its_handlers_and_lets_them_answer() -> None:
    begun, cleaned = anyio.Event(), []

    async def work(params: Any) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(params)

    async def handle(transport: AcceptedSocket) -> None:
        async with Peer(transport, {"work": work}) as peer:
            await peer.wait_closed()

    server = serve_tcp(handle, "127.0.0.1")
    async with anyio.create_task_group() as group:
        await server.open()
        peer = await Peer.open(connect_tcp("127.0.0.1", server.port))
        told: list[Any] = []

        async def ask() -> None:
            try:
                await peer.request("work", 7)
            except Exception as error:
                told.append((type(error).__name__, getattr(error, "code", None)))

        group.start_soon(ask)
        await begun.wait()
        report = await server.close()
        assert report.clean
        assert cleaned == [7]
        await until(lambda: told)
        assert told == [("RequestCancelled", -32800)]
        await peer.close()
    with pytest.raises(ConnectionRefusedError):
        await Peer.open(connect_tcp("127.0.0.1", server.port))


async def test_a_server_is_closed_from_another_task_and_twice() -> None:
    server = await serve_tcp(answer, "127.0.0.1").open()
    async with anyio.create_task_group() as group:
        group.start_soon(server.close)
        group.start_soon(server.close)
    assert (await server.close()).clean


async def test_a_server_is_known_by_the_line_that_asked_for_it() -> None:
    async with Scope("all") as scope:
        server = await serve_tcp(answer, "127.0.0.1").open()
        (nested,) = scope._opened().nested
        assert "test_transports_sockets.py" in describe(nested._site)
        await server.close()
    with pytest.raises(ScopeClosed, match=r"cannot open server '127\.0\.0\.1:0'"):
        await serve_tcp(answer, "127.0.0.1", scope=scope).open()


async def test_a_server_ends_with_its_scope() -> None:
    server = serve_tcp(answer, "127.0.0.1")
    async with Scope("all") as scope:
        await server.open()
        peer = await Peer.open(connect_tcp("127.0.0.1", server.port))
        await peer.request("echo", 1)
        scope.cancel("enough")
    with pytest.raises(ConnectionRefusedError):
        await Peer.open(connect_tcp("127.0.0.1", server.port))


async def test_a_server_that_is_stopped_by_its_scope_at_once_leaves_nothing() -> None:
    async with Scope("all") as scope:
        await serve_tcp(answer, "127.0.0.1", scope=scope).open()
        scope.cancel("at once")


async def test_a_failing_handler_is_logged_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    async def fails_first(transport: AcceptedSocket) -> None:
        calls.append(transport)
        if len(calls) == 1:
            raise ValueError("not this one")
        await answer(transport)

    async with serve_tcp(fails_first, "127.0.0.1") as server:
        first = await Peer.open(connect_tcp("127.0.0.1", server.port))
        await first.wait_closed()
        async with Peer(connect_tcp("127.0.0.1", server.port)) as second:
            assert await second.request("echo", 1) == 1
        await first.close()
    assert "not this one" in caplog.text
    assert server.report is not None
    assert [str(error) for error in server.report.errors] == ["not this one"]


async def test_a_connection_that_no_peer_was_opened_on_is_closed_with_its_handler() -> None:
    async def look_away(transport: AcceptedSocket) -> None:
        pass

    async with serve_tcp(look_away, "127.0.0.1") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.setblocking(False)
            await anyio.wait_readable(raw)
            assert raw.recv(1) == b""


async def test_a_handler_that_ignores_the_stop_is_named_and_the_close_is_bounded() -> None:
    stubborn = Stubborn()
    begun = anyio.Event()

    async def handle(transport: AcceptedSocket) -> None:
        begun.set()
        await stubborn()

    server = await serve_tcp(handle, "127.0.0.1").open()
    with socket.create_connection(("127.0.0.1", server.port)):
        await begun.wait()
        report = await server.close(deadline=0.05)
        assert [left.name for left in report.left] == ["connection"]
        stubborn.let_go()
        assert (await server.close()).clean


async def test_the_address_is_taken() -> None:
    async with serve_tcp(answer, "127.0.0.1") as server:
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1, port {server.port}") as raised:
            await serve_tcp(answer, "127.0.0.1", server.port).open()
        assert raised.value.errno == errno.EADDRINUSE


@pytest.mark.worlds("asyncio", "trio")
async def test_out_of_descriptors_a_server_waits_says_so_once_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serve_tcp(answer, "127.0.0.1") as server:
        raws = [socket.socket() for _ in range(2)]
        taken = [os.dup(0)]
        with caplog.at_level(logging.ERROR, "quiesce"):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
                while True:
                    try:
                        taken.append(os.dup(0))
                    except OSError:
                        break
                for raw in raws:
                    raw.connect(("127.0.0.1", server.port))
                await until(lambda: "cannot accept connections" in caplog.text)
                assert server.connections == 0
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for fd in taken:
                    os.close(fd)
        await until(lambda: server.connections == 2)
        assert caplog.text.count("cannot accept connections") == 1
        for raw in raws:
            raw.close()


# Paths


async def test_the_path_of_a_dead_server_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    async with serve_unix(answer, path), Peer(connect_unix(path)) as peer:
        assert await peer.request("echo", 1) == 1


async def test_the_path_of_a_living_server_is_not(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with serve_unix(answer, path):
        with pytest.raises(OSError, match="another server listens there"):
            await serve_unix(answer, path).open()
        async with Peer(connect_unix(path)) as peer:
            assert await peer.request("echo", 1) == 1


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("keep me")
    with pytest.raises(FileExistsError, match="there is a file that is not a socket"):
        await serve_unix(answer, path).open()
    assert path.read_text() == "keep me"


async def test_a_path_that_is_somebody_elses_by_now_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    server = await serve_unix(answer, path).open()
    path.unlink()
    path.write_text("somebody else's")
    await server.close()
    assert path.read_text() == "somebody else's"


async def test_a_peer_that_does_not_read_holds_up_the_close_no_longer_than_its_grace() -> None:
    ours, raw = socket.socketpair()
    peer = await Peer.open(SocketTransport(ours), grace=Grace(cancel=0.05, terminate=0.05, kill=5))
    with anyio.move_on_after(0.05):
        while True:
            await peer.notify("more", "x" * 100_000)
    report = await peer.close()
    assert report.clean
    raw.close()


async def test_a_connection_that_breaks_before_the_token_is_sent_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()

    async def connected(host: str, port: int) -> socket.socket:
        return ours

    monkeypatch.setattr(sockets, "tcp_connection", connected)
    with pytest.raises(ConnectionError):
        await Peer.open(connect_tcp("localhost", 7000, token="a token of some length"))
    assert ours.fileno() == -1
