"""A child process with its descendants, as one. Real processes, found by the odd duration of their sleep."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiesce.kernel.process import guardian, process_tree, procfs
from quiesce.kernel.process.process_tree import UNKNOWN_STATUS, Tree
from tests.kernel.processes import running, token_of_processes, wait_until

pytestmark = pytest.mark.skipif(not procfs.available(), reason="needs /proc")


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token
        trees = process_tree.live()
        for tree in trees:
            stop(tree)
        assert not trees


def stop(tree: Tree, sig: int = signal.SIGKILL) -> int:
    """Signal until nobody is left, and reap: what the layer above does, without its waiting."""

    def is_over() -> bool:
        if tree.members():
            tree.signal(sig)
        return not tree.members() and tree.exit_status() is not None

    assert wait_until(is_over)
    assert tree.reap()
    status = tree.exit_status()
    assert status is not None
    return status


def shell(script: str, token: str) -> Tree:
    """Run a script in which `$nap` sleeps long enough."""
    return Tree(["sh", "-c", script.replace("$nap", f"sleep 300.{token}")])


def count(tree: Tree, comm: str = "sleep") -> int:
    return [proc.comm for proc in tree.members()].count(comm)


def seen(tree: Tree) -> list[procfs.Proc]:
    members = tree.members()
    assert members
    return members


def test_children_and_grandchildren_are_one_tree(token: str) -> None:
    tree = shell("sh -c '$nap & $nap' & $nap & wait", token)
    assert wait_until(lambda: count(tree) == 3)
    assert {proc.session for proc in tree.members()} == {tree.pid}
    assert tree in process_tree.live()
    assert stop(tree, signal.SIGTERM) == -signal.SIGTERM
    assert tree not in process_tree.live()


def test_a_job_with_a_process_group_of_its_own_is_reached(token: str) -> None:
    code = "import os, time; os.fork() or os.setpgid(0, 0); time.sleep(300)"
    tree = Tree([sys.executable, "-I", "-S", "-c", code, token])
    assert wait_until(lambda: len({proc.pgrp for proc in tree.members()}) == 2)
    assert {proc.session for proc in tree.members()} == {tree.pid}
    stop(tree)


def test_a_grandchild_with_its_own_session_is_found_by_mark_after_its_parent_has_gone(token: str) -> None:
    tree = shell("setsid $nap & exit 0", token)
    assert wait_until(lambda: tree.exit_status() == 0 and count(tree) == 1)
    (escaped,) = tree.members()
    assert escaped.session == escaped.pid
    assert stop(tree) == 0


def test_a_daemon_forked_twice_is_found_by_mark(token: str) -> None:
    code = """
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
os.closerange(0, 10)
time.sleep(300)
"""
    tree = Tree([sys.executable, "-I", "-S", "-c", code, token])
    assert wait_until(lambda: tree.exit_status() is not None)
    # At no moment does it look as if nobody was there.
    assert wait_until(lambda: all(proc.session not in (tree.pid, proc.pid) for proc in seen(tree)))
    assert len(seen(tree)) == 1
    assert stop(tree) == 0


def test_a_child_that_hides_from_session_and_mark_is_reached_while_its_parent_lives(token: str) -> None:
    # As sandboxes do: a new session, a clean environment. The first signal ends the parent; the child is still known after it.
    tree = shell("env -i setsid sh -c \"trap '' TERM; $nap\" & wait", token)
    assert wait_until(lambda: count(tree) == 1)
    tree.signal(signal.SIGTERM)
    assert wait_until(lambda: tree.exit_status() == -signal.SIGTERM)
    assert count(tree) == 1
    stop(tree)


def test_not_promised_an_orphan_that_hides_before_anybody_looks_gets_away(token: str) -> None:
    tree = Tree(["sh", "-c", f"env -i setsid sleep 300.{token} & echo $!"], stdout=subprocess.PIPE)
    assert tree.stdout is not None
    with tree.stdout:
        escaped = int(tree.stdout.readline())
    assert wait_until(
        lambda: tree.exit_status() == 0 and getattr(procfs.look_up(escaped), "comm", "") == "sleep"
    )
    assert tree.members() == []
    assert tree.reap()
    os.kill(escaped, signal.SIGKILL)
    assert wait_until(lambda: not running(token))


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -signal.SIGKILL), ("kill -15 $$", -signal.SIGTERM)],
)
def test_the_exit_status_is_that_of_subprocess(script: str, status: int) -> None:
    tree = Tree(["sh", "-c", script])
    assert wait_until(lambda: tree.exit_status() is not None)
    assert tree.exit_status() == status
    assert tree.reap()
    assert tree.reap()
    assert tree.exit_status() == status
    assert tree._popen.returncode == status


def test_a_leader_that_has_exited_keeps_its_number_until_it_is_reaped(token: str) -> None:
    tree = shell("$nap & exit 5", token)
    assert wait_until(lambda: tree.exit_status() == 5)
    leader = procfs.look_up(tree.pid)
    assert leader is not None
    assert leader.zombie
    assert len(tree.members()) == 1
    tree.signal(signal.SIGKILL)
    assert wait_until(lambda: not tree.members())
    assert procfs.look_up(tree.pid) == leader
    assert tree.reap()
    assert procfs.look_up(tree.pid) != leader
    assert not tree.members()
    tree.signal(signal.SIGKILL)


def test_reaping_a_running_leader_does_nothing(token: str) -> None:
    tree = shell("exec $nap", token)
    assert tree.exit_status() is None
    assert not tree.reap()
    assert tree in process_tree.live()
    assert tree.pid in guardian._current.groups
    stop(tree)
    assert tree.pid not in guardian._current.groups


def test_the_exit_descriptor_becomes_readable_when_the_leader_exits_though_others_hold_its_pipes(
    token: str,
) -> None:
    tree = Tree(["sh", "-c", f"sleep 300.{token} & read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    exit_fd = tree.exit_fd()
    assert exit_fd is not None
    assert tree.stdin is not None
    assert tree.stdout is not None
    assert select.select([exit_fd], [], [], 0)[0] == []
    tree.stdin.close()
    assert select.select([exit_fd], [], [], 5)[0] == [exit_fd]
    assert tree.exit_status() == 1
    assert select.select([tree.stdout], [], [], 0)[0] == []
    stop(tree)
    assert tree.exit_fd() is None
    tree.stdout.close()


def test_a_stopped_tree_wakes_up_to_be_terminated(token: str) -> None:
    tree = shell("setsid $nap & $nap & wait", token)
    assert wait_until(lambda: count(tree) == 2)
    tree.signal(signal.SIGSTOP)
    assert wait_until(lambda: {proc.state for proc in tree.members()} == {"T"})
    assert tree.exit_status() is None
    tree.signal(signal.SIGTERM)
    assert wait_until(lambda: not tree.members())
    assert stop(tree) == -signal.SIGTERM


def test_processes_that_fork_while_they_are_killed_do_not_get_away(token: str) -> None:
    script = f"while :; do setsid sh -c 'sleep 300.{token}' & sh -c 'sleep 300.{token}' & sleep 0.01; done"
    tree = Tree(["sh", "-c", script])
    assert wait_until(lambda: count(tree) > 10)
    assert stop(tree) == -signal.SIGKILL


def test_two_threads_may_reap_at_once(token: str) -> None:
    tree = shell("exec $nap", token)
    tree.signal(signal.SIGKILL)
    assert wait_until(lambda: tree.exit_status() is not None)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(tree.reap())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 4


def test_a_leader_reaped_by_somebody_else_has_an_unknown_status(token: str) -> None:
    tree = shell("setsid $nap & $nap & exit 0", token)
    assert wait_until(lambda: count(tree) == 2)
    os.waitpid(tree.pid, 0)
    assert tree.exit_status() == UNKNOWN_STATUS
    assert stop(tree) == UNKNOWN_STATUS


def test_the_unknown_status_means_failure_to_a_shell() -> None:
    assert UNKNOWN_STATUS & 0xFF != 0
    assert UNKNOWN_STATUS not in range(-64, 256)


def test_a_program_that_ignores_sigchld(token: str) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        tree = shell("$nap & read line; exit 0", token)
        quick = [Tree(["true"]) for _ in range(3)]
        assert wait_until(lambda: tree.exit_status() is not None)
        assert tree.exit_status() == UNKNOWN_STATUS
        assert wait_until(lambda: count(tree) == 1)
        stop(tree)
        for each in quick:
            assert stop(each) == UNKNOWN_STATUS
        with pytest.raises(FileNotFoundError):
            Tree(["no-such-program-anywhere"])
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_child_gets_its_environment_directory_and_streams(tmp_path: Path) -> None:
    tree = Tree(
        ["sh", "-c", "pwd; echo $GIVEN; echo $QUIESCE_TREE; cat; echo oops >&2"],
        cwd=tmp_path,
        env={"GIVEN": "yes", "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert tree.stdin is not None
    assert tree.stdout is not None
    assert tree.stderr is not None
    with tree.stdin, tree.stdout, tree.stderr:
        tree.stdin.write(b"hello")
        tree.stdin.close()
        where, given, mark, said = tree.stdout.read().decode().split("\n")
        assert tree.stderr.read() == b"oops\n"
    assert (Path(where), given, said) == (tmp_path.resolve(), "yes", "hello")
    assert mark.split(";")[-1] == tree.mark
    stop(tree)


def test_outer_marks_are_kept_even_with_an_environment_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(procfs.VARIABLE, "outer.1;middle.2")
    assert guardian.marked({"A": "b"}, "inner.3") == {"A": "b", procfs.VARIABLE: "outer.1;middle.2;inner.3"}
    monkeypatch.delenv(procfs.VARIABLE)
    assert guardian.marked({}, "inner.3") == {procfs.VARIABLE: "inner.3"}


def test_the_child_holds_none_of_our_descriptors(token: str) -> None:
    inheritable = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        tree = shell("exec $nap", token)
        assert wait_until(lambda: count(tree) == 1)
        # Its loader opens libraries for a moment.
        assert wait_until(lambda: set(os.listdir(f"/proc/{tree.pid}/fd")) == {"0", "1", "2"})
        fd, exit_fd = guardian.fd(), tree.exit_fd()
        assert fd is not None
        assert exit_fd is not None
        assert not os.get_inheritable(fd)
        assert not os.get_inheritable(exit_fd)
    finally:
        os.close(inheritable)
    stop(tree)


@pytest.mark.parametrize(
    ("argv", "kind", "words"),
    [
        ("ls -l", TypeError, "shlex.split"),
        (b"ls", TypeError, "list of strings"),
        (Path("/bin/ls"), TypeError, "list of strings"),
        ([], ValueError, "it is empty"),
        ([""], ValueError, "its name is empty"),
        (["ls", 3], TypeError, "argument 1"),
        (["ls", b"-l"], TypeError, "argument 1"),
        (["ls", None], TypeError, "argument 1"),
        (["ls", "a\0b"], ValueError, "null character"),
    ],
)
def test_what_is_no_command_is_refused(argv: list[str], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Tree(argv)


@pytest.mark.parametrize(
    ("command", "cwd", "kind", "words"),
    [
        ("no-such-program", None, FileNotFoundError, r"no such program in PATH \(.*; install it"),
        ("./missing", None, FileNotFoundError, "no file './missing'"),
        ("./not-executable", ".", PermissionError, "chmod"),
        ("./folder", ".", PermissionError, "is a directory"),
        ("./no-interpreter", ".", FileNotFoundError, "the interpreter that its first line names does not"),
        ("./no-first-line", ".", OSError, "begins with #!"),
        ("ls", "missing", FileNotFoundError, "working directory 'missing' does not exist"),
        ("ls", "not-executable", NotADirectoryError, "working directory 'not-executable' is not a directory"),
    ],
)
def test_what_cannot_be_started_says_why_and_leaves_nothing(
    command: str,
    cwd: str | None,
    kind: type[OSError],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("not-executable").write_text("#!/bin/sh\n")
    for name, text in (("no-interpreter", "#!/nowhere/sh\n"), ("no-first-line", "echo\n")):
        Path(name).write_text(text)
        Path(name).chmod(0o755)
    guardian.ensure()
    groups, descriptors = dict(guardian._current.groups), os.listdir("/proc/self/fd")
    with pytest.raises(kind, match=words) as caught:
        Tree([command], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert f"cannot start {command!r}: " in str(caught.value)
    assert (guardian._current.groups, os.listdir("/proc/self/fd"), process_tree.live()) == (
        groups,
        descriptors,
        [],
    )


def test_an_error_of_the_system_is_passed_on_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="cannot start 'echo': Argument list too long") as caught:
        Tree(["echo", "x" * 5_000_000])
    assert caught.value.errno == errno.E2BIG


@pytest.mark.parametrize("moment", ["Popen", "register"])
def test_an_interrupt_during_the_start_leaves_no_process(
    moment: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen.__init__

    def interrupted_start(self: subprocess.Popen[bytes], *args: object, **kwargs: object) -> None:
        real(self, *args, **kwargs)  # type: ignore[call-overload]
        raise KeyboardInterrupt

    def interrupted_register(group: int) -> None:
        raise KeyboardInterrupt

    guardian.ensure()
    if moment == "Popen":
        monkeypatch.setattr(subprocess.Popen, "__init__", interrupted_start)
    else:
        monkeypatch.setattr(guardian, "register", interrupted_register)
    with pytest.raises(KeyboardInterrupt):
        Tree(["sleep", f"300.{token}"], stdin=subprocess.PIPE)
    assert not running(token)


@pytest.mark.parametrize("blindness", ["no /proc", "no descriptors"])
def test_a_tree_that_cannot_be_looked_into_is_its_group_until_that_was_killed(
    blindness: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    tree = shell("$nap & $nap", token)
    assert wait_until(lambda: count(tree) == 2)
    with monkeypatch.context() as patch:
        if blindness == "no /proc":
            patch.setattr(procfs, "unavailable", lambda: "there is no /proc here")
        patch.setattr(procfs, "_read", fail)
        tree._known_members = frozenset()
        (group,) = tree.members()
        assert group.describe().startswith(f"process group {tree.pid} (")
        tree.signal(signal.SIGTERM)
        assert wait_until(lambda: tree.exit_status() == -signal.SIGTERM)
        tree.signal(signal.SIGKILL)
        assert tree.members() == []
        assert (
            tree.unseen
            == {
                "no /proc": "there is no /proc here",
                "no descriptors": "/proc could not be read: Too many open files",
            }[blindness]
        )
        assert tree.reap()
    assert wait_until(lambda: not running(token))


def test_orphans_that_become_our_children_are_reaped_when_they_are_dead(token: str) -> None:
    # As the first process of a container we inherit them; as a subreaper too.
    code = """
import ctypes, os, signal, subprocess, sys, time
from quiesce.kernel.process.process_tree import Tree
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
nap = f"sleep 300.{sys.argv[1]}"
tree = Tree(["sh", "-c", f"setsid {nap} & {nap} & exit 0"])
while [proc.comm for proc in tree.members()].count("sleep") < 2: time.sleep(0.005)
assert {proc.ppid for proc in tree.members()} == {os.getpid()}
tree.signal(signal.SIGKILL)
while tree.members(): time.sleep(0.005)
assert tree.reap()
from quiesce.kernel.process import guardian as _guardian, procfs as _procfs
print(*[proc for proc in _procfs.scan() if proc.ppid == os.getpid() and proc.pid != _guardian.pid()])
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", code, token], check=False, env=env, capture_output=True, text=True, timeout=10
    )
    assert (result.stdout, result.stderr) == ("\n", "")
