"""`quiesce acp module:agent`: serve an agent to clients of the Agent Client Protocol, such as editors.

Over stdio, standard output carries the protocol and nothing else, from the first moment to the last: what the agent's module prints while it is imported,
its threads at any time, and its `atexit` at the end, goes to standard error. The program ends when its client is gone, by Ctrl-C or by SIGTERM, and leaves nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiesce.cli._parser import Parser
from quiesce.cli._privacy import warn_if_shared

if TYPE_CHECKING:
    from quiesce.agents import Agent, Store

_EPILOG = """\
examples:
  quiesce acp my_agents:coder                           over stdin and stdout, as an editor starts it
  quiesce acp my_agents:make_coder --store sessions.db  a function that makes the agent; sessions are kept in that file
  quiesce acp my_agents:coder --websocket localhost:7000
                                                        ws://localhost:7000/acp, with http://localhost:7000/health

exit codes: 0 the client is gone, 1 it could not serve, 2 bad usage, 130 interrupted
"""


class BadAgent(Exception):
    """What was named is no agent that can be served; the message says why."""


def main(words: Sequence[str]) -> int:
    """Run `quiesce acp` with these arguments; the exit code."""
    try:
        given = _parser().parse_args(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    if given.websocket is not None:
        return _serve(given)
    from quiesce.wire._stdio import move_stdout

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
        print(f"quiesce acp: {bad}", file=sys.stderr)
        return 2
    import quiesce
    from quiesce.agents import StoreError

    program = _over_stdio if given.websocket is None else _over_websocket
    try:
        quiesce.run(lambda: program(agent, make, given), backend=given.backend)
    except (
        OSError,
        ImportError,
        StoreError,
    ) as error:  # a port that is taken, a file that cannot be opened, an extra that is missing
        print(f"quiesce acp: {error}", file=sys.stderr)
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
    parser.add_argument(
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
    from quiesce.acp._served import serve_agent
    from quiesce.wire._stdio import stdio

    if sys.stdin is not None and sys.stdin.isatty():
        _say(f"serving {given.agent} over stdin and stdout: this is for a client to start")
    async with _store(given) as store:
        await serve_agent(
            agent,
            stdio(write_fd=given.stdout),
            store=None if given.store == "none" else store,
            max_turns=given.max_turns,
        )


async def _over_websocket(
    agent: Agent[Any], make: Callable[[], Agent[Any]], given: argparse.Namespace
) -> None:
    import anyio

    from quiesce.acp._served import serve_agent
    from quiesce.wire._websocket_server import serve_websocket

    first = [agent]  # made before anybody came, to see that it can be
    host, port = given.websocket
    origins: list[str | re.Pattern[str] | None] = [None, *given.origin]
    async with _store(given) as store:

        async def handle(transport: Any) -> None:
            mine = first.pop() if first else make()
            await serve_agent(mine, transport, store=store, max_turns=given.max_turns)

        async with serve_websocket(
            handle, host, port, path=given.path, health="/health", origins=origins
        ) as server:
            at = f"{f'[{host}]' if ':' in host else host}:{server.port}"
            _say(f"serving {given.agent} at ws://{at}{given.path}, health at http://{at}/health")
            await anyio.sleep_forever()


def _say(text: str) -> None:
    print(f"quiesce acp: {text}", file=sys.stderr, flush=True)
