"""`quiesce acp module:agent`: serve an agent to clients of the Agent Client Protocol, such as editors.

Over stdio, standard output carries the protocol and nothing else, from the first moment to the last. Anything else
that is printed goes to standard error: by the agent's module while it is imported, by its threads at any time, and
by its `atexit` functions. The program stops when its client disconnects, on Ctrl-C or on SIGTERM, each time within
one `Grace`, and leaves nothing running.
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

from quiesce.cli.base import Parser, error_text, say, user_folder, warn_if_shared

if TYPE_CHECKING:
    import ssl

    from quiesce.agents import Agent, Store


_EPILOG = """\
examples:
  quiesce acp my_agents:coder                           over stdin and stdout, as an editor starts it
  quiesce acp my_agents:make_coder --store sessions.db  a function that makes the agent; sessions go to that file
  quiesce acp my_agents:coder --unix /run/user/1000/coder.sock
                                                        a socket that only you can connect to
  quiesce acp my_agents:coder --websocket localhost:7000
                                                        ws://localhost:7000/acp, with http://localhost:7000/health

Every program on the machine can connect to a WebSocket, so its clients need a token
("Authorization: Bearer TOKEN"): the one in --token-file or QUIESCE_ACP_TOKEN, else a new one that is printed. Their
sessions work in the current folder, or in those named with --folder. Addresses other than loopback also need TLS.

