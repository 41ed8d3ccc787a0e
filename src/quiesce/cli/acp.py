"""`quiesce acp module:agent`: serve an agent to clients of the Agent Client Protocol, such as editors.

Over stdio, standard output carries the protocol and nothing else, from the first moment to the last: what the agent's module prints while it is imported,
its threads at any time, and its `atexit` at the end, goes to standard error. The program stops when its client disconnects, by Ctrl-C or by SIGTERM, within one `Grace` each
time, and leaves nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import secrets
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiesce.cli.base import Parser, error_text, say, warn_if_shared

if TYPE_CHECKING:
    import ssl

    from quiesce.agents import Agent, Store


_EPILOG = """\
examples:
  quiesce acp my_agents:coder                           over stdin and stdout, as an editor starts it
  quiesce acp my_agents:make_coder --store sessions.db  a function that makes the agent; sessions are kept in that file
  quiesce acp my_agents:coder --unix /run/user/1000/coder.sock
                                                        a socket that only you can connect to
  quiesce acp my_agents:coder --websocket localhost:7000
                                                        ws://localhost:7000/acp, with http://localhost:7000/health

A WebSocket is open to every program on the machine, so its clients need a token ("Authorization: Bearer TOKEN"): that of
--token-file or of QUIESCE_ACP_TOKEN, else a new one that is printed. Their sessions work in the current folder, or in those of
--folder. At other addresses than those of loopback, TLS is needed too.

