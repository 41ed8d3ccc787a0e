"""A thousand sessions with work in them, closed at once: how long that takes, what it costs, and what is left
when it is said to be done.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SESSIONS = 1000
ROUNDS = 3
AT_ONCE = 50  # that are opened
PATIENCE = 20.0


@dataclass
class Work:
    """What the tools and guardrails of all sessions have come to."""

    started: int = 0
    cleaned_up: int = 0


@dataclass(order=True)
class Closed:
    seconds: float
    cpu: float = field(compare=False)
    tasks: int = field(compare=False)  # left
    unclean: int = field(
        compare=False
    )  # clean-ups that were begun, or not even that, and are not at their end
    sockets: int = field(compare=False)
    connections: int = field(compare=False)  # that the server still has

    @property
    def left(self) -> str:
        said = []
        if self.tasks:
            said.append(f"{self.tasks:,} tasks")
        if self.unclean:
            said.append(f"{self.unclean:,} clean-ups not at their end")
        if self.sockets:
            said.append(f"{self.sockets:,} sockets")
        if self.connections:
            said.append(f"{self.connections:,} connections at the server")
        return ", ".join(said) or "nothing"


def agent_with_work(library: Any, work: Work, clean_up: float) -> Any:
    """Its tool and its guardrail go on until they are cancelled, and then clean up."""

    async def go_on() -> None:
        work.started += 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(clean_up)
            work.cleaned_up += 1

    async def search() -> str:
        """Search for a long time."""
        await go_on()
        return "nothing"

    async def looks(context: Any, agent: Any, said: Any) -> Any:
        await go_on()

    return library.agent(tools=[library.tool(search)], output_guardrails=[library.guardrail(looks)])


async def close_all(library: Any, clean_up: float, url: str | None, still_open: Callable[[], int]) -> Closed:
    """Open them, let all of them work, close all of them, and look."""
    work = Work()
    agent = agent_with_work(library, work, clean_up)
    models = [library.model_type() if url is None else None for _ in range(SESSIONS)]
    mine = asyncio.all_tasks()
    sockets = open_sockets()
    sessions: list[Any] = []

    async def begin(model: Any) -> None:
        session = await library.session(model, agent, url, guardrails_settings={"debounce_text_length": 1})
        await session.enter()
        sessions.append(session)
        # Over a socket nobody says these; they are told to the session as its model would.
        (listener,) = session.model.listeners if url is None else session.model._listeners
        await listener.on_event(library.realtime.RealtimeModelTurnStartedEvent(response_id="resp_1"))
        await listener.on_event(library.call("search", 1))
        await listener.on_event(library.delta())

    for start in range(0, SESSIONS, AT_ONCE):
        await asyncio.gather(*map(begin, models[start : start + AT_ONCE]))
    async with asyncio.timeout(PATIENCE):
        while work.started < 2 * SESSIONS:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    began, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*(session.close() for session in sessions))
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    left = [task for task in asyncio.all_tasks() - mine if not task.done()]
    found = Closed(seconds, cpu, len(left), work.started - work.cleaned_up, open_sockets() - sockets, 0)
    if url is not None:
        await asyncio.sleep(0.3)  # the server hears of it a little later
        found.connections = still_open()
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=PATIENCE)
    return found


def open_sockets() -> int:
    """Of this process; they are only known on Linux."""
    count = 0
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            count += os.readlink(entry).startswith("socket:")
        except OSError:  # the one that lists them
            continue
    return count


def closing(libraries: list[Any], server: Callable[..., Any], line_of: Callable[[Any], str]) -> None:
    """The table."""
    logging.getLogger("openai.agents").setLevel(
        logging.ERROR
    )  # it says of each session what it has given up waiting for
    ours, theirs = (library.name for library in libraries)
    print(f"\n### {SESSIONS:,} sessions, each with a tool and a guardrail at work, closed at once\n")
    print(f"| | {ours} | CPU | left | {theirs} | CPU | left |\n|---|---|---|---|---|---|---|", flush=True)

    def nobody() -> int:
        return 0

    show("in memory; clean-ups take no time", libraries, 0.0, None, nobody)
    show("in memory; each clean-up takes 1.5 s", libraries, 1.5, None, nobody)
    with server("text", 1) as process:

        def still_open() -> int:
            process.stdin.write("\n")
            process.stdin.flush()
            return int(line_of(process))

        show("over WebSockets; clean-ups take no time", libraries, 0.0, line_of(process), still_open)


def show(
    title: str, libraries: list[Any], clean_up: float, url: str | None, still_open: Callable[[], int]
) -> None:
    best: dict[str, Closed] = {}
    for _ in range(ROUNDS):
        for library in libraries:
            gc.collect()
            gc.disable()
            try:
                found = asyncio.run(close_all(library, clean_up, url, still_open))
            finally:
                gc.enable()
            best[library.name] = min(best.get(library.name, found), found)
    cells = [
        f"{closed.seconds * 1000:.0f} ms | {closed.cpu * 1000:.0f} ms | {closed.left}"
        for closed in best.values()
    ]
    print(f"| {title} | {' | '.join(cells)} |", flush=True)
