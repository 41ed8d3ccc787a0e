"""What is left of a program's processes when it ends, however it ends. Each test runs a program of its own and looks from outside."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiesce.kernel.process import guardian, guardian_watch, procfs
from tests.kernel.processes import is_gone, running, token_of_processes, wait_until

pytestmark = pytest.mark.skipif(not procfs.available(), reason="needs /proc")

PRELUDE = """
import os, signal, subprocess, sys, threading, time
from quiesce.kernel.process import guardian as _guardian, procfs as _procfs
from quiesce.kernel.process.process_tree import Tree

token = sys.argv[1]

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # whole: others write there too

def hear():
    return sys.stdin.readline()

def sleeper():
    return Tree(["sleep", f"300.{token}"])

def family():
    "A shell, a child, and a grandchild with a session of its own."
    tree = Tree(["sh", "-c", f"sleep 300.{token} & setsid sleep 300.{token} & wait"])
    while [proc.comm for proc in tree.members()].count("sleep") < 2:
        time.sleep(0.005)
    return tree

"""


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


class Program:
    """A Python program that uses the library, and talks with the test over its standard streams."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def hear_pid(self) -> int:
        return int(self.hear())

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def complaints(self) -> str:
        """What it said on standard error, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def is_on_guard(pid: int) -> bool:
    """Whether this process has got so far as to name itself."""
    proc = procfs.look_up(pid)
    return proc is not None and proc.comm == "quiesce-guard"


def has_read_all(pid: int) -> bool:
    """Whether the guard waits for something to happen: there is nothing left for it to read."""
    proc = procfs.look_up(pid)
    return proc is not None and proc.comm == "quiesce-guard" and proc.state == "S"


@contextmanager
def program(token: str, body: str, *options: str) -> Iterator[Program]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    argv = [sys.executable, *options, "-c", PRELUDE + body, token]
    with subprocess.Popen(argv, env=env, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


@pytest.mark.parametrize(
    "death",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "os._exit(0)",
        "os.execv('/bin/true', ['true'])",
    ],
)
def test_when_the_program_dies_its_trees_and_then_the_guard_go(death: str, token: str) -> None:
    with program(token, f"family(); say(_guardian.pid()); hear(); {death}") as dying:
        guard = dying.hear_pid()
        assert wait_until(lambda: len(running(token)) == 4)
        dying.tell()
        dying.process.wait(15)
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


HOLDING = """
import asyncio
from contextlib import asynccontextmanager
from quiesce import Scope, own, stream

async def start(script, **options):
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("sh", "-c", script, stdin=pipe, stdout=pipe, **options)
    await process.stdout.readline()
    return process

DEAF = f"trap '' TERM HUP INT; sleep 300.{token} & echo up; while :; do wait; done"
CARELESS = f"(trap '' HUP; exec sleep 300.{token}) & echo up; read line"  # ends with its input, and leaves a child

@asynccontextmanager
async def client(script, **options):
    yield await start(script, **options)

async def words(script, **options):
    process = await start(script, **options)
    while True:
        yield process

"""


@pytest.mark.parametrize("way", ["own", "block", "stream"])
@pytest.mark.parametrize("what", ["DEAF", "DEAF, start_new_session=True", "CARELESS"])
def test_when_the_program_is_killed_what_others_have_started_in_something_held_goes(
    way: str, what: str, token: str
) -> None:
    body = f"""
async def main():
    global held
    if {way!r} == "stream":
        held = aiter(stream(words({what})))
        await anext(held)
    elif {way!r} == "own":
        held = await own(client({what})).open()
    else:
        async with own(client({what})):
            say(_guardian.pid())
            await asyncio.sleep(300)
    say(_guardian.pid())
    await asyncio.sleep(300)

asyncio.run(main())
"""
    with program(token, HOLDING + body) as dying:
        guard = dying.hear_pid()
        assert wait_until(lambda: len(running(token)) == 3)
        assert wait_until(lambda: has_read_all(guard))
        dying.kill()
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


def test_a_killed_program_takes_nothing_with_it_that_was_not_held_or_is_no_longer(token: str) -> None:
    body = """
async def main():
    global held, own_server
    script = f"sleep 300.{token} & echo up; while :; do wait; done"
    async with own(client(DEAF)):
        own_server = await start(script)  # the body's
    held = await own(client("echo up; read line")).open()
    say(_guardian.pid(), own_server.pid, held.value.pid)
    await asyncio.sleep(300)

