"""What could not be looked at is said, and not called clean. Programs in namespaces of their own, where /proc does not show all."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from quiesce import Grace, Process, Reason, Scope, StopReport, contain, own, shielded
from quiesce.kernel.contain import block_processes
from quiesce.kernel.process import descendants as descendants_module
from quiesce.kernel.process import procfs
from quiesce.kernel.scope import unseen as unseen_module
from tests.kernel.processes import token_of_processes, wait_until
from tests.world import asyncio_only

pytestmark = [
    pytest.mark.skipif(not procfs.available(), reason="needs /proc"),
    pytest.mark.real_time,
]

BRISK = Grace(cancel=0.2, terminate=0.2, kill=10.0)


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


# Programs that cannot see all ---------------------------------------------------------------------------------


@cache
def may_make_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "true"], stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


in_namespaces = pytest.mark.skipif(not may_make_namespaces(), reason="needs root, to make namespaces")

NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups"
PLACES = {
    "/proc shows another PID namespace": ["unshare", "--pid", "--fork"],
    "there is no /proc here": ["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"],
    "/proc hides the processes of other users (hidepid)": [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t proc -o hidepid=2 proc /proc && exec {NOBODY} "$@"',
        "sh",
    ],
}
HIDING = "/proc hides the processes of other users (hidepid)"

PRELUDE = """
import json, os, signal, sys
import anyio
from quiesce import Grace, Process, Scope, contain, own

flavour, sleep, token = sys.argv[1:]
BRISK = Grace(cancel=0.2, terminate=0.2, kill=10.0)
ESCAPES = ["sh", "-c", f"setsid {sleep} 300.{token} & echo $!; wait"]

def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

def tell(**facts):
    print(json.dumps(facts))

def facts_of(report):
    return {"clean": report.clean, "left": len(report.left), "unseen": report.unseen, "text": str(report)}
"""


@dataclass
class Seen:
    """What a program told of itself."""

    facts: dict[str, object]
    complaints: list[str]


def told_by(place: list[str], flavour: str, main: str, token: str, sleep: str = "sleep") -> Seen:
    program = f"{PRELUDE}\nasync def main():\n{main}\nanyio.run(main, backend=flavour)"
    ended = subprocess.run(
        [*place, sys.executable, "-c", program, flavour, sleep, token],
        capture_output=True,
        text=True,
        timeout=30,
        cwd="/",
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return Seen(json.loads(ended.stdout), ended.stderr.splitlines())


@pytest.fixture(scope="module")
def unreadable_sleep() -> Iterator[str]:
    """A program that others may run and not read. Who runs it cannot trace it, so that `hidepid` hides it."""
    as_nobody = [*NOBODY.split(), sys.executable, "-c", "import quiesce.kernel.process.process_tree"]
    if subprocess.run(as_nobody, cwd="/", stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs an interpreter that any user may run")
    folder = Path("/var/tmp" if os.access("/var/tmp", os.W_OK) else "/tmp", f"quiesce-{os.getpid()}")
    folder.mkdir(mode=0o755)
    copy = folder / "sleep"
    shutil.copy(os.path.realpath(shutil.which("sleep") or "/bin/sleep"), copy)
    copy.chmod(0o711)
    yield str(copy)
    shutil.rmtree(folder)


flavours = pytest.mark.parametrize("flavour", ["asyncio", "trio"])

CLOSED = """
    async with Scope("owner") as owner:
        process = await Process.open(ESCAPES, grace=BRISK, scope=owner)
        escaped = int(await anext(process.lines()))
        await anyio.sleep(0.1)   # it makes its session
        report = await process.close()
        again = await Process.open(["true"], grace=BRISK, scope=owner)
        await again.close()
        facts = facts_of(report) | {"survived": is_there(escaped), "owner": (await owner.close()).unseen}
    os.kill(escaped, signal.SIGKILL)
    tell(**facts)
