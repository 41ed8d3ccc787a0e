"""Print the CPythons from 3.11 up on this machine, one a minor version: full version, minor version, path.

They are looked for as `python3.N` on the PATH, then under pyenv. What does not start, or cannot make a
virtual environment, does not count: a pyenv shim for a version that is not selected is such a file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST, NEWEST = 11, 19

PROBE = """
import sys, platform, ensurepip, venv
assert platform.python_implementation() == "CPython"
print(platform.python_version(), sys.executable)
"""


@dataclass(frozen=True)
class Interpreter:
    version: str
    path: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


def find_interpreters() -> list[Interpreter]:
    """The first that works of each minor version, oldest version first."""
    found = []
    for number in range(OLDEST, NEWEST + 1):
        working = (interpreter for path in candidates(f"python3.{number}") if (interpreter := probe(path)))
        if interpreter := next(working, None):
            found.append(interpreter)
    return found


def candidates(name: str) -> Iterator[str]:
    for directory in os.get_exec_path():
        if path := shutil.which(name, path=directory):
            yield path
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/*/bin/{name}"), reverse=True))


def probe(path: str) -> Interpreter | None:
    try:
        answer = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    version, executable = answer.stdout.split(maxsplit=1)
    return Interpreter(version, executable.strip())


if __name__ == "__main__":
    for interpreter in find_interpreters():
        print(interpreter.version, interpreter.minor, interpreter.path)
