"""How a chat begins and ends: the model, the store, the folder, and what each of them may get wrong."""

from __future__ import annotations

import argparse
import asyncio
import errno
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import quiesce
from quiesce._extras import MissingExtra
from quiesce._safe.printed import printed_line
from quiesce.agents import MemoryStore, Store, StoreError
from quiesce.cli.base import of_error, say
from quiesce.cli.chat.session import NoSuchConversation, new_id, open_store, store_option, to_resume
from quiesce.cli.chat.ui import let_be
from quiesce.cli.models import ModelUnavailable, NoLanguageModel, UnknownModel, resolve
from quiesce.models import Model, ModelError

from .script import BadScript, load_script

SLOW = 1.0  # seconds until a person is told what is waited for


class BadUsage(Exception):
    """Options that make no sense; the message says why, and what to do."""


def run_command(name: str, main: Callable[[], Awaitable[int]]) -> int:
    """Run it as a program; the exit code. What goes wrong is said in a line on standard error."""
    try:
        with _logged_in_lines():
            return quiesce.run(main)
    except quiesce.Stopped as stopped:
        if stopped.reason.kind == "disconnect":
            _let_dead_streams_be()
        return stopped.code if isinstance(stopped.code, int) else 1
    except BadUsage as wrong:
        say(f"quiesce {name}: {of_error(wrong)}")
        return 2
    except BrokenPipeError:  # whoever read us has gone, and wants no more words
        let_be(sys.stdout)
        return 1
    except (BadScript, NoSuchConversation, StoreError, ModelError, MissingExtra, OSError) as failed:
        if isinstance(failed, OSError) and failed.errno == errno.EIO:
            _let_dead_streams_be()
        say(f"quiesce {name}: {of_error(failed)}")
        return 1


def _let_dead_streams_be() -> None:
    """The terminal was closed: output that is still buffered does not change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            let_be(stream)


class _InALine(logging.Formatter):
    """The message, and the error's, without where it came from."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        return printed_line(record.getMessage() + (f": {error}" if error is not None else ""))


@contextmanager
def _logged_in_lines() -> Iterator[None]:
    """What quiesce itself logs is for the user of a command, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_InALine())
    logger = logging.getLogger("quiesce")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def can_be_asked() -> bool:
    """Whether a person reads our questions, and can answer them: both standard input and standard error are a terminal."""
    return all(
        stream is not None and not stream.closed and stream.isatty() for stream in (sys.stdin, sys.stderr)
    )


def folder_of(given: argparse.Namespace) -> Path:
    """The folder that the tools work in."""
    try:
        folder = Path(given.folder).expanduser().resolve()
    except RuntimeError as error:  # of ~, if nobody knows where that is
        raise BadUsage(f"--folder {given.folder!r} cannot be found: {error}") from error
    if not folder.is_dir():
        raise BadUsage(f"--folder {given.folder!r} is no folder")
    return folder


async def find_model(given: argparse.Namespace, *, ask: bool, script_will_do: bool = True) -> Model:
    """Who answers. May ask at a terminal whether to fetch something.

    Without `script_will_do`, it is an error if there is no language model and nobody has asked for the script in its place.
    """
    if given.script is not None:
        if given.model not in (None, "scripted"):
            raise BadUsage(f"--script goes with --model scripted, not with {given.model!r}")
        return load_script(given.script)
    slow = asyncio.get_running_loop().call_later(SLOW, _tell_wait, given.model or "")
    try:
        found = await resolve(given.model, ask=ask, fetch=given.fetch)
    except UnknownModel as unknown:
        raise BadUsage(str(unknown)) from unknown
    finally:
        slow.cancel()
    if isinstance(found, NoLanguageModel) and not (given.model or "").strip() and not script_will_do:
        raise ModelUnavailable(found.excuse)
    return found


def _tell_wait(spec: str) -> None:
    """A server that was named is asked for its models, and may take its time."""
    if "://" in spec and sys.stderr is not None and sys.stderr.isatty():
        say(f"waiting for {spec}; Ctrl-C gives up")


async def let_go(model: Model) -> None:
    """Give back what a model holds: connections, a server."""
    close: Any = getattr(model, "close", None)
    if close is not None:
        closing = close()
        if inspect.isawaitable(closing):
            await closing


@asynccontextmanager
async def opened_model(
    given: argparse.Namespace, *, ask: bool, script_will_do: bool = True
) -> AsyncIterator[list[Model]]:
    """The model, as the only item of a list: whoever puts another one there lets go of the first."""
    holder = [await find_model(given, ask=ask, script_will_do=script_will_do)]
    try:
        yield holder
    finally:
        await quiesce.shielded(let_go, holder[0])


@asynccontextmanager
async def opened_store(given: argparse.Namespace, *, keeps: bool) -> AsyncIterator[tuple[Store, str]]:
    """The store, and the id of the conversation in it."""
    if given.store == "none" or (given.store is None and given.resume is None and not keeps):
        if given.resume is not None:
            raise BadUsage("--resume needs a store, and --store none keeps nothing")
        yield MemoryStore(), new_id()
        return
    store = open_store(given.store)
    try:
        listed_by = f"quiesce chat{store_option(given.store)} --list"
        conversation_id = (
            await to_resume(store, given.resume, listed_by) if given.resume is not None else new_id()
        )
        yield store, conversation_id
    finally:
        await quiesce.shielded(store.close)
