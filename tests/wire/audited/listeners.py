"""Scenarios of servers that ask who connects: with a token, with TLS, for their owner only. `SCENARIOS` is all of them.

The sockets are real. Beside what the ledger knows, each run must leave a server that has closed every descriptor, counts no
connection any more, and has removed its path.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from quiesce.audit import Limits
from quiesce.wire import (
    ConnectionEnded,
    Peer,
    RpcError,
    connect_tcp,
    connect_unix,
    connect_websocket,
    serve_tcp,
    serve_unix,
    serve_websocket,
)
from quiesce.wire.servers.server import Server
from tests.kernel.audited import STARTED_LATE, WORLDS, Audited, F, ledger, pause
from tests.wire.audited import slow
from tests.wire.certificates import make_certificate

SCENARIOS: list[Audited] = []
CONNECTING = "unawaited _connection.<locals>.attempt*"
TOKEN = "a token of twenty-nine letters"
FOLDER = tempfile.TemporaryDirectory(prefix="quiesce-audit-")


class Watched:
    """The server of a run, and the descriptors that were open before it."""

    def __init__(self) -> None:
        self.before: set[str] | None = None  # it was stopped before it began
        self.servers: list[Server] = []

    def start(self) -> None:
        """A new run."""
        ledger.start()
        self.before = open_sockets()
        self.servers = []

    def server(self, server: Server) -> Server:
        self.servers.append(server)
        return server

    def check(self) -> None:
        """After a run: nothing is open."""
        for server in self.servers:
            ledger.expect(not server._listening, f"{server} listens")
            ledger.expect(not server._accepted, f"{server} has connections")
            ledger.expect(not server._admission._open, f"{server} counts {server._admission._open}")
        left = open_sockets() - self.before if self.before is not None else None
        ledger.expect(not left, f"sockets are open: {left}")
        ledger.expect(not os.listdir(FOLDER.name), f"{os.listdir(FOLDER.name)} is left")
        self.__init__()  # type: ignore[misc]
        ledger.check()


def open_sockets() -> set[str]:
    found = set[str]()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found.add(target)
    return found


watched = Watched()


def audited(*ignore: str) -> Callable[[F], F]:
    """With what anyio leaves there."""
    options = {"check": watched.check, "real_io": True, "limits": Limits(hang_after=5.0, patience=0.02)}

    def take(function: F) -> F:
        known = dict.fromkeys(ignore, STARTED_LATE)
        SCENARIOS.append(Audited("admission", function, WORLDS, known, {}, False, options))
        return function

    return take


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Those of a server and of its client."""
    with tempfile.TemporaryDirectory() as folder:
        certificate = make_certificate(Path(folder))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate)
        return server, ssl.create_default_context(cafile=certificate)


async def echo(params: Any) -> Any:
    """At once: a wait takes real time here, until it is certain that nothing comes from outside."""
    return params


async def answer(transport: Any) -> None:
    ledger.expect(transport.client.is_known, "a client that is not known has reached the handler")
    async with Peer(transport, {"echo": echo, "slow": slow}) as peer:
        await peer.wait_closed()


async def ask(transport: Any) -> None:
    with suppress(ConnectionError, ConnectionEnded, RpcError):
        async with Peer(transport) as peer:
            ledger.expect(await peer.request("echo", 1) == 1, "the answer is another")
            await peer.request("slow", 0.2)


@audited(CONNECTING)
async def a_client_that_shows_its_token() -> None:
    watched.start()
    async with watched.server(serve_tcp(answer, "127.0.0.1", token=TOKEN)) as server:
        await ask(connect_tcp("127.0.0.1", server.port, token=TOKEN))


@audited(CONNECTING)
async def clients_that_do_not_show_it() -> None:
    watched.start()
    async with watched.server(serve_tcp(answer, "127.0.0.1", token=TOKEN)) as server:
        await ask(connect_tcp("127.0.0.1", server.port, token=TOKEN[::-1]))
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            silent.send(b"Authoriz")
            await pause(0.1)


@audited(CONNECTING)
async def a_user_at_a_path() -> None:
    watched.start()
    path = Path(FOLDER.name) / "socket"
    async with watched.server(serve_unix(answer, path)):
        await ask(connect_unix(path))


@audited("unawaited connect_tcp.<locals>.try_connect*")
async def a_websocket_with_a_token_and_tls() -> None:
    watched.start()
    ours, theirs = contexts()
    async with watched.server(serve_websocket(answer, "127.0.0.1", token=TOKEN, ssl=ours)) as server:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        await ask(connect_websocket(f"wss://127.0.0.1:{server.port}/", headers=headers, ssl=theirs))


@audited()
async def a_websocket_whose_client_stops_in_the_middle_of_tls() -> None:
    watched.start()
    ours, _ = contexts()
    async with watched.server(serve_websocket(answer, "127.0.0.1", token=TOKEN, ssl=ours)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as halfway:
            halfway.send(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a ClientHello
            await pause(0.1)
