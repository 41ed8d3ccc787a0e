"""No SDK: leaks of every kind, made on purpose, so that the judge itself can be judged."""

# ruff: noqa: ASYNC220, ASYNC221  # blocking calls are among what it shows
from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from pathlib import Path

from .ways import Close, Ready, Scenario, Way

CHILD = Path(__file__).with_name("standins") / "child.py"
# A daemon: its parent ends at once, and it has a session of its own and no environment.
DAEMON = f"import os, sys; os.fork() and os._exit(0); os.setsid(); os.execve(sys.executable, ['x', {str(CHILD)!r}], {{}})"

kept: list[object] = []


async def sleep_on() -> None:
    await asyncio.sleep(60)


def wait_in_a_thread(gone: threading.Event) -> None:
    gone.wait(60)


async def leak_everything(ready: Ready) -> None:
    kept.append(asyncio.create_task(sleep_on()))
    threading.Thread(target=wait_in_a_thread, args=(threading.Event(),), daemon=True).start()
    subprocess.run([sys.executable, "-c", DAEMON], check=True)
    listening = socket.create_server(("127.0.0.1", 0))
    kept.append(socket.create_connection(listening.getsockname()))
    kept.append(listening)
    ready()
    try:
        await sleep_on()
    except asyncio.CancelledError:
        pass  # swallowed


async def leak_nothing(ready: Ready) -> None:
    gone = threading.Event()
    thread = threading.Thread(target=wait_in_a_thread, args=(gone,))
    thread.start()
    child = subprocess.Popen([sys.executable, str(CHILD)])
    ready()
    try:
        await sleep_on()
    finally:
        gone.set()
        thread.join()
        child.kill()
        child.wait()


async def open_badly() -> Close:
    opener = asyncio.current_task()

    async def close() -> None:
        assert opener is not None
        opener.cancel()
        raise KeyError("closed badly")

    return close


def leaks() -> Scenario:
    return Scenario("leaks", "leaks of every kind", Way(leak_everything, open_badly), Way(leak_nothing))
