"""Functions that run in a process of their own: what tests of `isolation="process"` call there."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from quiesce.agents.agent.tool import function_tool

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Picky(Exception):
    """Cannot be made again from its `args`."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@function_tool(isolation="process")
def mirror(point: Point, *, by: int = 1) -> tuple[Point, int]:
    """Mirror a point."""
    return Point(point.y * by, point.x * by), os.getpid()


class Tools:
    @function_tool(isolation="process")
    @staticmethod
    def nested(n: int) -> int:
        return n + 2


@function_tool(isolation="process")
def fail(how: str) -> Any:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    if how == "raise":
        raise LookupError("no such thing")
    if how == "raise picky":
        raise Picky(1, 2)
    if how == "exit":
        sys.exit(3)
    if how == "exit at once":
        os._exit(0)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    return lambda: None


@function_tool(isolation="process")
def talk(lines: int) -> str:
    for number in range(lines):
        print(f"line {number}")
    os.write(1, b"raw \xff bytes\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    return sys.stdin.read()


@function_tool(isolation="process")
def spin(marker: str) -> NoReturn:
    """Never looks at anything."""
    count = 0
    try:
        print("spinning", flush=True)  # from here on it may be stopped
        while True:
            count += 1
    finally:
        Path(marker).write_text("cleaned up")
        print("cleaned up")


@function_tool(isolation="process")
def deaf() -> NoReturn:
    """Ignores SIGTERM, and so does its child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    print(f"{os.getpid()} {child.pid}", flush=True)
    while True:
        time.sleep(60)


@function_tool(isolation="process")
def leave_a_child() -> int:
    """Returns at once, and leaves somebody who holds its stdout."""
    return subprocess.Popen(["sleep", "120"]).pid