"""


@in_namespaces
@flavours
@pytest.mark.parametrize("why", PLACES)
def test_where_not_all_processes_are_shown_no_report_is_clean(
    why: str, flavour: str, token: str, unreadable_sleep: str
) -> None:
    sleep = unreadable_sleep if why == HIDING else "sleep"
    seen = told_by(PLACES[why], flavour, CLOSED, token, sleep)
    assert seen.facts["survived"], "it was found all the same"
    assert seen.facts["clean"] is False
    assert seen.facts["left"] == 0
    assert seen.facts["unseen"] == [f"descendants of process 'sh': {why}"]
    assert str(seen.facts["text"]).splitlines()[0].endswith("nothing left, as far as can be seen")
    assert f"  unseen: descendants of process 'sh': {why}" in str(seen.facts["text"])
    assert seen.facts["owner"] == [f"descendants of process '{name}': {why}" for name in ("sh", "true")]
    (warning,) = seen.complaints
    assert why in warning


@in_namespaces
@flavours
def test_a_process_that_is_hidden_from_us_is_stopped_all_the_same(
    flavour: str, token: str, unreadable_sleep: str
) -> None:
    main = """
    async with Process([sleep, f"300.{token}"], grace=BRISK) as process:
        hidden = not os.path.exists(f"/proc/{process.pid}")
    tell(hidden=hidden, status=process.returncode, left=len(process.report.left))
"""
    seen = told_by(PLACES[HIDING], flavour, main, token, unreadable_sleep)
    assert seen.facts == {"hidden": True, "status": -15, "left": 0}


BY_OTHERS = """
    import contextlib, subprocess
    @contextlib.asynccontextmanager
    async def server():
        yield subprocess.Popen(["sleep", f"300.{token}"])
    async with contain() as before:
        held = await own(contextlib.nullcontext(), name="before").open()
        clean = [(await held.close()).clean]
    clean.append(before.report.clean)
    async with contain() as box:
        held = await own(server(), name="server").open()
        started = held.value
        unseen = (await held.close()).unseen
    async with contain(processes="none") as not_asked_for:
        pass
    clean.append(not_asked_for.report.clean)
    started.kill()
    started.wait()
    tell(clean=clean, unseen=[*unseen, *box.report.unseen])
"""


@in_namespaces
@pytest.mark.parametrize("why", [why for why in PLACES if why != HIDING])
def test_processes_that_others_start_are_unseen_where_there_are_any(why: str, token: str) -> None:
    seen = told_by(PLACES[why], "asyncio", BY_OTHERS, token)
    assert seen.facts["clean"] == [True, True, True]
    assert seen.facts["unseen"] == [
        f"processes that were started in 'server': {why}",
        f"processes that were started in 'server': {why}",  # what is held in a block is the block's too
        f"processes that were started in 'containment': {why}",
    ]


@in_namespaces
def test_a_process_of_others_that_is_hidden_from_us_is_unseen(token: str, unreadable_sleep: str) -> None:
    main = """
    import asyncio
    async with contain() as box:
        started = await asyncio.create_subprocess_exec(sleep, f"300.{token}")
        hidden = not os.path.exists(f"/proc/{started.pid}")
    started.kill()
    await started.wait()
    tell(hidden=hidden, **facts_of(box.report))
