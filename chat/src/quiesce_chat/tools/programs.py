"""Programs that run for a chat: a shell command, a piece of Python.

Each runs as a `Process`: in a session of its own, with an empty standard input unless the caller provides one, and
with standard error merged into standard output. When its first process exits, everything that it started is
stopped. The same happens when the caller is cancelled, after one second in which the program may clean up. Output
is passed on as it arrives; its beginning and its end are kept, up to a limit.
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

# `sys.argv.pop()` takes the code off the command line, so that the code sees an ordinary `sys.argv`.
_RUN = "import os, sys; sys.path.append(os.getcwd()); exec(compile(sys.argv.pop(), '<code>', 'exec'))"
# Its own, because the grace of the enclosing run would leave a program less time.
GRACE = Grace(cancel=0.0, terminate=1.0, kill=0.5)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended, and what it printed."""

    output: str
    returncode: int
    elapsed: float

    def for_model(self) -> str:
        """The result as the model reads it."""
        how = (
            f"ended by signal {-self.returncode}" if self.returncode < 0 else f"exit status {self.returncode}"
        )
        return f"{how}, after {self.elapsed:.1f} s\n{self.output}" if self.output else f"{how}, no output"


def shell_command(command: str) -> list[str]:
    """The argv for a shell command of the model: bash if it is installed, else `/bin/sh`."""
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def users_command(command: str) -> list[str]:
    """The argv for a shell command of the user, in the user's own shell."""
    # SHELL may name a shell that is not installed, as in some containers.
    shell = os.environ.get("SHELL") or "/bin/sh"
    return [shell if shutil.which(shell) else "/bin/sh", "-c", command]


def python_command(code: str) -> list[str]:
    """The argv that runs a piece of Python in an interpreter of its own.

    The folder comes last on the module search path, so that a `json.py` in a repository is not imported in place of
    the real one.
    """
    return [sys.executable, "-u", "-P", "-c", _RUN, code]


def search_command() -> list[str]:
    """The argv for a search in files. The request is written to its standard input."""
    return [sys.executable, "-I", "-S", "-W", "ignore", search.__file__]


async def run_program(
    argv: Sequence[str],
    folder: Path,
    name: str,
    on_output: Callable[[str], object],
    on_start: Callable[[Process], object] | None = None,
    stdin: bytes = b"",
) -> Finished:
    """Run a program to its end.

    `on_output` is called with every piece of its output, and `on_start` with the process once it runs. `stdin` is its
    standard input.
    """
    began = time.monotonic()
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    kept = TruncatedOutput()
    mode: Literal["pipe", "null"] = "pipe" if stdin else "null"
    async with Process(argv, cwd=folder, stdin=mode, stderr="stdout", name=name, grace=GRACE) as process:
        if on_start is not None:
            on_start(process)
        if stdin:
            await process.write(stdin)
            process.close_stdin()
        async with Scope(f"output of {name}") as scope:
            scope.spawn(_stop_after_first_process, process, name=f"end of {name}")
            while True:
                data = await process.read()
                if text := decode(data, final=not data):
                    kept.add(text)
                    on_output(text)
                if not data:
                    break
        returncode = await process.wait()
    return Finished(str(kept), returncode, time.monotonic() - began)


async def _stop_after_first_process(process: Process) -> None:
    """Stop the background processes of a program when its first process has exited."""
    # They inherit its output, so without this the reader would wait for as long as any of them lives.
    await process.wait()
    process.cancel("its first process has ended")
