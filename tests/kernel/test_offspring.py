"""Who is below a process, by the kernel's own lists."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiesce.kernel.process import descendants, procfs
from tests.kernel.processes import token_of_processes, wait_until

pytestmark = pytest.mark.skipif(not procfs.available(), reason="needs /proc")


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


def test_a_process_with_more_children_than_fit_on_a_page_has_them_all(token: str) -> None:
    many = 1100
    shell = subprocess.Popen(
        ["sh", "-c", f"i=0; while [ $i -lt {many} ]; do sleep 300.{token} & i=$((i+1)); done; wait"],
        start_new_session=True,
    )
    try:
        lists = Path("/proc", str(shell.pid), "task", str(shell.pid), "children")
        assert wait_until(lambda: len(lists.read_bytes().split()) == many)
        assert len(lists.read_bytes()) > os.sysconf("SC_PAGESIZE")
        leader = procfs.look_up(shell.pid)
        assert leader is not None
        assert len(descendants.below([leader])) == many + 1
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_out_of_descriptors_a_child_is_not_taken_for_gone(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = subprocess.Popen(["sh", "-c", f"sleep 300.{token} & wait"], start_new_session=True)
    try:
        leader = procfs.look_up(shell.pid)
        assert leader is not None
        assert wait_until(lambda: len(descendants.below([leader])) == 2)
        (child,) = set(descendants.below([leader])) - {leader}
        read = procfs._read

        def run_out(path: str) -> bytes:
            if path == f"/proc/{child.pid}/stat":
                raise OSError(errno.EMFILE, "Too many open files")
            return read(path)

        with monkeypatch.context() as patch:
            patch.setattr(procfs, "_read", run_out)
            with pytest.raises(OSError, match="Too many open files"):
                descendants.below([leader])
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
