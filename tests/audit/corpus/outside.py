"""Processes, threads and descriptors: what is left of a run outside its event loop."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable

import anyio

from quiesce.audit import Limits

from .entry import TICK, Entry, Finds

# A process is ended at the end only.

processes: list[subprocess.Popen[bytes]] = []


def start_server() -> subprocess.Popen[bytes]:
    server = subprocess.Popen(["sleep", "3600"])
    processes.append(server)
    return server


def end_server(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


def end_servers() -> None:
    while processes:
        end_server(processes.pop())


async def ends_its_server_at_the_end() -> None:
    server = start_server()
    await anyio.sleep(TICK)
    end_server(server)


async def ends_its_server() -> None:
    server = start_server()
    try:
        await anyio.sleep(TICK)
    finally:
        end_server(server)


# A killed process that nobody waits for stays in the table of processes.


async def kills_and_forgets() -> None:
    server = start_server()
    try:
        await anyio.sleep(TICK)
    except BaseException:
        server.kill()
        raise
    end_server(server)


# A tool in a thread looks whether it was cancelled, and the run has taken the token away.


class Token:
    def __init__(self) -> None:
        self.is_cancelled = False


class Conversation:
    def __init__(self) -> None:
        self.token: Token | None = Token()
        self.tool_is_done = threading.Event()

    def tool(self, give_up: Callable[[], bool]) -> None:
        while not give_up() and not (self.token is not None and self.token.is_cancelled):
            if self.tool_is_done.wait(0.002):
                return

    async def run(self, *, keeps_its_token: bool) -> None:
        tool = threading.Thread(target=self.tool, args=(is_test_over.is_set,), name="conversation tool")
        tool.start()
        try:
            await anyio.sleep(TICK)
        except BaseException:
            assert self.token is not None
            self.token.is_cancelled = True
            if not keeps_its_token:
                self.token = None
            raise
        finally:
            if keeps_its_token:
                self.tool_is_done.set()
        self.tool_is_done.set()


is_test_over = threading.Event()


def end_tools() -> None:
    is_test_over.set()
    for thread in threading.enumerate():
        if thread.name == "conversation tool":
            thread.join()
    is_test_over.clear()


async def takes_the_token_away() -> None:
    await Conversation().run(keeps_its_token=False)


async def leaves_the_token() -> None:
    await Conversation().run(keeps_its_token=True)


# A pipe is closed at the end only.

pipes: list[int] = []


def close_pipes() -> None:
    while pipes:
        os.close(pipes.pop())


async def closes_its_pipe_at_the_end() -> None:
    pipe = os.pipe()
    pipes.extend(pipe)
    await anyio.sleep(TICK)
    close_pipes()


async def closes_its_pipe() -> None:
    pipe = os.pipe()
    pipes.extend(pipe)
    try:
        await anyio.sleep(TICK)
    finally:
        close_pipes()


REAL = {"stops": "cancel", "phases": "early", "real_io": True}

ENTRIES = [
    Entry(
        "server-left",
        ends_its_server_at_the_end,
        ends_its_server,
        (Finds("process", "sleep N", "cancel/early"),),
        REAL,
        tidy=end_servers,
    ),
    Entry(
        "server-not-waited-for",
        kills_and_forgets,
        ends_its_server,
        (Finds("process", "sleep (ended, never waited for)", "cancel/early"),),
        REAL,
        tidy=end_servers,
    ),
    Entry(
        "token-taken-away",
        takes_the_token_away,
        leaves_the_token,
        (Finds("thread", "conversation tool", "cancel/early", says="runs Conversation.tool"),),
        {**REAL, "limits": Limits(linger=1.0)},  # for the thread of a run that nobody stops
        tidy=end_tools,
    ),
    Entry(
        "pipe-left",
        closes_its_pipe_at_the_end,
        closes_its_pipe,
        (Finds("descriptor", "pipe:*", "cancel/early"),),
        REAL,
        tidy=close_pipes,
    ),
]
