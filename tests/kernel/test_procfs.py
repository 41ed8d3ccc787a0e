"""Who belongs to a tree, and signals that hit nobody else. Real processes, found by the odd duration of their sleep."""

from __future__ import annotations

import errno
import itertools
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from quiesce.kernel.process import procfs
from tests.kernel.processes import token_of_processes, wait_until

pytestmark = pytest.mark.skipif(not procfs.available(), reason="needs /proc")


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


@contextmanager
def session(*argv: str, mark: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A command in its own session, which is killed at the end."""
    env = dict(os.environ)
    if mark is not None:
        env[procfs.VARIABLE] = mark
    process = subprocess.Popen(argv, start_new_session=True, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with process.stdout:
            yield process
    finally:
        procfs.sweep({process.pid: 0}, "none", signal.SIGKILL)
        process.kill()
        process.wait()


def python(code: str, token: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, token]


def pids(procs: list[procfs.Proc]) -> set[int]:
    return {proc.pid for proc in procs}


def test_members_of_the_session_are_found_with_what_names_them(token: str) -> None:
    with session("sh", "-c", f"sleep 300.{token} & wait") as leader:
        start = procfs.start_time(leader.pid)
        assert wait_until(lambda: "sleep" in [proc.comm for proc in procfs.find({leader.pid: start}, "none")])
        shell, sleep = sorted(procfs.find({leader.pid: start}, "none"), key=lambda proc: proc.comm)
        assert (shell.pid, shell.ppid, shell.pgrp, shell.session) == (
            leader.pid,
            os.getpid(),
            leader.pid,
            leader.pid,
        )
        assert (sleep.ppid, sleep.session, sleep.comm) == (leader.pid, leader.pid, "sleep")
        assert wait_until(lambda: procfs.still_alive(sleep) and f"sleep 300.{token}" in sleep.describe())
        assert procfs.send_signal(sleep, signal.SIGKILL)
        assert wait_until(lambda: not procfs.still_alive(sleep))
        assert sleep.describe() == f"pid {sleep.pid}: sleep"


@pytest.mark.parametrize("name", [") Z 1 1 1 (", "a b\nc", "((", "))", "\xff"])
def test_a_name_may_hold_anything(name: str, token: str) -> None:
    code = f"""
import time
with open("/proc/self/comm", "wb") as comm: comm.write({name.encode("latin-1")!r})
print(flush=True)
time.sleep(300)
"""
    with session(*python(code, token)) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        (found,) = procfs.find({leader.pid: 0}, "none")
        assert (found.pid, found.session, found.ppid) == (leader.pid, leader.pid, os.getpid())
        assert found.starttime == procfs.start_time(leader.pid) > 0


def test_our_own_process_is_never_found() -> None:
    assert os.getpid() not in pids(procfs.find({os.getsid(0): 0, os.getpgrp(): 0}, "none"))


def test_zombies_are_not_found() -> None:
    with session("true") as leader:
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        zombie = procfs.look_up(leader.pid)
        assert zombie is not None
        assert zombie.zombie
        assert not procfs.still_alive(zombie)
        assert not procfs.find({leader.pid: zombie.starttime}, "none")


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the number of the exit call is not known here"
)
def test_a_process_whose_main_thread_has_ended_is_alive(token: str) -> None:
    number = {"x86_64": 60, "aarch64": 93}[platform.machine()]
    code = f"""
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
ctypes.CDLL(None).syscall({number}, 0)
"""
    with session(*python(code, token)) as leader:
        assert wait_until(lambda: getattr(procfs.look_up(leader.pid), "state", "") == "Z")
        assert pids(procfs.find({leader.pid: 0}, "none")) == {leader.pid}


def test_a_mark_matches_whole_and_a_program_matches_all_its_marks(token: str) -> None:
    with session("sleep", f"300.{token}", mark=f"outer.1;{token}.12") as leader:

        def finds(mark: str) -> bool:
            return leader.pid in pids(procfs.find({}, mark))

        assert finds(f"{token}.12")
        assert finds(token)
        assert finds("outer.1")
        assert finds("outer")
        assert not finds(f"{token}.1")
        assert not finds(f"{token}.123")
        assert not finds(token[:-1])


def test_processes_of_older_sessions_are_not_even_looked_at(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session("sh", "-c", f"sleep 300.{token} & wait", mark=f"{token}.1") as leader:
        start = procfs.start_time(leader.pid)
        assert wait_until(lambda: len(procfs.find({}, token, since=start)) == 2)
        (child,) = pids(procfs.find({}, token, since=start)) - {leader.pid}
        read: list[str] = []
        real = procfs._read
        monkeypatch.setattr(procfs, "_read", lambda path: read.append(path) or real(path))  # type: ignore[func-returns-value]
        assert not procfs.find({}, token, since=procfs.start_time(child) + 1)
        assert f"/proc/{leader.pid}/stat" in read
        assert f"/proc/{leader.pid}/environ" not in read
        assert f"/proc/{child}/environ" not in read
        assert read.count(f"/proc/{child}/stat") == 1  # the test's own look for its start time


def test_a_child_without_session_and_mark_is_found_through_its_parent_and_then_remembered(token: str) -> None:
    with session("sh", "-c", f"env -i setsid sleep 300.{token} & wait", mark=f"{token}.1") as leader:
        groups = {leader.pid: procfs.start_time(leader.pid)}

        def escaped() -> list[procfs.Proc]:
            return [proc for proc in procfs.find(groups, f"{token}.1") if proc.comm == "sleep"]

        assert wait_until(escaped)
        (child,) = known = escaped()
        assert child.session == child.pid
        leader.kill()
        leader.wait()
        # Without knowing it from before, nothing leads to it any more.
        assert not procfs.find(groups, f"{token}.1")
        assert procfs.find(groups, f"{token}.1", known=known) == [child]
        assert procfs.sweep(groups, f"{token}.1", signal.SIGKILL, known=known) == [child]
        assert wait_until(lambda: not procfs.still_alive(child))


HOPPING = """
import os, time
while True:
    if os.fork(): os._exit(0)
    os.setsid()
    time.sleep(0.005)
"""


def test_a_process_that_forks_and_leaves_does_not_slip_through_a_scan(token: str) -> None:
    with session(*python(HOPPING, token), mark=f"{token}.1") as leader:
        leader.wait()
        try:
            looks = [bool(procfs.find({}, token)) for _ in range(50)]
        finally:
            assert wait_until(lambda: not procfs.sweep({}, token, signal.SIGKILL))
    assert all(looks)


def listings(monkeypatch: pytest.MonkeyPatch, *later: Callable[[list[str]], list[str]]) -> list[int]:
    """Have each listing of /proc changed by the next of these, from then on by the last; returns how many there were, as it grows."""
    real, made = os.listdir, list[int]()

    def listdir(path: str) -> list[str]:
        if path != "/proc":
            return real(path)
        made.append(len(made))
        return later[min(len(made), len(later)) - 1](real(path))

    monkeypatch.setattr(os, "listdir", listdir)
    return made


numbers_of_nobody = itertools.count(10**7)


def one_that_is_gone(names: list[str]) -> list[str]:
    """As if another process had ended since it was listed."""
    return [*names, str(next(numbers_of_nobody))]


def test_a_scan_goes_on_while_processes_are_gone_before_they_are_read(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session("sleep", f"300.{token}", mark=f"{token}.1") as leader:

        def not_yet(names: list[str]) -> list[str]:
            return one_that_is_gone([name for name in names if name != str(leader.pid)])

        with monkeypatch.context() as patch:
            listings(patch, *[not_yet] * 40, list)
            assert pids(procfs.find({}, token)) == {leader.pid}


def test_a_child_that_got_a_lower_number_than_its_parent_does_not_slip_through(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session("sleep", f"300.{token}", mark=f"{token}.1") as leader:

        def without(names: list[str]) -> list[str]:
            return [name for name in names if name != str(leader.pid)]

        def parent(names: list[str]) -> list[str]:
            return one_that_is_gone(without(names))

        # Its parent is listed, and gone before it is read; the next listing had passed its number before it was there.
        with monkeypatch.context() as patch:
            listings(patch, parent, without, list)
            assert pids(procfs.find({}, token)) == {leader.pid}


def test_a_process_that_is_on_its_way_out_counts_as_gone(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No zombie yet, it has no environment any more. Its child need not have been listed, nor that one's, if it forks and leaves, too."""
    with (
        session("sleep", f"300.{token}", mark=f"{token}.1") as leader,
        session("sleep", f"300.{token}") as parent,
        session("sleep", f"300.{token}") as child,
    ):
        read = procfs._read

        def read_on_its_way_out(path: str) -> bytes:
            if path in (f"/proc/{parent.pid}/environ", f"/proc/{child.pid}/environ"):
                return b""
            stat = read(path)
            if path in (f"/proc/{parent.pid}/stat", f"/proc/{child.pid}/stat"):
                name, _, rest = stat.rpartition(b") ")
                fields = rest.split()
                fields[6] = b"%d" % (int(fields[6]) | procfs._PF_EXITING)
                stat = name + b") " + b" ".join(fields)
            return stat

        def only(*processes: subprocess.Popen[bytes]) -> Callable[[list[str]], list[str]]:
            return lambda names: [str(process.pid) for process in processes]

        monkeypatch.setattr(procfs, "_read", read_on_its_way_out)
        with monkeypatch.context() as patch:
            listings(patch, only(parent), only(parent, child), only(parent, child, leader))
            assert pids(procfs.find({}, token)) == {leader.pid}


def test_a_scan_comes_to_its_end_among_any_number_of_forks(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session("sleep", f"300.{token}", mark=f"{token}.1") as leader:
        with monkeypatch.context() as patch:
            made = listings(patch, one_that_is_gone)
            assert pids(procfs.find({}, token)) == {leader.pid}
        assert len(made) == procfs._LISTINGS


def test_a_process_that_shows_no_environment_during_exec_is_looked_at_again(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session("sleep", f"300.{token}", mark=f"{token}.1") as leader:
        read, empty_answers = procfs._read, [b"", b""]

        def read_during_exec(path: str) -> bytes:
            if path == f"/proc/{leader.pid}/environ" and empty_answers:
                return empty_answers.pop()
            return read(path)

        monkeypatch.setattr(procfs, "_read", read_during_exec)
        assert pids(procfs.find({}, token)) == {leader.pid}


def test_guards_belong_to_no_tree(token: str) -> None:
    guard = f"env {procfs.VARIABLE}={procfs.GUARD_TAG} setsid sleep 300.{token}"
    with session("sh", "-c", f"{guard} & echo $!; wait", mark=f"{token}.1") as leader:
        assert leader.stdout is not None
        pid = int(leader.stdout.readline())
        assert wait_until(lambda: getattr(procfs.look_up(pid), "comm", "") == "sleep")
        found = procfs.look_up(pid)
        assert found is not None
        assert pids(procfs.find({leader.pid: 0}, f"{token}.1")) == {leader.pid}
        assert procfs.send_signal(found, signal.SIGKILL)
        assert wait_until(lambda: not procfs.still_alive(found))


def test_a_reused_pid_is_neither_found_nor_signalled(token: str) -> None:
    with session("sleep", f"300.{token}") as leader:
        now = procfs.look_up(leader.pid)
        earlier = procfs.look_up(leader.pid)
        assert now is not None
        assert earlier is not None
        earlier.starttime -= 1
        assert not procfs.still_alive(earlier)
        assert not procfs.find({leader.pid: earlier.starttime}, "none", known=[earlier])
        assert not procfs.send_signal(earlier, signal.SIGKILL)
        assert not procfs.sweep({leader.pid: earlier.starttime}, "none", signal.SIGKILL, known=[earlier])
        assert procfs.still_alive(now)


@pytest.mark.parametrize("refusal", [AttributeError(), OSError(errno.ENOSYS, ""), OSError(errno.EMFILE, "")])
def test_signals_arrive_without_pidfds(
    refusal: Exception, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise refusal

    with session("sleep", f"300.{token}") as leader:
        proc = procfs.look_up(leader.pid)
        assert proc is not None
        with monkeypatch.context() as patch:  # `wait` uses it too, from 3.15 on
            patch.setattr(os, "pidfd_open", refuse)
            assert procfs.send_signal(proc, signal.SIGKILL)
        assert leader.wait(5) == -signal.SIGKILL


def test_processes_that_vanish_or_hide_during_a_scan_are_passed_over(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        session("sleep", f"300.{token}", mark=f"{token}.1") as leader,
        session("sleep", f"300.{token}") as gone,
    ):
        listed, read = os.listdir("/proc"), procfs._read

        def hide(path: str) -> bytes:
            if path == f"/proc/{gone.pid}/stat":
                raise ProcessLookupError(errno.ESRCH, "gone while it was read")
            if path.endswith("/environ") and str(leader.pid) not in path:
                raise PermissionError(errno.EACCES, "somebody else's")
            return read(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", lambda path: [*listed, "4194304"])
            patch.setattr(procfs, "_read", hide)
            found = procfs.find({}, f"{token}.1")
        assert pids(found) == {leader.pid}


@pytest.mark.parametrize("blindness", ["no /proc", "no descriptors"])
def test_who_cannot_look_asks_the_group_and_says_so(
    blindness: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with session("sleep", f"300.{token}") as leader:
        if blindness == "no /proc":
            monkeypatch.setattr(procfs, "unavailable", lambda: "there is no /proc here")
        else:
            monkeypatch.setattr(procfs, "_read", fail)
        (group,) = procfs.find({leader.pid: 1}, "none")
        assert group.starttime == 0
        assert group.pgrp == leader.pid
        assert group.describe().startswith(f"process group {leader.pid} (")
        assert procfs.still_alive(group)
        assert procfs.sweep({leader.pid: 1}, "none", signal.SIGTERM) == [group]
        assert leader.wait(5) == -signal.SIGTERM
        assert not procfs.find({leader.pid: 1}, "none")


def test_a_scan_leaves_no_descriptor_open(token: str) -> None:
    with session("sleep", f"300.{token}"):
        before = os.listdir("/proc/self/fd")
        procfs.find({1: 0}, "none")
        assert os.listdir("/proc/self/fd") == before


def test_a_description_is_one_line_that_no_terminal_obeys(token: str) -> None:
    code = "import time; print(flush=True)\ntime.sleep(300)"
    with session(*python(code, token), "\x1b]2;owned\x07 \x9b2J \u202e caf\xe9") as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        (found,) = procfs.find({leader.pid: 0}, "none")
        assert found.describe().isprintable()
        assert "print(flush=True)⏎time.sleep(300)" in found.describe()
        assert r"␛]2;owned␇ \x9b2J \u202e café" in found.describe()