asyncio.run(main())
"""
    with program(token, HOLDING + body) as dying:
        guard, innocent, served = map(int, dying.hear().split())
        assert wait_until(lambda: is_on_guard(guard))
        dying.kill()
        assert wait_until(lambda: is_gone(served))
        assert wait_until(lambda: is_gone(guard))
        assert not is_gone(innocent)
        for pid in running(token):
            if pid != dying.pid:
                os.kill(pid, signal.SIGKILL)


def test_what_is_held_when_the_program_ends_by_itself_goes_too(token: str) -> None:
    body = """
async def main():
    global held
    held = await own(client(DEAF)).open()
    say("up")
    os._exit(0) if hear().strip() else None
    raise SystemExit

loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(main())
except SystemExit:
    pass
"""
    with program(token, HOLDING + body) as ending:
        assert ending.hear() == "up"
        assert wait_until(lambda: len(running(token)) == 3)
        ending.tell()
        ending.process.wait(15)
        assert wait_until(lambda: not running(token))


def test_a_child_that_was_started_but_not_yet_registered_goes_too(token: str) -> None:
    body = """
def die(group):
    say(_guardian.pid())
    hear()
    os.kill(os.getpid(), signal.SIGKILL)
_guardian.register = die
Tree(["setsid", "sleep", f"300.{token}"])
"""
    with program(token, body) as dying:
        guard = dying.hear_pid()
        assert wait_until(lambda: len(running(token)) == 2)
        dying.tell()
        dying.process.wait(15)
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


def test_a_child_that_has_not_yet_executed_its_command_goes_when_it_has(token: str, tmp_path: Path) -> None:
    # Forked behind Python's back, as subprocess does: no hook closes its copy of the socket, the exec does.
    go_on = tmp_path / "go on"
    body = f"""
import ctypes
_guardian.ensure()
env = _guardian.marked(os.environ, _guardian.new_mark())
if ctypes.PyDLL(None).fork() == 0:
    os.setsid()
    while not os.path.exists({str(go_on)!r}):
        time.sleep(0.01)
    os.execvpe("sleep", ["sleep", f"300.{{token}}"], env)
say(_guardian.pid())
hear()
"""
    with program(token, body) as dying:
        guard = dying.hear_pid()
        assert wait_until(lambda: is_on_guard(guard))
        dying.kill()
        time.sleep(0.2)
        assert not is_gone(guard)
        go_on.touch()
        assert wait_until(lambda: is_gone(guard))
        assert not running(token)


def test_a_stray_copy_of_the_socket_does_not_delay_the_killing(token: str) -> None:
    body = """
import ctypes
family()
pid = ctypes.PyDLL(None).fork()
if pid == 0:
    time.sleep(300)
say(_guardian.pid())
say(pid)
hear()
"""
    with program(token, body) as dying:
        guard, stray = dying.hear_pid(), dying.hear_pid()
        assert wait_until(lambda: is_on_guard(guard))
        dying.kill()
        try:
            assert wait_until(lambda: running(token) == [stray])
        finally:
            os.kill(stray, signal.SIGKILL)
        assert wait_until(lambda: is_gone(guard))


def test_a_forked_child_neither_keeps_the_guard_waiting_nor_shares_it(token: str) -> None:
    body = """
import multiprocessing
family()
mine = _guardian.program_id()
def work():
    assert _guardian.pid() is None and _guardian.fd() is None and _guardian.program_id() != mine
    assert not _guardian.stop_all() and not _guardian.kill_all_now()
    sleeper()
    say(_guardian.pid())
    time.sleep(300)
context = multiprocessing.get_context("fork")
child = context.Process(target=work)
child.start()
say(_guardian.pid())
say(child.pid)
hear()
"""
    with program(token, body) as dying:
        heard = [dying.hear_pid() for _ in range(3)]
        child = heard[-1] if heard[-1] in running(token) else heard[-2]
        guards = [pid for pid in heard if pid != child]
        dying.kill()
        assert wait_until(lambda: len(running(token)) == 2)
        assert wait_until(lambda: sum(map(is_gone, guards)) == 1)
        assert child in running(token)
        os.kill(child, signal.SIGKILL)
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: all(map(is_gone, guards)))


def test_a_forked_child_that_exits_leaves_its_parents_trees_alone(token: str) -> None:
    body = """
