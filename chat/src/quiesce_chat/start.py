"""How a chat starts and ends: the model, the store, the folder, and the errors of each."""

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
from typing import Any, TextIO

import quiesce
from quiesce.agents import MemoryStore, Store, StoreError
from quiesce.cli.inner import error_text, say
from quiesce.inner import MissingExtra, printed_line
from quiesce.models import Model, ModelError
from quiesce_chat.models import ModelUnavailable, NoLanguageModel, UnknownModel, resolve
from quiesce_chat.session import NoSuchConversation, find_conversation, new_id, open_store, store_option
from quiesce_chat.ui import discard_output

from .script import BadScript, load_script

#: Seconds until the user is told what the command is waiting for.
SLOW = 1.0


class BadUsage(Exception):
    """The options make no sense; the message says why, and what to do."""


def run_command(name: str, main: Callable[[], Awaitable[int]]) -> int:
    """Run a command as a program and return the exit code. Errors are printed to standard error in one line each."""
    try:
        with _warnings_on_stderr():
            return quiesce.run(main)
    except quiesce.Stopped as stopped:
        if stopped.reason.kind == "disconnect":
            _discard_closed_streams()
        return stopped.code if isinstance(stopped.code, int) else 1
    except BadUsage as wrong:
        say(f"quiesce {name}: {error_text(wrong)}")
        return 2
    except BrokenPipeError:
        # The reader of standard output has closed it, as `head` does. That is its decision, and not worth a message.
        discard_output(sys.stdout)
        return 1
    except (BadScript, NoSuchConversation, StoreError, ModelError, MissingExtra, OSError) as failed:
        # EIO: the terminal was closed while SIGHUP is ignored, as under `nohup`.
        if isinstance(failed, OSError) and failed.errno == errno.EIO:
            _discard_closed_streams()
        say(f"quiesce {name}: {error_text(failed)}")
        return 1


def _discard_closed_streams() -> None:
    """Discard output that is still buffered for a closed terminal."""
    # The interpreter flushes both streams when it exits; if that fails, it prints an error and exits with status 120.
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            discard_output(stream)


class _OneLineFormatter(logging.Formatter):
    """Formats a record as one line: the message, and the error's message without its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        return printed_line(record.getMessage() + (f": {error}" if error is not None else ""))


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Print the warnings that quiesce itself logs to standard error, where the user sees them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLineFormatter())
    logger = logging.getLogger("quiesce")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def is_interactive() -> bool:
    """Whether both standard input and standard output are terminals."""
    return _are_terminals(sys.stdin, sys.stdout)


def can_ask_user() -> bool:
    """Whether a user can read questions and answer them: standard input and standard error are terminals."""
    return _are_terminals(sys.stdin, sys.stderr)


def _are_terminals(*streams: TextIO | None) -> bool:
    # A stream is None if the program was started without it.
    return all(stream is not None and not stream.closed and stream.isatty() for stream in streams)


def folder_of(options: argparse.Namespace) -> Path:
    """The folder that the tools work in."""
    try:
        folder = Path(options.folder).expanduser().resolve()
    except RuntimeError as error:  # a ~ whose home directory is unknown
        raise BadUsage(f"--folder {options.folder!r} cannot be found: {error}") from error
    if not folder.is_dir():
        raise BadUsage(f"--folder {options.folder!r} is not a folder")
    return folder


async def find_model(options: argparse.Namespace, *, ask: bool, allow_script: bool = True) -> Model:
    """Find the model that answers. With `ask`, the user may be asked whether to download weights.

    If no language model is available, a script answers in its place. Without `allow_script` that is an error, unless
    the user asked for the script.
    """
    if options.script is not None:
        if options.model not in (None, "scripted"):
            raise BadUsage(f"--script needs --model scripted, not {options.model!r}")
        return load_script(options.script)
    slow = asyncio.get_running_loop().call_later(SLOW, _say_waiting, options.model or "")
    try:
        found = await resolve(options.model, ask=ask, fetch=options.fetch)
    except UnknownModel as unknown:
        raise BadUsage(str(unknown)) from unknown
    finally:
        slow.cancel()
    if isinstance(found, NoLanguageModel) and not (options.model or "").strip() and not allow_script:
        raise ModelUnavailable(found.explanation)
    return found


def _say_waiting(spec: str) -> None:
    """Tell the user that a server has not yet answered which models it has."""
    if "://" in spec and sys.stderr is not None and sys.stderr.isatty():
        say(f"waiting for {spec}; press Ctrl-C to stop")


async def close_model(model: Model) -> None:
    """Close a model that holds connections or a server; other models have nothing to close."""
    close: Any = getattr(model, "close", None)
    if close is not None:
        result = close()
        if inspect.isawaitable(result):
            await result


@asynccontextmanager
async def opened_model(
    options: argparse.Namespace, *, ask: bool, allow_script: bool = True
) -> AsyncIterator[list[Model]]:
    """The model, as the only item of a list, and closed at the end.

    To switch to another model, replace the item and close the previous one.
    """
    holder = [await find_model(options, ask=ask, allow_script=allow_script)]
    try:
        yield holder
    finally:
        await quiesce.shielded(close_model, holder[0])


@asynccontextmanager
async def opened_store(options: argparse.Namespace, *, by_default: bool) -> AsyncIterator[tuple[Store, str]]:
    """The store, and the id of the conversation in it.

    `by_default` says whether to store the conversation if no option mentions a store.
    """
    if options.store == "none" or (options.store is None and options.resume is None and not by_default):
        if options.resume is not None:
            raise BadUsage("--resume needs a store, but --store none stores nothing")
        yield MemoryStore(), new_id()
        return
    store = open_store(options.store)
    try:
        list_command = f"quiesce chat{store_option(options.store)} --list"
        conversation_id = (
            await find_conversation(store, options.resume, list_command)
            if options.resume is not None
            else new_id()
        )
        yield store, conversation_id
    finally:
        await quiesce.shielded(store.close)