exit codes: 0 the client has disconnected, 1 it could not serve, or something in it had to be ended by force, 2 bad usage,
130 interrupted
"""


class BadAgent(Exception):
    """What was named is no agent that can be served; the message says why."""


def main(words: Sequence[str]) -> int:
    """Run `quiesce acp` with these arguments; the exit code."""
    try:
        given = _parser().parse_args(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    if given.websocket is not None or given.unix is not None:
        return _serve(given)
    from quiesce.wire.inner import move_stdout

    try:
        given.stdout = move_stdout()
    except OSError as error:
        _say(f"{error.strerror}: it is what the protocol is written to")
        return 1
    try:
        return _serve(given)
    finally:
        os.close(given.stdout)


def _serve(given: argparse.Namespace) -> int:
    try:
        make = load(given.agent)
        agent = make()
    except BadAgent as bad:
        _say(error_text(bad))
        return 2
    import quiesce
    from quiesce.agents import StoreError

    program = (
        _over_websocket
        if given.websocket is not None
        else _over_unix
        if given.unix is not None
        else _over_stdio
    )
    try:
        quiesce.run(lambda: program(agent, make, given), backend=given.backend)
    except quiesce.Stopped as stopped:
        if stopped.code:
            raise
    except (
        OSError,
        ImportError,
        StoreError,
    ) as error:  # a port that is taken, a file that cannot be opened, an extra that is missing
        _say(error_text(error))
        return 1
    return 0


def _parser() -> Parser:
    parser = Parser(
        "acp",
        usage="MODULE:AGENT [options]",
        description="Serve an agent over the Agent Client Protocol.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "agent",
        metavar="MODULE:AGENT",
        help="a quiesce Agent, or a function without arguments that makes one",
    )
    parser.add_argument(
        "--store",
        metavar="PATH",
        help='the SQLite file that keeps sessions; "none" keeps them in memory (default: a file of this agent in the user\'s state directory)',
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--unix",
        metavar="PATH",
        help="serve a socket in the file system, for programs of the same user alone",
    )
    where.add_argument(
        "--websocket",
        metavar="HOST:PORT",
        type=_address,
        help="serve WebSockets there, instead of stdin and stdout; port 0 is any that is free",
    )
    parser.add_argument("--path", default="/acp", help="the path of the WebSocket (default: %(default)s)")
    parser.add_argument(
        "--origin",
        metavar="URL",
        action="append",
        default=[],
        help="let web pages of this origin connect too; may be repeated (default: no web page may)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the token that clients of the WebSocket need is the first line of this file",
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="the certificate of the WebSocket server, for wss://"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="its key, if that is not in the same file")
    parser.add_argument(
        "--folder",
        metavar="DIR",
        action="append",
        help="let sessions work in this folder; may be repeated (default: any over stdin or --unix, the current one over a WebSocket)",
    )
    parser.add_argument(
        "--allow-mcp-commands",
        action="store_const",
        const=True,
        help="let clients of the WebSocket name MCP servers by a command, which is run here",
    )
    parser.add_argument(
        "--allow-auto",
        action="store_const",
        const=True,
        help="let clients of the WebSocket choose the mode in which no tool is asked about",
    )
    parser.add_argument(
        "--max-turns",
        metavar="N",
        type=_positive,
        default=100,
        help="how often the model may be asked in one turn of the conversation (default: %(default)s)",
    )
    parser.add_argument(
        "--backend", choices=("asyncio", "trio"), default="asyncio", help="default: %(default)s"
    )
    return parser


def _address(text: str) -> tuple[str, int]:
    host, found, port = text.rpartition(":")
    if not found or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as localhost:7000")
    return host.strip("[]") or "localhost", int(port)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


# The agent


def load(named: str) -> Callable[[], Agent[Any]]:
    """How to get the agent that `module:attribute` names: as it is, or by calling the function that makes it."""
    module_name, colon, attributes = named.partition(":")
    if not colon or not module_name or not attributes:
        raise BadAgent(f"{named!r} does not name an agent: write MODULE:AGENT, such as my_agents:coder")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise BadAgent(f"module {module_name!r} cannot be imported: {error}") from error
        raise BadAgent(
            f"there is no module {error.name!r}, neither in {os.getcwd()} nor installed"
        ) from error
    except Exception as error:
        raise BadAgent(f"module {module_name!r} cannot be imported:\n{traceback.format_exc()}") from error
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            there = ", ".join(sorted(_agents_in(importlib.import_module(module_name)))) or "none"
            raise BadAgent(
                f"module {module_name!r} has no {attributes!r}; the agents in it: {there}"
            ) from None
    return _maker(found, named)


def _agents_in(module: Any) -> list[str]:
    from quiesce.agents import Agent

    return [name for name, value in vars(module).items() if isinstance(value, Agent)]


def _maker(found: Any, named: str) -> Callable[[], Agent[Any]]:
    from quiesce.agents import Agent

    if isinstance(found, Agent):
        return lambda: found
    if not callable(found):
        raise BadAgent(f"{named!r} is {_kind(found)}, and neither an Agent nor a function that makes one")

    def make() -> Agent[Any]:
        try:
            made = found()
        except Exception as error:
            raise BadAgent(
                f"{named!r} was called to make the agent, and failed:\n{traceback.format_exc()}"
            ) from error
        if not isinstance(made, Agent):
            close = getattr(made, "close", None)
            if callable(close):
                close()  # a coroutine that nobody awaits would complain
            raise BadAgent(
                f"{named!r} was called to make the agent, and returned {_kind(made)}, which is no Agent"
            )
        return made

    return make


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# The store


def store_path(named: str) -> Path:
    """The file that keeps the sessions of an agent, unless another is given."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "quiesce" / "acp" / f"{re.sub(r'[^A-Za-z0-9_.-]+', '.', named)}.db"


@asynccontextmanager
async def _store(given: argparse.Namespace) -> AsyncIterator[Store]:
    from quiesce import shielded
    from quiesce.agents import MemoryStore, SQLiteStore

    store: Store
    if given.store == "none":
        store = MemoryStore()
    elif given.store is not None:
        warn_if_shared(Path(given.store))
        store = SQLiteStore(given.store)
    else:
        path = store_path(given.agent)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        warn_if_shared(path)
        store = SQLiteStore(path)
    try:
        await store.ids()  # a file that cannot be used is better known now than in the middle of a turn
        yield store
    finally:
        await shielded(store.close)