tree = family()
pid = os.fork()
if pid == 0:
    for forbidden in (tree.members, tree.exit_status, lambda: tree.signal(9)):
        try:
            forbidden()
        except RuntimeError as error:
            assert "belongs to process" in str(error)
        else:
            os._exit(7)
    assert tree.reap() and tree.exit_fd() is None
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
say(len(tree.members()))
tree.signal(9)
while tree.members() or not tree.reap():
    time.sleep(0.005)
"""
    with program(token, body, "-X", "dev", "-W", "ignore::DeprecationWarning") as forking:
        assert forking.hear() == "3"
        assert forking.process.wait(15) == 0
        assert forking.complaints() == ""


@pytest.mark.parametrize("step", ["ensure()", "forget(second.pid), _guardian.register(second.pid)"])
def test_a_guard_that_was_killed_is_replaced_at_the_next_registration(step: str, token: str) -> None:
    body = f"""
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # writing to a dead guard must not kill us
first, second = family(), sleeper()
old, fd = _guardian.pid(), _guardian.fd()
with _guardian._current._lock:  # before who watches it gets there
    os.kill(old, signal.SIGKILL)
    os.waitid(os.P_PID, old, os.WEXITED | os.WNOWAIT)
    # The new guard will not find these trees by mark, only by what it is told.
    _guardian._current.program = "other"
    _guardian.{step}
assert _guardian.pid() != old and _guardian.fd() == fd
assert not os.path.exists("/proc/" + str(old)), "the old guard was not reaped"
say(_guardian.pid())
hear()
"""
    with program(token, body) as dying:
        guard = dying.hear_pid()
        dying.kill()
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


REPLACED = """
def replaced(old):
    while _guardian.pid() in (old, None):
        time.sleep(0.005)
    return _guardian.pid()
"""


@pytest.mark.parametrize("children", ["SIG_DFL", "SIG_IGN"])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_guard_that_was_killed_or_stopped_is_replaced_at_once(how: str, children: str, token: str) -> None:
    """Nobody opens another process meanwhile."""
    body = f"""
{REPLACED}
signal.signal(signal.SIGCHLD, signal.{children})  # ignored, they are reaped by the kernel
tree, others = family(), subprocess.Popen(["sleep", f"300.{{token}}"])
_guardian.register_tree(_procfs.look_up(others.pid))
# The new guards will not find the tree by mark, only by what they are told.
_guardian._current.program = "other"
guards = [_guardian.pid()]
for _ in range(2):
    os.kill(guards[-1], signal.{how})
    guards.append(replaced(guards[-1]))
while any(os.path.exists(f"/proc/{{guard}}") for guard in guards[:-1]):
    time.sleep(0.005)
say(guards[-1])
hear()
"""
    with program(token, body) as dying:
        guard = dying.hear_pid()
        assert wait_until(lambda: has_read_all(guard))
        dying.kill()
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))
        assert dying.complaints() == ""


def test_a_guard_that_cannot_be_replaced_now_is_replaced_later(token: str) -> None:
    body = f"""
{REPLACED}
sleeper()
old, real, refusals = _guardian.pid(), subprocess.Popen.__init__, []
def refuse(*args, **kwargs):
    refusals.append(args)
    if len(refusals) < 4:
        raise OSError(11, "no more processes")
    real(*args, **kwargs)
subprocess.Popen.__init__ = refuse
os.kill(old, signal.SIGKILL)
say(replaced(old))
hear()
"""
    with program(token, body) as dying:
        guard = dying.hear_pid()
        dying.kill()
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))
        assert dying.complaints().count("it will be tried again") == 3


def test_a_program_that_ends_while_its_guard_is_being_replaced_leaves_none(token: str) -> None:
    body = """
real = subprocess.Popen.__init__
sleeper().signal(signal.SIGKILL)
def slow(self, *args, **kwargs):
    time.sleep(0.2)
    real(self, *args, **kwargs)
    say(self.pid)
subprocess.Popen.__init__ = slow
os.kill(_guardian.pid(), signal.SIGKILL)
time.sleep(0.1)
"""
    with program(token, body, "-X", "dev") as ending:
        guard = ending.hear_pid()
        assert ending.process.wait(15) == 0
        assert is_gone(guard)
        assert ending.hear() == ""
        assert ending.complaints() == ""


def test_a_program_that_is_killed_while_its_guard_is_being_replaced_leaves_nothing(token: str) -> None:
    body = """
sleeper()
def never(self, *args, **kwargs):
    say("replacing")
    time.sleep(60)
