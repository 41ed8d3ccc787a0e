"""Programs that are pid 1 of a PID namespace of their own, as in a container. Needs root."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.kernel.processes import wait_until

PID_1 = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL")


@cache
def may_make_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None
        and shutil.which("nsenter") is not None
        and subprocess.run([*PID_1, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    )


in_namespaces = pytest.mark.skipif(not may_make_namespaces(), reason="needs root, to make namespaces")


def as_pid_1(command: Sequence[str]) -> list[str]:
    """This command as pid 1. It ends as the command does, and the other processes there with it."""
    return [*PID_1, *command]


def pid_of_init(unshare: int) -> int:
    """What its pid 1 is outside of the namespace."""

    def children() -> list[int]:
        return [int(child) for child in Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()]

    assert wait_until(children)
    return children()[0]


def enter(init: int, command: Sequence[str]) -> None:
    """Run a command in the namespace, as `docker exec` does: it is not a child of what runs there."""
    subprocess.run(["nsenter", f"--target={init}", "--pid", "--mount", *command], check=True, timeout=10)


def zombies_of(pid: int) -> list[str]:
    """The zombies that this process has not reaped."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            stat = Path(f"/proc/{child}/stat").read_text()
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[0] == "Z":
            found.append(stat)
    return found