"""
    seen = told_by(PLACES[HIDING], "asyncio", main, token, unreadable_sleep)
    assert seen.facts["hidden"]
    assert seen.facts["clean"] is False
    assert seen.facts["unseen"] == [f"processes that were started in 'containment': {HIDING}"]


# The same in every world --------------------------------------------------------------------------------------


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        patch.setattr(procfs, "unavailable", lambda: "there is no /proc here")
        patch.setattr(unseen_module, "_has_warned", False)
        block_processes.cannot_look.cache_clear()
        yield patch
    block_processes.cannot_look.cache_clear()


async def test_a_process_that_was_not_seen_to_the_end_is_in_the_reports_of_all_its_owners(
    no_proc: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outer = await Scope.open("outer")
    inner = await Scope.open("inner", scope=outer)
    beside = await Scope.open("beside", scope=outer)
    for _ in range(2):
        async with Process(["true"], name="short", grace=BRISK, scope=inner) as process:
            pass
        assert process.report is not None
        assert process.report.unseen == ("descendants of process 'short': there is no /proc here",)
        assert not process.report.clean
    assert (await beside.close()).clean
    for owner in (inner, outer):
        report = await owner.close()
        assert report.unseen == ("descendants of process 'short': there is no /proc here",)
        assert (report.left, report.clean) == ([], False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "there is no /proc here" in caplog.text


async def test_a_scope_that_lives_long_keeps_no_more_than_a_hundred(no_proc: pytest.MonkeyPatch) -> None:
    scope = await Scope.open("for months")
    core = scope._opened()
    for number in range(150):
        unseen_module.note_unseen(core, f"descendants of process '{number}'", "there is no /proc here")
    assert len((await scope.close()).unseen) == 100


async def test_a_tree_that_is_left_says_what_else_may_be(no_proc: pytest.MonkeyPatch, token: str) -> None:
    deaf = ["sh", "-c", f"trap '' TERM; echo up; while :; do sleep 1.{token}; done"]
    process = await Process.open(deaf, grace=BRISK)
    await anext(process.lines())
    no_proc.setattr(procfs, "signal_group", lambda group, sig: not sig)  # nobody is ever killed
    report = await process.close(deadline=0.2)
    assert [left.kind for left in report.left] == ["process"]
    assert report.unseen == ("descendants of process 'sh': there is no /proc here",)
    no_proc.undo()
    assert not (await process.close()).left


async def test_a_last_look_that_saw_all_leaves_nothing_unseen(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    async with Process(["sh", "-c", f"sleep 300.{token} & exit"], grace=BRISK) as process:
        with monkeypatch.context() as patch:
            patch.setattr(procfs, "unavailable", lambda: "there is no /proc here")
            await process.wait()
            await anyio.sleep(0.05)  # it is looked at, in vain
    assert process.report is not None
    assert process.report.clean


async def test_processes_that_outrun_a_look_are_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    def outrun(since: int = 0, missed: list[object] | None = None) -> Iterator[procfs.Proc]:
        if missed is not None:
            missed.append("4194304")
        return iter(())

    monkeypatch.setattr(procfs, "scan", outrun)
    process = await Process.open(["true"], grace=BRISK)
    report = await process.close()
    assert report.unseen == (
        "descendants of process 'true': processes were started faster than they could be read",
    )


@pytest.mark.parametrize(
    ("option", "user_of_the_first", "we", "expected"),
    [
        ("", 0, 1000, ""),
        ("hidepid=invisible", 0, 1000, ""),  # shown to us all the same: we are in its group
        ("hidepid=invisible", 1000, 1000, HIDING),
        ("", 1000, 1000, ""),
        ("hidepid=invisible", 0, 0, ""),
        ("", None, 1000, HIDING),
    ],
)
def test_whether_proc_hides_others_is_asked_of_the_first_process(
    option: str, user_of_the_first: int | None, we: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str) -> bytes:
        if path == "/proc/1/stat" and user_of_the_first is None:
            raise FileNotFoundError(path)
        mounts = (
            f"none /elsewhere proc hidepid=2 0 0\nproc /proc proc rw 0 0\nproc /proc proc rw,{option} 0 0\n"
        )
        return mounts.encode() if path == "/proc/mounts" else b"1 (init) S"

    with monkeypatch.context() as patch:
        patch.setattr(procfs, "_hidden", {})
        patch.setattr(procfs, "_read", read)
        patch.setattr(os, "geteuid", lambda: we)
        patch.setattr(os, "stat", lambda path: os.stat_result((0, 0, 0, 0, user_of_the_first or 0, *[0] * 5)))
        found = procfs.hidden()
    assert found == expected


def test_an_error_of_the_moment_is_not_taken_for_a_proc_that_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> bytes:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(procfs, "_hidden", {})
    with monkeypatch.context() as patch:
        patch.setattr(procfs, "_read", fail)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            procfs.hidden()
    assert procfs.hidden() == ""


def test_where_nobody_can_ask_for_children_there_are_taken_to_be_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch, subprocess.Popen(["true"]):
        assert descendants_module.have_any()
        patch.setattr(descendants_module, "_PROBE", 0)
        assert not descendants_module.have_any()


# Threads of others --------------------------------------------------------------------------------------------


class Work:
    """What a thread is busy with until it is told."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.ended = threading.Event()

    def go_on(self) -> None:
        self.begun.set()
        give_up_at = time.monotonic() + 10
        while not self.gate.is_set() and time.monotonic() < give_up_at:
            time.sleep(0.001)
        self.ended.set()

    async def in_a_thread_of_anyio(self) -> None:
        await anyio.to_thread.run_sync(self.go_on, abandon_on_cancel=True)

    async def in_a_thread_of_asyncio(self) -> None:
        await asyncio.to_thread(self.go_on)

    async def has_begun(self) -> None:
        while not self.begun.is_set():
            await anyio.sleep(0.001)

    async def end(self) -> None:
        self.gate.set()
        while not self.ended.is_set():
            await anyio.sleep(0.001)


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.gate.set()