subprocess.Popen.__init__ = never
_guardian._LONGEST_START = 0.0
_guardian._current._send = lambda lines, end: setattr(_guardian._current, "_needs_full_list", True)  # as if it did not read
_guardian._current._needs_full_list = True
_guardian.ensure()
"""
    with program(token, body) as dying:
        assert dying.hear() == "replacing"
        dying.kill()
        assert wait_until(lambda: not running(token))


def test_a_forked_child_has_its_own_guard_watched(token: str) -> None:
    body = f"""
{REPLACED}
import multiprocessing
sleeper()
def work():
    sleeper()
    old = _guardian.pid()
    os.kill(old, signal.SIGKILL)
    say("guard", replaced(old))
    time.sleep(60)  # its standard input is nobody's
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
say("child", child.pid)
child.join()
"""
    with program(token, body, "-W", "ignore::DeprecationWarning") as parent:
        pids = dict(parent.hear().split() for _ in range(2))  # in whichever order
        os.kill(int(pids["child"]), signal.SIGKILL)
        assert wait_until(lambda: is_gone(int(pids["guard"])))


def test_one_that_is_not_ours_to_watch_has_not_stopped() -> None:
    assert not guardian_watch.has_stopped(os.getppid())


def test_a_guard_that_no_longer_reads_never_blocks_us_and_is_replaced(token: str) -> None:
    body = """
_guardian._LONGEST_START = 0.0
_guardian.guardian_watch.has_stopped = lambda pid: False  # as if it were stuck in some other way
tree = family()
# The new guard will not find the tree by mark, only by what it is told.
_guardian._current.program = "other"
old = _guardian.pid()
os.kill(old, signal.SIGSTOP)
begun = time.monotonic()
while _guardian.pid() == old:
    _guardian.forget(tree.pid)
    _guardian.register(tree.pid)
    assert time.monotonic() - begun < 15
assert not os.path.exists(f"/proc/{old}"), "the old guard was not reaped"
say(_guardian.pid())
hear()
"""
    with program(token, body) as dying:
        guard = dying.hear_pid()
        dying.kill()
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


def test_threads_that_start_at_once_start_one_guard(token: str) -> None:
    body = """
barrier = threading.Barrier(8)
def start():
    barrier.wait()
    sleeper()