exit codes: 0 the client disconnected, 1 it could not serve, or something had to be stopped by force, 2 bad usage,
130 interrupted
"""


class BadAgent(Exception):
    """MODULE:AGENT does not name an agent that can be served; the message says why."""


def main(words: Sequence[str]) -> int:
    """Run `quiesce acp` with these arguments and return the exit code."""
    try:
        options = _parser().parse_args(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    if options.websocket is not None or options.unix is not None:
        return _serve(options)
    from quiesce.wire.inner import move_stdout

    # Before the agent's module is imported: from here on, descriptor 1 leads to standard error, also for libraries
    # and child processes that write to it directly. Replacing `sys.stdout` would not catch those.
    try:
        options.stdout = move_stdout()
    except OSError as error:
        _say(f"{error.strerror}, but the protocol is written to stdout")
        return 1
    try:
        return _serve(options)
    finally:
        os.close(options.stdout)


def _serve(options: argparse.Namespace) -> int:
    try:
        make = load(options.agent)
        agent = make()
    except BadAgent as bad:
        _say(error_text(bad))
        return 2
    import quiesce
    from quiesce.agents import StoreError

    program = (
        _over_websocket
        if options.websocket is not None
        else _over_unix
        if options.unix is not None
        else _over_stdio
    )
    try:
        quiesce.run(lambda: program(agent, make, options), backend=options.backend)
    except quiesce.Stopped as stopped:
        if stopped.code:
            raise
    # A port that is in use, a file that cannot be opened, a missing extra, a store that cannot be used.
    except (OSError, ImportError, StoreError) as error:
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
        help='the SQLite file that stores sessions; "none" keeps them in memory '
        "(default: a file for this agent in your state directory)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--unix",
        metavar="PATH",
        help="serve on a Unix socket, which only programs of the same user can connect to",
    )
    where.add_argument(
        "--websocket",
        metavar="HOST:PORT",
        type=_address,
        help="serve WebSockets at this address instead of stdin and stdout; port 0 chooses a free port",
    )
    parser.add_argument("--path", default="/acp", help="the path of the WebSocket (default: %(default)s)")
    parser.add_argument(
        "--origin",
        metavar="URL",
        action="append",
        default=[],
        help="let web pages of this origin connect too; may be repeated (default: none)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="a file whose first line is the token that WebSocket clients need",
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="the certificate of the WebSocket server, for wss://"
    )
    parser.add_argument(
        "--tls-key", metavar="FILE", help="the key of the certificate, if it is not in the same file"
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        action="append",
        help="let sessions work in this folder; may be repeated "
        "(default: any folder over stdin or --unix, the current one over a WebSocket)",
    )
    parser.add_argument(
        "--allow-mcp-commands",
        action="store_const",
        const=True,
        help="let WebSocket clients name MCP servers by a command, which is run on this machine",
    )
    parser.add_argument(
        "--allow-auto",
        action="store_const",
        const=True,
        help="let WebSocket clients choose the mode in which tools run without approval",
    )
    parser.add_argument(
        "--max-turns",
        metavar="N",
        type=_positive,
        default=100,
        help="how many model calls one turn of the conversation may make (default: %(default)s)",
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


# The agent


def load(named: str) -> Callable[[], Agent[Any]]:
    """Import what `module:attribute` names, and return a function that returns the agent.

    It returns the named agent itself, or a new one from the named function. Raises `BadAgent` if there is neither.
    """
    module_name, colon, attributes = named.partition(":")
    if not colon or not module_name or not attributes:
        raise BadAgent(f"{named!r} does not name an agent: write MODULE:AGENT, such as my_agents:coder")
    # `quiesce` is an installed script, so unlike with `python -m`, the current folder is not on the path.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The missing module may be one that the agent's module imports.
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
            available = ", ".join(sorted(_agents_in(importlib.import_module(module_name)))) or "none"
            raise BadAgent(
                f"module {module_name!r} has no {attributes!r}; the agents in it: {available}"
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
        raise BadAgent(f"{named!r} is {_kind(found)}, not an Agent or a function that makes one")

    def make() -> Agent[Any]:
        try:
            made = found()
        except Exception as error:
            raise BadAgent(
                f"{named!r} was called to make the agent, but failed:\n{traceback.format_exc()}"
            ) from error
        if not isinstance(made, Agent):
            close = getattr(made, "close", None)
            if callable(close):
                # An `async def` returns a coroutine, which warns when it is collected without having been awaited.
                close()
            raise BadAgent(
                f"{named!r} was called to make the agent, but returned {_kind(made)}, which is not an Agent"
            )
        return made

    return make


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# The store


def store_path(named: str) -> Path:
    """The default file for the sessions of an agent."""
    state = user_folder("XDG_STATE_HOME", ".local/state", "sessions")
    return state / "quiesce" / "acp" / f"{re.sub(r'[^A-Za-z0-9_.-]+', '.', named)}.db"


@asynccontextmanager
async def _store(options: argparse.Namespace) -> AsyncIterator[Store]:
    from quiesce import shielded
    from quiesce.agents import MemoryStore, SQLiteStore

    store: Store
    if options.store == "none":
        store = MemoryStore()
    elif options.store is not None:
        warn_if_shared(Path(options.store))
        store = SQLiteStore(options.store)
    else:
        path = store_path(options.agent)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        warn_if_shared(path)
        store = SQLiteStore(path)
    try:
        # Fail now, and not in the middle of a turn, if the file cannot be used.
        await store.ids()
        yield store
    finally:
        await shielded(store.close)


# Serving


async def _over_stdio(agent: Agent[Any], make: Callable[[], Agent[Any]], options: argparse.Namespace) -> None:
    from quiesce.acp import serve_agent
    from quiesce.kernel.inner import stop_program
    from quiesce.wire import stdio

    if sys.stdin is not None and sys.stdin.isatty():
        _say(
            f"serving {options.agent} over stdin and stdout; this command is meant to be started by a client"
        )
    async with _store(options) as store:
        await serve_agent(
            agent,
            stdio(write_fd=options.stdout),
            # Stops the whole program, so that serving, the store and the exit share one grace.
            on_disconnect=stop_program,
            **_serving_options(options, None if options.store == "none" else store),
        )


def _serving_options(options: argparse.Namespace, store: Store | None) -> dict[str, Any]:
    return {
        "store": store,
        "max_turns": options.max_turns,
        "folders": options.folder,
        "allow_commands": options.allow_mcp_commands,
        "allow_auto": options.allow_auto,
    }


async def _over_unix(agent: Agent[Any], make: Callable[[], Agent[Any]], options: argparse.Namespace) -> None:
    import anyio

    from quiesce.wire import serve_unix

    async with _store(options) as store, serve_unix(_handler(agent, make, options, store), options.unix):
        _say(f"serving {options.agent} at {options.unix}, only for programs of yours")
        await anyio.sleep_forever()


def _handler(
    agent: Agent[Any], make: Callable[[], Agent[Any]], options: argparse.Namespace, store: Store
) -> Callable[[Any], Awaitable[None]]:
    from quiesce.acp import serve_agent

    # The agent made at the start, to find out whether it can be made, serves the first client. Each further one
    # gets its own, if MODULE:AGENT is a function.
    unused = [agent]

    async def handle(transport: Any) -> None:
        own = unused.pop() if unused else make()
        await serve_agent(own, transport, **_serving_options(options, store))

    return handle


async def _over_websocket(
    agent: Agent[Any], make: Callable[[], Agent[Any]], options: argparse.Namespace
) -> None:
    import anyio

    from quiesce.wire import serve_websocket

    host, port = options.websocket
    # None is for clients that send no Origin header, as programs do. Web pages always send one.
    origins: list[str | re.Pattern[str] | None] = [None, *options.origin]
    token, is_new = _token(options)
    tls = _tls(options)
    async with (
        _store(options) as store,
        serve_websocket(
            _handler(agent, make, options, store),
            host,
            port,
            path=options.path,
            health="/health",
            origins=origins,
            token=token,
            ssl=tls,
        ) as server,
    ):
        address, s = f"{f'[{host}]' if ':' in host else host}:{server.port}", "s" if tls is not None else ""
        _say(
            f"serving {options.agent} at ws{s}://{address}{options.path}, health at http{s}://{address}/health"
        )
        if is_new:
            # Not through `_say`, which hides secrets.
            print(f"quiesce acp: clients need this token: {token}", file=sys.stderr, flush=True)
        await anyio.sleep_forever()


def _token(options: argparse.Namespace) -> tuple[str, bool]:
    """The token that clients must send, and whether it was made just now."""
    from quiesce.wire.inner import SHORTEST_TOKEN

    if options.token_file is not None:
        lines = Path(options.token_file).read_text(encoding="utf-8").splitlines()
        token = lines[0].strip() if lines else ""
        source = options.token_file
    elif (found := os.environ.get("QUIESCE_ACP_TOKEN")) is not None:
        token, source = found.strip(), "QUIESCE_ACP_TOKEN"
    else:
        return secrets.token_urlsafe(32), True
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        # An OSError, like that of a missing file: `_serve` prints it as one line.
        raise OSError(
            f"the token in {source} must have at least {SHORTEST_TOKEN} characters, all of them printable ASCII"
        )
    return token, False


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise OSError(f"the certificate {options.tls_cert!r} cannot be used: {error}") from error
    return context


def _say(text: str) -> None:
    say(f"quiesce acp: {text}")