def says_thread(report: StopReport) -> bool:
    if not report.unseen:
        assert report.clean
        return False
    assert not report.clean
    (unseen,) = report.unseen
    assert "the end of thread" in unseen
    assert "test_unseen.py" in unseen
    assert "in Work.go_on" in unseen
    assert not report.left
    return True


async def _is_seen_while_it_lasts(start: Callable[[], Awaitable[None]], work: Work) -> None:
    outer, beside = await Scope.open("outer"), await Scope.open("beside")
    inner = await Scope.open("inner", scope=outer)
    inner.spawn(start)
    await work.has_begun()
    assert says_thread(await inner.close())
    assert says_thread(await outer.close())
    assert not says_thread(await beside.close())
    await work.end()
    assert wait_until(lambda: not unseen_module._others_are_busy() or not outer._opened().report().unseen)
    assert not says_thread(await inner.close())
    assert not says_thread(await outer.close())


async def test_work_that_a_library_goes_on_with_in_a_thread_is_unseen_while_it_lasts(work: Work) -> None:
    await _is_seen_while_it_lasts(work.in_a_thread_of_anyio, work)


@asyncio_only
async def test_so_is_work_that_asyncio_goes_on_with(work: Work) -> None:
    await _is_seen_while_it_lasts(work.in_a_thread_of_asyncio, work)


async def test_a_thread_that_somebody_still_waits_for_is_left_with_who_waits(work: Work) -> None:
    async def patient() -> None:
        await shielded(anyio.to_thread.run_sync, work.go_on, within=10)

    scope = await Scope.open("patient")
    scope.spawn(patient)
    await work.has_begun()
    report = await scope.close(deadline=0.05)
    assert [left.kind for left in report.left] == ["task", "task"]
    assert not report.unseen
    work.gate.set()
    assert (await scope.close()).clean


async def test_a_held_thing_whose_thread_goes_on_is_not_clean(work: Work) -> None:
    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(work.in_a_thread_of_anyio)
            yield
            group.cancel_scope.cancel()

    held = await own(client()).open()
    await work.has_begun()
    assert says_thread(await held.close())
    await work.end()


async def test_a_block_that_came_to_its_end_is_not_looked_at(work: Work) -> None:
    """Only stops that somebody asked for are: it would cost every request."""
    scope = await Scope.open("block")
    scope.spawn(work.in_a_thread_of_anyio)
    await work.has_begun()
    assert not (await scope.close(reason=Reason("parent", "its block ended"))).unseen
    await work.end()


@asyncio_only
async def test_a_containment_names_its_threads_once(work: Work) -> None:
    async with contain(grace=Grace(cancel=0.05, terminate=0.05, kill=0.05)) as box:
        tasks = {asyncio.ensure_future(work.in_a_thread_of_anyio())}
        await work.has_begun()
        tasks.clear()
    assert box.report is not None
    assert [left.kind for left in box.report.left] == ["thread"]
    assert not box.report.unseen
    await work.end()