threads = [threading.Thread(target=start) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
children = [proc for proc in _procfs.scan() if proc.ppid == os.getpid()]
say(len(children))
say(_guardian.pid())
hear()
"""
    with program(token, body) as dying:
        assert dying.hear() == "9"
        guard = dying.hear_pid()
        dying.kill()
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


def test_no_thread_goes_on_before_the_guard_is_there(token: str) -> None:
    body = """
real = subprocess.Popen
def slow(*args, **kwargs):
    time.sleep(0.1)
    return real(*args, **kwargs)
subprocess.Popen = slow
def start():
    _guardian.ensure()
    say(_guardian.pid())
threads = [threading.Thread(target=start) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    with program(token, body) as starting:
        assert starting.process.wait(15) == 0
        (guard,) = {starting.hear_pid() for _ in range(3)}
        assert is_gone(guard)


def test_registering_in_signal_handlers_and_finalizers_while_registering(token: str) -> None:
    body = """
trees = [sleeper() for _ in range(3)]
handled = 0
class Dropped:
    def __del__(self):
        _guardian.register(trees[1].pid)
def handler(*args):
    global handled
    handled += 1
    _guardian.register(trees[2].pid)
    if handled == 5:
        os.kill(_guardian.pid(), signal.SIGKILL)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while handled < 60:
    _guardian.forget(trees[0].pid)
    _guardian.register(trees[0].pid)
    Dropped()
signal.setitimer(signal.ITIMER_REAL, 0)
_guardian.ensure()
assert sorted(_guardian._current.groups) == sorted(tree.pid for tree in trees)
say(_guardian.pid())
hear()
"""
    with program(token, body) as dying:
        guard = dying.hear_pid()
        dying.kill()
        assert dying.complaints() == ""
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


def test_a_program_that_closes_all_descriptors_gets_no_lines_in_its_own_files(
    token: str, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    body = f"""
_guardian.ensure()
fd = _guardian.fd()
os.closerange(3, 256)
while (other := os.open({str(own)!r}, os.O_CREAT | os.O_RDWR)) < fd:
    pass
assert other == fd
tree = sleeper()
_guardian.forget(tree.pid)
_guardian.register(tree.pid)
assert os.fstat(other).st_size == 0 and os.read(other, 10) == b""
assert _guardian.fd() != fd
say(_guardian.pid())
hear()
"""
    with program(token, body) as dying:
        guard = dying.hear_pid()
        dying.kill()
        assert own.read_bytes() == b""
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(guard))


INNER = """
say("inner", os.getpid(), _guardian.pid())
family()
say("inner", os.getpid(), _guardian.pid())
time.sleep(300)
"""
OUTER = f"""
inner = Tree([sys.executable, "-c", {PRELUDE + INNER!r}, token])
sleeper()
say("outer", os.getpid(), _guardian.pid())
hear()
assert not [proc for proc in inner.members() if proc.comm == "quiesce-guard"], "a guard is no part of a tree"
say("members", 0, 0)
hear()
"""


@pytest.mark.parametrize("killed", ["outer", "inner"])
def test_a_program_within_a_program_has_its_own_guard_and_carries_the_outer_marks(
    killed: str, token: str
) -> None:
    with program(token, OUTER) as outer:
        said: dict[str, tuple[int, int]] = {}
        while not said.get("outer") or not said.get("inner", (0, 0))[1]:
            who, pid, guard = outer.hear().replace("None", "0").split()
            said[who] = int(pid), int(guard)
        assert wait_until(lambda: len(running(token)) == 6)  # two programs, a sleeper, a family of three
        outer.tell()
        assert outer.hear() == "members 0 0"
        os.kill(said[killed][0], signal.SIGKILL)
        assert wait_until(lambda: is_gone(said["inner"][1]))
        if killed == "inner":
            assert wait_until(lambda: len(running(token)) == 2)
            assert not is_gone(said["outer"][1])
            outer.kill()
        assert wait_until(lambda: not running(token))
        assert wait_until(lambda: is_gone(said["outer"][1]))


def test_at_a_normal_exit_trees_are_asked_then_killed_and_the_guard_reaped(
    token: str, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    body = f"""
os.chdir({str(tmp_path)!r})
polite = Tree(["sh", "-c", f"trap 'echo yes > asked; exit' TERM; echo ready; sleep 300.{{token}} & wait"])
stubborn = Tree(["sh", "-c", f"trap '' TERM; echo ready; setsid sleep 300.{{token}}"])
say(_guardian.pid())
hear()
"""
    with program(token, body, "-X", "dev") as ending:
        heard = {ending.hear() for _ in range(3)}
        (guard,) = map(int, heard - {"ready"})
        ending.tell()
        begun = time.monotonic()
        assert ending.process.wait(15) == 0
        assert time.monotonic() - begun < 10
        assert is_gone(guard)
        assert not running(token)
        assert asked.read_text() == "yes\n"
        (complaint,) = ending.complaints().splitlines()
        assert complaint.startswith("still running at exit, stopped now: pid ")


def test_a_program_that_has_left_nothing_says_nothing_at_exit(token: str) -> None:
    body = """
tree = sleeper()
tree.signal(signal.SIGKILL)
while tree.members() or not tree.reap():
    time.sleep(0.005)
say(_guardian.pid())
"""
    with program(token, body, "-X", "dev") as ending:
        guard = ending.hear_pid()
        assert ending.process.wait(15) == 0
        assert is_gone(guard)
        assert ending.complaints() == ""


def test_kill_all_now_leaves_nothing_for_the_guard(token: str) -> None:
    body = """
family(), sleeper()
begun = time.monotonic()
left = _guardian.kill_all_now()
say(len(left), len(_guardian.find_all()), time.monotonic() - begun < 10)
say(_guardian.pid())
os._exit(0)
"""
    with program(token, body) as ending:
        assert ending.hear() == "0 0 True"
        guard = ending.hear_pid()
        ending.process.wait(15)
        assert not running(token)
        assert wait_until(lambda: is_gone(guard))


@pytest.mark.parametrize(
    "unusable",
    [
        "sys.executable = ''; sys.base_exec_prefix = '/nowhere'",
        "sys.executable = '/usr/sbin/webserver'; sys.base_exec_prefix = '/nowhere'",
        "sys.frozen = True",
    ],
)
def test_without_an_interpreter_there_is_one_warning_and_no_guard(unusable: str, token: str) -> None:
    body = f"""
{unusable}
for _ in range(2):
    tree = sleeper()
    tree.signal(signal.SIGKILL)
    while tree.members() or not tree.reap():
        time.sleep(0.005)
say(_guardian.pid(), _guardian.fd())
"""
    with program(token, body) as unguarded:
        assert unguarded.hear() == "None None"
        assert unguarded.process.wait(15) == 0
        (complaint,) = unguarded.complaints().splitlines()
        assert "no guard process" in complaint


def test_a_guard_that_keeps_dying_is_given_up(token: str, tmp_path: Path) -> None:
    broken = tmp_path / "python-broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    body = f"""
sys.executable = {str(broken)!r}
_guardian._SHORTEST_LIFE = 60.0  # however long a machine that stalls takes to show that it has died
for _ in range(600):
    _guardian.ensure()
    if _guardian._current._is_disabled:
        break
    time.sleep(0.02)
for _ in range(20):
    _guardian.ensure()
say("done")
"""
    with program(token, body, "-X", "dev") as unguarded:
        assert unguarded.hear() == "done"
        assert unguarded.process.wait(15) == 0
        (complaint,) = unguarded.complaints().splitlines()
        assert "python-broken does not run it" in complaint


@contextmanager
def bare_guard(program_id: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.send(f"!{program_id}\n".encode())
    argv = [sys.executable, "-I", "-S", guardian._MAIN, str(os.getpid()), "0"]
    with ours, subprocess.Popen(argv, stdin=theirs.fileno(), start_new_session=True) as process:
        theirs.close()
        try:
            yield process, ours
        finally:
            process.kill()


def test_the_guard_obeys_its_lines_and_ignores_what_it_does_not_know(token: str) -> None:
    sleepers = [subprocess.Popen(["sleep", f"300.{token}"], start_new_session=True) for _ in range(4)]
    told, forgotten, cleared, reused = (process.pid for process in sleepers)
    starts = {process.pid: procfs.start_time(process.pid) for process in sleepers}
    with bare_guard(token) as (guard, ours):
        ours.sendall(b"?\n\n+\n+x y\n-z\n+1 2 3\n\xff\xfe\n" + b"long" * 50_000 + b"\n")
        ours.sendall(b"+%d %d\n=\n" % (cleared, starts[cleared]))
        ours.sendall(b"+%d %d\n-%d\n" % (forgotten, starts[forgotten], forgotten))
        ours.sendall(b"+%d %d\n" % (reused, starts[reused] - 1))
        for byte in b"+%d %d\n" % (told, starts[told]):
            ours.sendall(bytes([byte]))
        ours.sendall(b"+%d" % forgotten)  # cut off by death
        ours.close()
        assert guard.wait(15) == 0
    assert [process.poll() for process in sleepers] == [-signal.SIGKILL, None, None, None]
    for process in sleepers:
        process.kill()
        process.wait()


def test_the_guard_kills_others_trees_by_pid_and_start_time_and_only_those(token: str) -> None:
    script = f"sleep 300.{token} & wait"
    shells = [subprocess.Popen(["sh", "-c", script]) for _ in range(4)]
    assert wait_until(lambda: len(running(token)) == 8)
    told, forgotten, cleared, reused = (process.pid for process in shells)
    starts = {process.pid: procfs.start_time(process.pid) for process in shells}
    with bare_guard(token) as (guard, ours):
        ours.sendall(b"*\n*x y\n/z\n*1 2 3\n")
        ours.sendall(b"*%d %d\n=\n" % (cleared, starts[cleared]))
        ours.sendall(b"*%d %d\n/%d\n" % (forgotten, starts[forgotten], forgotten))
        ours.sendall(b"*%d %d\n" % (reused, starts[reused] - 1))
        ours.sendall(b"*%d %d\n" % (told, starts[told]))
        ours.close()
        assert guard.wait(15) == 0
    assert [process.poll() for process in shells] == [-signal.SIGKILL, None, None, None]
    assert len(running(token)) == 6
    for pid in running(token):
        os.kill(pid, signal.SIGKILL)
    for process in shells:
        process.wait()


def test_signals_that_end_others_do_not_end_the_guard(token: str) -> None:
    with bare_guard(token) as (guard, ours):
        ours.sendall(b"=\n")
        assert wait_until(lambda: is_on_guard(guard.pid))
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            guard.send_signal(ignored)
        time.sleep(0.05)
        assert guard.poll() is None
        ours.close()
        assert guard.wait(15) == 0


def test_a_guard_whose_start_was_interrupted_kills_nothing(token: str) -> None:
    env = {**os.environ, procfs.VARIABLE: f"{token}.1"}
    with subprocess.Popen(["sleep", f"300.{token}"], start_new_session=True, env=env) as sleeper:
        with bare_guard(token) as (guard, ours):
            ours.close()
            assert guard.wait(15) == 0
        assert sleeper.poll() is None
        sleeper.kill()
