"""Threat: somebody else on this machine, on the network or in a browser connects to an agent."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Process, to_thread
from quiesce.acp import ClientSideConnection, RequestError
from quiesce.acp import schema as s
from quiesce.acp.served.served_agent import serve_agent
from quiesce.acp.tools import read_file
from quiesce.agents import Agent, MemoryStore
from quiesce.testing import ScriptedModel, call
from quiesce.wire import (
    ConnectionEnded,
    Peer,
    connect_tcp,
    connect_unix,
    connect_websocket,
    serve_tcp,
    serve_unix,
)
from quiesce.wire.links.admission import Admission, _network
from quiesce.wire.servers import server as server_module
from quiesce.wire.servers.websocket_server import serve_websocket
from tests.acp.served_client import Client, connected
from tests.wire.certificates import make_certificate
from tests.wire.websockets import answer, http

pytestmark = [pytest.mark.real_time, pytest.mark.worlds("asyncio", "trio"), pytest.mark.time_limit(40)]

SYSTEM_PYTHON = (
    shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
)  # which others may run, too
TOKEN = "a-token-of-the-owner-of-it"
UPGRADE = [
    "GET / HTTP/1.1",
    "Host: 127.0.0.1",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
]


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def make_agent() -> Agent[Any]:
    return Agent(name="helper", model=ScriptedModel(["hello"] * 100))


# Tokens


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer(TOKEN[:-1]),
        bearer(TOKEN + "x"),
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer \N{SNOWMAN}".encode().decode("latin-1")},
    ],
)
async def test_a_websocket_without_the_token_is_answered_401_and_the_handler_never_runs(headers: Any) -> None:
    handled: list[Any] = []

    async def handle(transport: Any) -> None:
        handled.append(transport)

    async with serve_websocket(handle, "127.0.0.1", token=TOKEN) as server:
        with pytest.raises(ConnectionError, match="401"):
            async with Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/", headers=headers)):
                pass
    assert handled == []


async def test_a_websocket_with_the_token_is_served_and_its_handler_knows_it() -> None:
    clients: list[Any] = []

    async def handle(transport: Any) -> None:
        clients.append(transport.client)
        await answer(transport)

    async with serve_websocket(handle, "127.0.0.1", token=TOKEN) as server:
        url = f"ws://127.0.0.1:{server.port}/"
        async with Peer(connect_websocket(url, headers=bearer())) as peer:
            assert await peer.request("echo", 1) == 1
        page = connect_websocket(url, subprotocols=[f"quiesce.token.{TOKEN}"])
        async with Peer(page) as peer:
            assert await peer.request("echo", 2) == 2
        assert page.subprotocol == f"quiesce.token.{TOKEN}"
        with pytest.raises(ConnectionError, match="401"):
            async with Peer(connect_websocket(url, subprotocols=["quiesce.token.wrong"])):
                pass
    assert [(client.has_token, client.is_owner, client.is_remote) for client in clients] == [
        (True, False, False)
    ] * 2


@pytest.mark.parametrize(
    "first", [b"", b"Authorization: Bearer wrong\n", b'{"jsonrpc": "2.0"}\n', b"x" * 10_000]
)
async def test_a_tcp_connection_without_the_token_is_closed_and_the_handler_never_runs(first: bytes) -> None:
    handled: list[Any] = []

    async def handle(transport: Any) -> None:
        handled.append(transport)

    async with serve_tcp(handle, "127.0.0.1", token=TOKEN) as server:
        stream = await anyio.connect_tcp("127.0.0.1", server.port)
        async with stream:
            if first:
                await stream.send(first)
            with suppress(OSError):  # it may be closed already
                await stream.send_eof()
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
    assert handled == []


async def test_a_tcp_connection_with_the_token_is_served_and_nothing_behind_it_is_lost() -> None:
    async with serve_tcp(answer, "127.0.0.1", token=TOKEN) as server:
        async with Peer(connect_tcp("127.0.0.1", server.port, token=TOKEN)) as peer:
            assert await peer.request("echo", "a") == "a"
        # Token and request in one piece.
        async with await anyio.connect_tcp("127.0.0.1", server.port) as stream:
            await stream.send(
                f"authorization: bearer {TOKEN}\r\n".encode()
                + b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[5]}\n'
            )
            assert b'"result":[5]' in await stream.receive()


async def test_a_client_that_never_shows_its_token_does_not_hold_the_server() -> None:
    async with serve_tcp(answer, "127.0.0.1", token=TOKEN) as server:
        silent = [await anyio.connect_tcp("127.0.0.1", server.port) for _ in range(3)]
        async with Peer(connect_tcp("127.0.0.1", server.port, token=TOKEN)) as peer:
            assert await peer.request("echo", 1) == 1
        report = await server.close(deadline=5)
        assert report.clean
        for stream in silent:
            await stream.aclose()


def test_tokens_are_compared_in_constant_time_and_must_not_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    admission = Admission(token=TOKEN)
    assert not admission.accepts(None)
    assert not admission.accepts("Bearer no")
    assert admission.accepts(f"Bearer {TOKEN}")
    assert [one for one, _ in compared] == [b"", b"no", TOKEN.encode()]
    for short in ("", "123456789012345"):
        with pytest.raises(ValueError, match="at least 16 characters"):
            Admission(token=short)


# Sockets in the file system


async def test_a_socket_in_the_file_system_is_for_its_owner_alone(tmp_path: Path) -> None:
    path, modes = tmp_path / "sock", list[int]()
    real = socket.socket.listen

    def listen(self: socket.socket, *given: Any) -> None:
        modes.append(stat.S_IMODE(os.stat(path).st_mode))
        real(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "listen", listen)
        async with serve_unix(answer, path), Peer(connect_unix(path)) as peer:
            assert await peer.request("echo", 1) == 1
    assert modes == [0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_a_process_of_another_user_is_refused_whatever_the_mode_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # In a folder that everybody may pass through, and with a mode that lets everybody in.
    with pytest.MonkeyPatch.context() as patch:
        place = Path("/tmp") / f"quiesce-{os.getpid()}-{tmp_path.name}"
        place.mkdir(mode=0o755)
        try:
            path = place / "sock"
            patch.setattr(
                os, "geteuid", lambda: 1
            )  # the server's: so that root, who connects, is the other user
            async with serve_unix(answer, path):
                os.chmod(path, 0o666)
                script = (
                    f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); "
                    "print('got', s.recv(10))"
                )
                process = await anyio.run_process(
                    [SYSTEM_PYTHON, "-c", script], user=65534, check=False, cwd="/"
                )
                assert process.stdout == b"got b''\n"
            assert "refused a connection of another user (user 65534)" in caplog.text
        finally:
            place.rmdir()


# Other machines


@pytest.mark.parametrize("host", ["0.0.0.0", None, "::"])
@pytest.mark.parametrize("options", [{}, {"token": TOKEN}])
async def test_off_loopback_a_server_needs_a_token_and_tls(host: str | None, options: Any) -> None:
    for serve in (serve_tcp, serve_websocket):
        with pytest.raises(PermissionError, match="without both a token and TLS"):
            await serve(answer, host, **options).open()


async def test_a_server_for_anyone_has_to_say_so() -> None:
    server = serve_tcp(answer, "0.0.0.0", anyone=True)
    async with server:
        async with Peer(connect_tcp("127.0.0.1", server.port)) as peer:
            assert await peer.request("echo", 1) == 1
        assert (await server.close()).clean


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_with_both_it_is_served_encrypted(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    trusted = ssl.create_default_context(cafile=str(certificate))
    async with serve_websocket(answer, "0.0.0.0", token=TOKEN, ssl=context) as server:
        url = f"wss://127.0.0.1:{server.port}/"
        async with Peer(connect_websocket(url, ssl=trusted, headers=bearer())) as peer:
            assert await peer.request("echo", "x" * 100_000) == "x" * 100_000
        with pytest.raises(ConnectionError, match="401"):
            async with Peer(connect_websocket(url, ssl=trusted)):
                pass
        with pytest.raises(ConnectionError, match="TLS failed"):
            async with Peer(connect_websocket(url, headers=bearer())):
                pass
        # Plain HTTP at a TLS port, and a client that says nothing, disturb nobody.
        assert await http(server.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        async with Peer(connect_websocket(url, ssl=trusted, headers=bearer())) as peer:
            assert await peer.request("echo", 1) == 1


# Too many


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_strangers_do_not_keep_the_owner_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STRANGERS", 5)
    serve = serve_tcp if kind == "tcp" else serve_websocket
    async with serve(answer, "127.0.0.1", token=TOKEN, per_peer=2) as server:
        with ExitStack() as strangers:
            for _ in range(20):
                strangers.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            transport = (
                connect_tcp("127.0.0.1", server.port, token=TOKEN)
                if kind == "tcp"
                else connect_websocket(f"ws://127.0.0.1:{server.port}/", headers=bearer())
            )
            with anyio.fail_after(10):
                async with Peer(transport) as owner:
                    assert await owner.request("echo", 1) == 1
            assert len(server._strangers) <= 5
    assert not server._strangers
    assert server.report is not None
    assert server.report.clean


async def test_who_has_the_token_has_so_many_connections_and_is_told_when_it_wants_more() -> None:
    async with serve_websocket(answer, "127.0.0.1", token=TOKEN, per_peer=1) as server:
        address = f"ws://127.0.0.1:{server.port}/"
        async with Peer(connect_websocket(address, headers=bearer())) as one:
            with pytest.raises(ConnectionError, match="429"):
                await Peer.open(connect_websocket(address, headers=bearer()))
            assert await one.request("echo", 1) == 1
        with anyio.fail_after(10):
            while server._admission._open:
                await anyio.sleep(0.01)
        async with Peer(connect_websocket(address, headers=bearer())) as again:
            assert await again.request("echo", 2) == 2


def test_a_network_of_ipv6_is_one_peer() -> None:
    assert _network("2001:db8::1") == _network("2001:db8::ffff:1") != _network("2001:db8:0:1::1")
    assert _network("::1") == "::1"
    assert _network("fe80::1%eth0") == "fe80::/64"
    assert _network("::ffff:10.0.0.1") == "::ffff:10.0.0.1"
    assert _network("10.0.0.1") == "10.0.0.1"


@pytest.mark.parametrize("tokens", [[TOKEN, TOKEN], [TOKEN, "another"], ["another", TOKEN]])
async def test_two_tokens_in_one_request_are_refused_in_order(
    tokens: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_websocket(answer, "127.0.0.1", token=TOKEN) as server:
        lines = [f"Authorization: Bearer {token}" for token in tokens]
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.setblocking(False)
            raw.send("\r\n".join([*UPGRADE, *lines, "", ""]).encode())
            await anyio.wait_readable(raw)
            assert raw.recv(4096).startswith(b"HTTP/1.1 401 ")
    assert "Traceback" not in caplog.text


async def test_no_log_holds_the_token(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(0):
        for name in ("websockets", "websockets.server", "websockets.client", "quiesce"):
            caplog.set_level(logging.DEBUG, logger=name)
        async with (
            serve_websocket(answer, "127.0.0.1", token=TOKEN) as server,
            Peer(connect_websocket(f"ws://127.0.0.1:{server.port}/", headers=bearer())) as peer,
        ):
            assert await peer.request("echo", 1) == 1
    assert TOKEN not in caplog.text


async def test_one_peer_does_not_take_all_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_tcp(answer, "127.0.0.1", per_peer=2) as server:
        held = [await Peer.open(connect_tcp("127.0.0.1", server.port)) for _ in range(2)]
        for peer in held:
            assert await peer.request("echo", 1) == 1
        for _ in range(3):
            with pytest.raises(ConnectionEnded):
                async with Peer(connect_tcp("127.0.0.1", server.port)) as another:
                    await another.request("echo", 1)
        assert caplog.text.count("takes no more of them") == 1
        await held[0].close()
        with anyio.fail_after(5):
            while server.connections > 1:
                await anyio.sleep(0.01)
        async with Peer(connect_tcp("127.0.0.1", server.port)) as another:
            assert await another.request("echo", 1) == 1
        await held[1].close()


# Plain HTTP


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "BREW"])
async def test_other_methods_are_answered_at_the_health_path(method: str) -> None:
    async with serve_websocket(answer, "127.0.0.1", token=TOKEN) as server:
        said = await http(
            server.port, f"{method} /health HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc".encode()
        )
        assert said.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
        assert b"Allow: GET, HEAD\r\n" in said
        assert (await http(server.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )
        assert (await http(server.port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")


# Agents


@pytest.mark.parametrize("serve", [serve_tcp, serve_websocket])
async def test_an_agent_is_not_served_to_a_stranger(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(transport: Any) -> None:
        await serve_agent(make_agent(), transport)

    async with serve(handle, "127.0.0.1") as server:
        way: Any = (
            connect_tcp("127.0.0.1", server.port)
            if serve is serve_tcp
            else connect_websocket(f"ws://127.0.0.1:{server.port}/")
        )
        with pytest.raises(ConnectionError):
            async with ClientSideConnection(Client(), way) as conn:
                await conn.initialize(protocol_version=1)
        await server.close()
    assert "an agent is not served to 127.0.0.1" in str(server.report)


@asynccontextmanager
async def over_tcp(**options: Any) -> AsyncIterator[ClientSideConnection]:
    async def handle(transport: Any) -> None:
        await serve_agent(make_agent(), transport, **options)

    async with (
        serve_tcp(handle, "127.0.0.1", token=TOKEN) as server,
        ClientSideConnection(Client(), connect_tcp("127.0.0.1", server.port, token=TOKEN)) as conn,
    ):
        await conn.initialize(protocol_version=1)
        yield conn


SHELL = s.McpServerStdio(name="evil", command="/bin/sh", args=["-c", "touch ran"], env=[])


async def test_a_client_over_the_network_starts_no_command_and_is_always_asked(tmp_path: Path) -> None:
    async with over_tcp(folders=[tmp_path]) as conn:
        with pytest.raises(RequestError) as refused:
            await conn.new_session(cwd=str(tmp_path), mcp_servers=[SHELL])
        assert "clients from the network may not name MCP servers" in str(refused.value.data)
        session = await conn.new_session(cwd=str(tmp_path), mcp_servers=[])
        assert session.modes is not None
        assert [mode.id for mode in session.modes.available_modes] == ["ask"]
        with pytest.raises(RequestError):
            await conn.set_session_mode(session.session_id, "auto")
    assert os.listdir(tmp_path) == []


async def test_what_is_allowed_is_allowed(tmp_path: Path) -> None:
    async with over_tcp(folders=[tmp_path], allow_auto=True) as conn:
        session = await conn.new_session(cwd=str(tmp_path), mcp_servers=[])
        await conn.set_session_mode(session.session_id, "auto")


async def test_sessions_work_only_in_the_folders_that_were_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "out").symlink_to(tmp_path)
    async with over_tcp(folders=[tmp_path / "one"]) as conn:
        await conn.new_session(cwd=str(tmp_path / "one"), mcp_servers=[])
        for cwd in (tmp_path, tmp_path / "one" / "..", tmp_path / "one" / "out", Path("/")):
            with pytest.raises(RequestError) as refused:
                await conn.new_session(cwd=str(cwd), mcp_servers=[])
            assert "can only work in there" in str(refused.value.data)
        with pytest.raises(RequestError):
            await conn.new_session(cwd=str(tmp_path / "one"), additional_directories=["/etc"], mcp_servers=[])


async def test_sessions_of_other_folders_do_not_exist_for_a_client_over_the_network(tmp_path: Path) -> None:
    store = MemoryStore()
    allowed, private = tmp_path / "allowed", tmp_path / "private"
    allowed.mkdir()
    private.mkdir()
    async with connected(make_agent(), Client(), cwd=str(private), store=store) as talk:  # the owner
        await talk.say("my private question")
        kept = talk.session_id

    async def handle(transport: Any) -> None:
        await serve_agent(make_agent(), transport, store=store, folders=[allowed])

    client = Client()
    async with (
        serve_tcp(handle, "127.0.0.1", token=TOKEN) as server,
        ClientSideConnection(client, connect_tcp("127.0.0.1", server.port, token=TOKEN)) as connection,
    ):
        await connection.initialize(protocol_version=1)
        assert (await connection.list_sessions()).sessions == []
        for take_up in (connection.load_session, connection.resume_session):
            with pytest.raises(RequestError, match=r"(?i)not found"):
                await take_up(cwd=str(allowed), session_id=kept, mcp_servers=[])
        await connection.delete_session(session_id=kept)
    assert kept in await store.ids()
    assert not client.updates


async def test_a_session_whose_folder_becomes_a_link_does_not_reach_what_the_link_leads_to(
    tmp_path: Path,
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "key").write_text("the private key")
    work = tmp_path / "allowed" / "work"
    work.mkdir(parents=True)
    agent = Agent(
        name="helper", model=ScriptedModel([[call("read_file", path="key")], "done"]), tools=[read_file]
    )
    client = Client()
    async with connected(agent, client, cwd=str(work)) as talk:
        work.rmdir()
        work.symlink_to(tmp_path / "home")
        await talk.say()
    told = repr(client.updates)
    assert "the private key" not in told
    assert "is not in" in told


async def test_without_folders_a_client_over_the_network_has_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with over_tcp() as conn:
        await conn.new_session(cwd=str(tmp_path), mcp_servers=[])
        with pytest.raises(RequestError):
            await conn.new_session(cwd="/", mcp_servers=[])


# The command

AGENTS = """
from quiesce.acp.tools import read_file
from quiesce.agents import Agent, MemoryStore
from quiesce.testing import ScriptedModel, call
agent = Agent(name="helper", model=ScriptedModel(["hello"] * 10))
"""


@asynccontextmanager
async def served_by_command(home: Path, *arguments: str, **env: str) -> AsyncIterator[tuple[Process, str]]:
    """The command, and what it says first."""
    (home / "agents.py").write_text(AGENTS)
    said = bytearray()
    begun = anyio.Event()

    def heard(data: bytes) -> None:
        said.extend(data)
        if b"serving" in said and (
            b"token" in said or "--unix" in arguments or env or "--token-file" in arguments
        ):
            begun.set()

    line = [sys.executable, "-m", "quiesce", "acp", "agents:agent", "--store", "none", *arguments]
    async with Process(line, cwd=home, env={**os.environ, **env}, on_stderr=heard) as process:
        with anyio.fail_after(30):
            await begun.wait()
        yield process, said.decode()


async def test_the_command_makes_a_token_and_prints_it_once(tmp_path: Path) -> None:
    async with served_by_command(tmp_path, "--websocket", "127.0.0.1:0") as (_, said):
        found = re.search(r"clients need this token: (\S+)", said)
        at = re.search(r"ws://(\S+)/acp", said)
        assert found is not None
        assert at is not None
        with pytest.raises(ConnectionError, match="401"):
            async with Peer(connect_websocket(f"ws://{at[1]}/acp")):
                pass
        way = connect_websocket(f"ws://{at[1]}/acp", headers=bearer(found[1]))
        async with ClientSideConnection(Client(), way) as conn:
            await conn.initialize(protocol_version=1)
            with pytest.raises(RequestError):
                await conn.new_session(cwd=str(tmp_path), mcp_servers=[SHELL])
            with pytest.raises(RequestError):
                await conn.new_session(cwd="/", mcp_servers=[])
            await conn.new_session(cwd=str(tmp_path), mcp_servers=[])


async def test_the_commands_token_may_come_from_a_file_or_the_environment_and_is_not_printed(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for arguments, env in ((["--token-file", "token"], {}), ([], {"QUIESCE_ACP_TOKEN": TOKEN})):
        async with served_by_command(tmp_path, "--websocket", "127.0.0.1:0", *arguments, **env) as (
            process,
            said,
        ):
            at = re.search(r"ws://(\S+)/acp", said)
            assert at is not None
            async with ClientSideConnection(
                Client(), connect_websocket(f"ws://{at[1]}/acp", headers=bearer())
            ) as conn:
                await conn.initialize(protocol_version=1)
            assert TOKEN not in said
            shown = await to_thread(Path(f"/proc/{process.pid}/cmdline").read_bytes)
            assert TOKEN.encode() not in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--websocket", "0.0.0.0:0"], "without both a token and TLS"),
        (["--websocket", "127.0.0.1:0", "--token-file", "short"], "at least 16 characters"),
        (["--websocket", "127.0.0.1:0", "--token-file", "missing"], "No such file"),
        (["--websocket", "127.0.0.1:0", "--tls-cert", "agents.py"], "cannot be used"),
    ],
)
async def test_the_command_refuses_to_serve_strangers(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    (tmp_path / "short").write_text("123\n")
    done = await anyio.run_process(
        [sys.executable, "-m", "quiesce", "acp", "agents:agent", "--store", "none", *arguments],
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert says in done.stderr.decode()


async def test_the_command_serves_a_socket_for_its_owner(tmp_path: Path) -> None:
    async with served_by_command(tmp_path, "--unix", "sock"):
        path = tmp_path / "sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with ClientSideConnection(Client(), connect_unix(path)) as conn:
            await conn.initialize(protocol_version=1)
            session = await conn.new_session(cwd="/", mcp_servers=[])
            assert session.modes is not None
            assert [mode.id for mode in session.modes.available_modes] == ["ask", "auto"]
