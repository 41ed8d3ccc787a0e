"""Programs that run for a chat: a shell's command line, a piece of Python.

Each runs as a `Process`: in a session of its own, without standard input (or with what is given to it), with both its outputs in one. When its first
process has ended, so has all that it has started; when the caller is cancelled, too, after a second in which it may clean up. What it says is handed on as
it comes, and kept up to a limit: the beginning and the end.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quiesce import Grace, Process, Scope
from quiesce.agents.inner import TruncatedOutput

from . import search

_RUN = "import os, sys; sys.path.append(os.getcwd()); exec(compile(sys.argv.pop(), '<code>', 'exec'))"
GRACE = Grace(cancel=0.0, terminate=1.0, kill=0.5)  # its own: what encloses it would leave it less


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program has ended."""

    output: str
    returncode: int
    elapsed: float

    def told(self) -> str:
        """For the model to read."""
        how = (
            f"ended by signal {-self.returncode}" if self.returncode < 0 else f"exit status {self.returncode}"
        )
        return f"{how}, after {self.elapsed:.1f} s\n{self.output}" if self.output else f"{how}, no output"


def shell_command(command: str) -> list[str]:
    """A command line of the model: for bash, if that is there."""
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def users_command(command: str) -> list[str]:
    """A command line of the user: for the user's own shell."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    return [shell if shutil.which(shell) else "/bin/sh", "-c", command]


def python_command(code: str) -> list[str]:
    """A piece of Python, in an interpreter of its own.

    The folder comes last among the places where modules are looked for: a `json.py` in a repository does not run in place of the real one.
    """
    return [sys.executable, "-u", "-P", "-c", _RUN, code]


def search_command() -> list[str]:
    """A search in files; what for comes by its standard input."""
    return [sys.executable, "-I", "-S", "-W", "ignore", search.__file__]


async def run_program(
    argv: Sequence[str],
    folder: Path,
    name: str,
    heard: Callable[[str], object],
    started: Callable[[Process], object] | None = None,
    given: bytes = b"",
) -> Finished:
    """Run it to its end; `heard` is called with every piece of its output. What is `given` is its standard input."""
    began = time.monotonic()
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    kept = TruncatedOutput()
    stdin: Literal["pipe", "null"] = "pipe" if given else "null"
    async with Process(argv, cwd=folder, stdin=stdin, stderr="stdout", name=name, grace=GRACE) as process:
        if started is not None:
            started(process)
        if given:
            await process.write(given)
            process.close_stdin()
        async with Scope(f"output of {name}") as scope:
            scope.spawn(_end_with_its_first_process, process, name=f"end of {name}")
            while True:
                data = await process.read()
                if text := decode(data, final=not data):
                    kept.add(text)
                    heard(text)
                if not data:
                    break
        returncode = await process.wait()
    return Finished(str(kept), returncode, time.monotonic() - began)


async def _end_with_its_first_process(process: Process) -> None:
    """Whatever it has left in the background may hold its output open, and would hold us."""
    await process.wait()
    process.cancel("its first process has ended")
