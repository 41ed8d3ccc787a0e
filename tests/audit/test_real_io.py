"""Real servers, processes and threads under the virtual clock: what they are about to say is waited for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import anyio
import httpx
import pytest

from quiesce.audit import AuditResult, Limits, audit
from quiesce.audit.watch import silence
from quiesce.audit.watch.outside_work import OutsideWork, Pause
from quiesce.audit.watch.silence import OwnSilence, PeerSilence, share_of_processors
from tests.audit.command_line import CommandLine

pytestmark = pytest.mark.time_limit(60)
in_both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
EAGER = ["asyncio-eager"] if sys.version_info >= (3, 12) else []
UVLOOP = pytest.param("uvloop", marks=pytest.mark.slow)
everywhere = pytest.mark.parametrize("backend", ["asyncio", *EAGER, UVLOOP, "trio"])


def audited(scenario: Callable[[], Any], backend: str, **options: Any) -> AuditResult:
    options.setdefault("stops", "cancel")
    options.setdefault("phases", "unstarted")
    return audit(scenario, backend=backend, real_io=True, **options)


# Servers

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
# Takes as many connections as there are, and says which port it has. Its argument is how long it waits before an answer: "never",
# "never at first", or seconds.
PROGRAM = f"""
import socket, sys, time
silent = []
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        if sys.argv[1] == "never" or sys.argv[1] == "never at first" and not silent:
            silent.append(connection)
            continue
        with connection:
            connection.recv(65536)
            time.sleep(0 if silent else float(sys.argv[1]))
            try:
                connection.sendall({ANSWER!r})
            except OSError:
                pass  # nobody waits for it any more
"""


@contextmanager
def process_that_answers(after: str) -> Iterator[int]:
    command = [sys.executable, "-S", "-c", PROGRAM, after]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def answer_slowly(listener: socket.socket) -> None:
    """Until the listener is shut down."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                time.sleep(0.2)
                with suppress(OSError):
                    connection.sendall(ANSWER)