# Serving


async def _over_stdio(agent: Agent[Any], make: Callable[[], Agent[Any]], given: argparse.Namespace) -> None:
    from quiesce.acp import serve_agent
    from quiesce.kernel.inner import stop_program
    from quiesce.wire import stdio

    if sys.stdin is not None and sys.stdin.isatty():
        _say(f"serving {given.agent} over stdin and stdout: this is for a client to start")
    async with _store(given) as store:
        await serve_agent(
            agent,
            stdio(write_fd=given.stdout),
            on_disconnect=stop_program,  # one grace for all of it, from here to the exit
            **_options(given, None if given.store == "none" else store),
        )


def _options(given: argparse.Namespace, store: Store | None) -> dict[str, Any]:
    return {
        "store": store,
        "max_turns": given.max_turns,
        "folders": given.folder,
        "allow_commands": given.allow_mcp_commands,
        "allow_auto": given.allow_auto,
    }


async def _over_unix(agent: Agent[Any], make: Callable[[], Agent[Any]], given: argparse.Namespace) -> None:
    import anyio

    from quiesce.wire import serve_unix

    async with _store(given) as store, serve_unix(_handler(agent, make, given, store), given.unix):
        _say(f"serving {given.agent} at {given.unix}, for you alone")
        await anyio.sleep_forever()


def _handler(
    agent: Agent[Any], make: Callable[[], Agent[Any]], given: argparse.Namespace, store: Store
) -> Callable[[Any], Awaitable[None]]:
    from quiesce.acp import serve_agent

    first = [agent]  # made before anybody connected, to see that it can be

    async def handle(transport: Any) -> None:
        mine = first.pop() if first else make()
        await serve_agent(mine, transport, **_options(given, store))

    return handle


async def _over_websocket(
    agent: Agent[Any], make: Callable[[], Agent[Any]], given: argparse.Namespace
) -> None:
    import anyio

    from quiesce.wire import serve_websocket

    host, port = given.websocket
    origins: list[str | re.Pattern[str] | None] = [None, *given.origin]
    token, is_new = _token(given)
    tls = _tls(given)
    async with (
        _store(given) as store,
        serve_websocket(
            _handler(agent, make, given, store),
            host,
            port,
            path=given.path,
            health="/health",
            origins=origins,
            token=token,
            ssl=tls,
        ) as server,
    ):
        at, s = f"{f'[{host}]' if ':' in host else host}:{server.port}", "s" if tls is not None else ""
        _say(f"serving {given.agent} at ws{s}://{at}{given.path}, health at http{s}://{at}/health")
        if is_new:
            # Not through `_say`, which would hide it.
            print(f"quiesce acp: clients need this token: {token}", file=sys.stderr, flush=True)
        await anyio.sleep_forever()


def _token(given: argparse.Namespace) -> tuple[str, bool]:
    """What clients have to show, and whether it is new."""
    from quiesce.wire.inner import SHORTEST_TOKEN

    if given.token_file is not None:
        lines = Path(given.token_file).read_text(encoding="utf-8").splitlines()
        token = lines[0].strip() if lines else ""
        source = given.token_file
    elif (found := os.environ.get("QUIESCE_ACP_TOKEN")) is not None:
        token, source = found.strip(), "QUIESCE_ACP_TOKEN"
    else:
        return secrets.token_urlsafe(32), True
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise OSError(
            f"the token of {source} must have at least {SHORTEST_TOKEN} characters, all of them printable ASCII"
        )
    return token, False


def _tls(given: argparse.Namespace) -> ssl.SSLContext | None:
    if given.tls_cert is None:
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(given.tls_cert, given.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise OSError(f"the certificate {given.tls_cert!r} cannot be used: {error}") from error
    return context


def _say(text: str) -> None:
    say(f"quiesce acp: {text}")