@contextmanager
def thread_that_answers() -> Iterator[int]:
    """Started before the audit, as a fixture would, and so no thread of the scenario's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_slowly, args=(listener,), name="server")
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def slow_server(kind: str) -> AbstractContextManager[int]:
    return thread_that_answers() if kind == "thread" else process_that_answers("0.2")


def asking(port: int) -> Callable[[], Awaitable[None]]:
    async def asks() -> None:
        async with httpx.AsyncClient(timeout=5, trust_env=False, verify=False) as client:
            answer = await client.get(f"http://127.0.0.1:{port}/")
        assert answer.text == "hi"

    return asks


@everywhere
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_server_that_takes_its_time_is_no_timeout(backend: str, kind: str) -> None:
    with slow_server(kind) as port:
        result = audited(asking(port), backend)
    assert result.clean, str(result)


@in_both
def test_a_server_that_never_answers_is_a_timeout_and_the_option_is_named(backend: str) -> None:
    with process_that_answers("never") as port:
        result = audited(asking(port), backend, patience=0.01)
    assert result.verdict == "BASELINE-BROKEN"
    assert "it raised ReadTimeout" in result.reason
    assert f"stopped waiting for a socket connected to 127.0.0.1:{port}, silent for 0.1 s" in result.reason
    assert "allow more patience (patience=, --patience SECONDS)" in result.reason


@in_both
def test_more_patience_than_the_first_run_needed_is_told(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "share_of_processors", lambda: 1.0)
    with process_that_answers("never at first") as port:
        result = audited(asking(port), backend)
    assert result.clean, str(result)
    (note,) = [note for note in result.notes if "patience" in note]
    assert note.startswith("every run had 10 times the patience")
    assert f"a socket connected to 127.0.0.1:{port}, silent for 0.05 s" in note


@in_both
def test_with_enough_patience_the_first_run_is_right(backend: str) -> None:
    with thread_that_answers() as port:
        result = audited(asking(port), backend, patience=10)
    assert result.clean, str(result)
    assert not [note for note in result.notes if "patience" in note]
    assert "--patience 10" in result.options


# Threads and processes


async def works_in_a_thread() -> None:
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(time.sleep, 0.3)


async def waits_for_a_process() -> None:
    with anyio.fail_after(5):
        await anyio.run_process(["sleep", "0.3"])


def compute() -> None:
    ends = time.thread_time() + 0.3
    while time.thread_time() < ends:
        pass


async def computes_in_a_thread() -> None:
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(compute)


async def computes_in_a_process() -> None:
    program = "import time\nwhile time.process_time() < 0.3: pass"
    with anyio.fail_after(5):
        await anyio.run_process([sys.executable, "-c", program])


@everywhere
@pytest.mark.parametrize("scenario", [works_in_a_thread, waits_for_a_process])
def test_a_timeout_does_not_come_before_work_that_takes_less(
    backend: str, scenario: Callable[[], Any]
) -> None:
    result = audited(scenario, backend)
    assert result.clean, str(result)
    assert not [note for note in result.notes if "patience" in note]


@in_both
@pytest.mark.parametrize("scenario", [computes_in_a_thread, computes_in_a_process])
def test_the_clock_does_not_jump_while_somebody_computes(backend: str, scenario: Callable[[], Any]) -> None:
    result = audited(scenario, backend, limits=Limits(hang_after=0.06))
    assert result.clean, str(result)


def test_every_limit_on_the_outside_grows_with_the_patience() -> None:
    longer = Limits().longer(100)
    assert (longer.patience, longer.hang_after, longer.work, longer.run) == (5.0, 100.0, 1000.0, 6000.0)
    assert Limits(run=None).longer(10).run is None


@in_both
@pytest.mark.parametrize("scenario", [works_in_a_thread, waits_for_a_process])
def test_work_that_rests_for_longer_than_the_limit_is_given_ten_times_as_long(
    backend: str, scenario: Callable[[], Any]
) -> None:
    result = audited(scenario, backend, limits=Limits(hang_after=0.1))
    assert result.clean, str(result)


@in_both
def test_a_thread_that_waits_for_the_scenario_does_not_hold_up_the_clock(backend: str) -> None:
    async def scenario() -> None:
        let_go = threading.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(anyio.to_thread.run_sync, let_go.wait))
            await anyio.sleep(3600)
            let_go.set()

    began = time.monotonic()
    result = audited(scenario, backend, limits=Limits(hang_after=0.05))
    assert result.clean, str(result)
    assert time.monotonic() - began < 30


# Findings


async def wait_for(connection: socket.socket) -> None:
    await anyio.wait_readable(connection)


def asking_when_cancelled(port: int) -> Callable[[], Awaitable[None]]:
    async def asks_in_its_clean_up() -> None:
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await asking(port)()
            raise

    return asks_in_its_clean_up


@in_both
def test_a_finding_that_more_patience_does_not_show_is_unresolved(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "share_of_processors", lambda: 1.0)
    with process_that_answers("never at first") as port:
        result = audited(asking_when_cancelled(port), backend, phases="early")
    assert result.verdict == "UNRESOLVED"
    assert result.exit_code == 2
    assert result.strips[0].marks == "u"
    assert "replaced" in result.reason
    assert f"stopped waiting for a socket connected to 127.0.0.1:{port}, silent for 0.05 s" in result.reason
    assert "allow more patience (patience=, --patience SECONDS)" in result.reason
    assert not result.errors
    assert "unresolved: replaced" in str(result)
    assert result.as_dict()["findings"][0]["doubt"]


@in_both
def test_an_unresolved_finding_that_is_ignored_does_not_make_the_verdict(backend: str) -> None:
    with process_that_answers("never at first") as port:
        scenario = asking_when_cancelled(port)
        result = audited(scenario, backend, phases="early", ignore={"replaced *": "a test"}, patience=0.01)
    assert result.verdict == "CLEAN"


@in_both
def test_a_finding_that_more_patience_shows_too_is_one(backend: str) -> None:
    with process_that_answers("never") as port:
        result = audited(asking_when_cancelled(port), backend, phases="early", patience=0.01)
    assert result.verdict == "FINDINGS"
    assert [finding.kind for finding in result.errors] == ["replaced"]


@in_both
def test_what_was_sure_at_one_place_is_doubted_at_another(backend: str) -> None:
    """At the first place a server never answers, at the second it does so once."""

    async def scenario() -> None:
        port = deaf
        try:
            await anyio.sleep(1)
            port = slow
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await asking(port)()
            raise

    with process_that_answers("never") as deaf, process_that_answers("never at first") as slow:
        result = audited(scenario, backend, phases="early", patience=0.01)
    assert [strip.marks for strip in result.strips] == ["Xu"], str(result)


@in_both
def test_clean_runs_are_not_made_again(backend: str) -> None:
    """The clock jumps over an idle connection in each of them, and nothing is wrong with that."""

    async def scenario() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for, connection)
                await anyio.sleep(100)
                tasks.cancel_scope.cancel()

    with process_that_answers("never") as port:
        result = audited(scenario, backend, phases="early", patience=0.01)
    assert result.clean, str(result)
    (strip,) = result.strips
    assert result.runs == 3 + len(strip.cells)  # two that nobody stops before, one after


# A busy machine


@contextmanager
def busy_machine() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            hog = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(hog.kill)
        yield


@pytest.mark.slow
@in_both
def test_a_busy_machine_does_not_change_a_verdict(backend: str) -> None:
    def findings(port: int) -> list[tuple[str, str]]:
        limits = Limits(patience=0.01)
        result = audited(asking_when_cancelled(port), backend, phases="early", limits=limits)
        return [(result.verdict, finding.kind) for finding in result.findings]

    with busy_machine():
        with thread_that_answers() as port:
            answered = audited(asking(port), backend)
        with process_that_answers("never") as port:
            on_a_busy_machine = findings(port)
    assert answered.clean, str(answered)
    with process_that_answers("never") as port:
        assert on_a_busy_machine == findings(port) == [("FINDINGS", "replaced")]


class Clock:
    """What `silence` reads instead of the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(silence, "monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("times", [1, 10])
def test_work_that_never_rests_is_waited_for_as_long_as_the_limit_says(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Computing(OutsideWork):
        def at_work(self) -> str:
            return "the thread miner"

        def work_done(self) -> int:
            return round(clock.now * 1e9)

    clock = Clock(monkeypatch)
    monkeypatch.setattr(silence, "waits_for_processor", lambda children: {})
    outside = Computing(list, lambda: True)
    pause = Pause(outside, 1000.0, Limits(work=2.0, hang_after=0.06).longer(times))
    began = clock.now
    while rest := pause.seconds_to_wait():
        clock.sleep(rest)
    assert clock.now - began == pytest.approx(2.0 * times, abs=2 * silence.SLICE)
    assert outside.passed_over == f"the thread miner, at work for {2 * times} s"


def test_a_second_of_silence_counts_less_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(silence, "share_of_processors", lambda: 0.25)
    listening = PeerSilence()
    clock.sleep(0.04)
    assert listening.look() == pytest.approx(0.01)


def test_a_look_that_comes_late_counts_no_more_than_two_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(silence, "share_of_processors", lambda: 1.0)
    listening = PeerSilence()
    clock.sleep(5.0)  # this process had no processor, or somebody stopped it
    assert listening.look() == pytest.approx(2 * silence.SLICE)


def test_time_in_which_a_thread_of_ours_wants_a_processor_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    waits = {"self/task/1": 5_000_000_000}
    monkeypatch.setattr(silence, "waits_for_processor", lambda children: dict(waits))
    listening = OwnSilence(list)
    clock.sleep(0.04)
    waits["self/task/1"] += 30_000_000
    waits["self/task/2"] = 7_000_000_000  # new: what it waited before is not known
    assert listening.look() == pytest.approx(0.01)
    clock.sleep(0.01)
    waits["self/task/1"] += 30_000_000_000
    assert listening.look() == pytest.approx(0.011)  # a wait ends on any machine


@in_both
def test_a_thread_that_sleeps_on_is_found_on_a_busy_machine_too(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leaves_a_thread() -> None:
        try:
            await anyio.sleep(1)
        finally:
            threading.Thread(target=time.sleep, args=[1.0], name="sleeper", daemon=True).start()

    monkeypatch.setattr(silence, "share_of_processors", lambda: 0.1)
    with busy_machine():
        result = audited(leaves_a_thread, backend, phases="early", limits=Limits(linger=0.15))
    assert [finding.kind for finding in result.findings] == ["thread"], str(result)


def test_there_is_a_share_of_the_processors_for_everybody() -> None:
    assert 0.1 <= share_of_processors() <= 1
    with busy_machine():
        time.sleep(0.1)
        assert share_of_processors() < 1


# What is there to wait for


def test_a_socket_that_only_listens_is_no_work() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outside = OutsideWork(lambda: [listener.fileno()], bool)
        assert outside.may_come()
        assert not outside.connected()
        with socket.create_connection(listener.getsockname()) as client:
            port = listener.getsockname()[1]
            there = OutsideWork(lambda: [listener.fileno(), client.fileno()], bool)
            assert there.connected() == f"a socket connected to 127.0.0.1:{port}"


def test_what_was_there_before_is_not_the_scenarios() -> None:
    with thread_that_answers(), process_that_answers("0"):
        assert not OutsideWork(list, bool).at_work()


# What makes no sense


@pytest.mark.parametrize("patience", [-1, 0, "2", True, float("nan"), float("inf")])
def test_a_patience_that_is_no_time_is_refused(patience: Any) -> None:
    with pytest.raises(ValueError, match="patience must be a number of seconds above 0, not"):
        audit(works_in_a_thread, real_io=True, patience=patience)
    with pytest.raises(ValueError, match="patience must be a number of seconds above 0, not"):
        Limits(patience=patience)


@pytest.mark.parametrize("word", ["-1", "0", "soon"])
def test_so_it_is_on_the_command_line(command: CommandLine, word: str) -> None:
    answer = command.audit("jobs.py", "--real-io", f"--patience={word}")
    assert answer.code == 2
    assert f"argument --patience: '{word}' is not a number above 0" in answer.err


def test_the_command_line_hands_it_on(command: CommandLine) -> None:
    command.write(
        "jobs.py",
        """
        import anyio, subprocess
        async def scenario():
            sleeper = subprocess.Popen(["sleep", "60"])
            await anyio.sleep(0)
            sleeper.kill()
            sleeper.wait()
        """,
    )
    answer = command.audit("jobs.py", "--real-io", "--patience", "0.5", "--stops", "cancel")
    assert answer.code == 1, answer.err
    assert "--real-io --patience 0.5 --at" in answer.out
    assert "real_io=True, patience=0.5" in answer.out
