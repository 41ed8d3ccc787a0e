"""Findings have the right names: one cause is one finding, called what it is, made where it was made."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import anyio
import pytest

from quiesce.audit import audit
from quiesce.audit.model.steady_names import record_temporary_names, steady, steady_object
from tests.world import world_names

pytestmark = pytest.mark.time_limit(60)

on_asyncio = pytest.mark.parametrize("backend", [name for name in world_names() if name != "trio"])
in_both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


# One cause is one finding


@in_both
def test_a_temporary_file_left_open_is_one_finding(backend: str) -> None:
    left: list[int] = []

    async def scenario() -> None:
        descriptor, name = tempfile.mkstemp(prefix="job-")
        os.unlink(name)
        left.append(descriptor)
        for _ in range(4):
            await anyio.sleep(1)
        left.remove(descriptor)
        os.close(descriptor)

    try:
        findings = audit(scenario, backend=backend).findings
    finally:
        for descriptor in left:
            os.close(descriptor)
    folder = tempfile.gettempdir()
    assert [f"{f.kind} {f.what}" for f in findings] == [f"descriptor {folder}/job-* (deleted)"]
    assert findings[0].runs > 4
    assert "job-*" not in findings[0].example.detail


@in_both
def test_a_file_in_a_temporary_folder_is_one_finding(backend: str) -> None:
    async def scenario() -> None:
        with tempfile.TemporaryDirectory(prefix="run") as folder:
            log = open(os.path.join(folder, "messages.log"), "w")  # noqa: ASYNC230, SIM115
            await anyio.sleep(1)
            await anyio.sleep(1)
            log.close()

    (finding,) = audit(scenario, backend=backend).findings
    folder = tempfile.gettempdir()
    assert finding.what == f"unclosed file <{folder}/run*/messages.log>"


def test_files_that_are_not_temporary_are_told_apart() -> None:
    async def scenario() -> None:
        for name in (os.devnull, "/dev/zero"):
            file = open(name)  # noqa: ASYNC230, SIM115
            await asyncio.sleep(1)
            file.close()

    assert len(audit(scenario, stops="cancel").findings) == 2


def test_a_stream_writer_is_one_finding_whatever_its_buffers_hold() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            for size in (0, 10, 100):
                theirs.send(b"x" * size)
                await asyncio.sleep(1)
                assert size == 0 or await reader.read(5)
            writer.close()

    unclosed = [f for f in audit(scenario, real_io=True, stops="cancel").findings if f.kind == "unclosed"]
    assert [finding.what for finding in unclosed] == ["unclosed <StreamWriter>"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("socket:[12345]", "socket:[N]"),
        ("/run/aed121eb-ec9c-43f6-91bf-2ad90f1d44f0.sock", "/run/N.sock"),
        ("worker_b4d557bc9bce865c", "worker_N"),
        ("decode", "decode"),
        ("/tmp/tmpab1_fgh8/out", "/tmp/tmp*/out"),
        ("/tmp/tmpfiles", "/tmp/tmpfiles"),
    ],
)
def test_a_name_has_no_part_that_differs_from_run_to_run(text: str, name: str) -> None:
    assert steady(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("unclosed <socket.socket fd=6, family=2, raddr=('::1', 80)>", "unclosed <socket.socket>"),
        ("unclosed transport <A a=<B b=1>>", "unclosed transport <A>"),
        ("unclosed file <_io.FileIO name='/dev/null' mode='rb'>", "unclosed file </dev/null>"),
        ("unclosed file <_io.FileIO name=7 mode='rb'>", "unclosed file <N>"),
        ("TypeError: '<' not supported, nor '>'", "TypeError: '<' not supported, nor '>'"),
        ("cut off <Stream buf", "cut off <Stream buf"),
    ],
)
def test_an_object_is_named_by_its_type(text: str, name: str) -> None:
    assert steady_object(text) == name


def test_temporary_names_are_as_before_when_nobody_notes_them_any_more() -> None:
    with record_temporary_names():
        noted = tempfile.mktemp(prefix="x")
    assert steady(noted).endswith("/x*")
    assert type(tempfile._get_candidate_names()).__module__ == "tempfile"  # type: ignore[attr-defined]


# What the loop's exception handler is told


@on_asyncio
def test_an_error_that_the_program_reports_is_not_a_callback_that_failed(backend: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for seconds in (0.001, 0.002):
            await asyncio.sleep(seconds)
            loop.call_exception_handler(
                {"message": f"try {seconds} failed", "exception": OSError("no route")}
            )

    result = audit(scenario, backend=backend, stops="cancel", phases="early")
    assert result.clean, str(result)
    (finding,) = result.findings
    assert (finding.kind, finding.what, finding.severity) == ("reported", "try N.N failed", "warning")
    assert finding.example.detail == "OSError: no route"
    assert finding.site is not None
    assert finding.site.file == __file__


@on_asyncio
def test_an_error_in_a_callback_is_one_though_the_program_reports_another(backend: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def fails() -> None:
            loop.call_exception_handler({"message": "about to fail"})
            raise OSError("no route")

        loop.call_soon(fails)
        await asyncio.sleep(0.01)

    result = audit(scenario, backend=backend, stops="cancel", phases="early")
    assert {finding.kind for finding in result.findings} == {"callback", "reported"}, str(result)
    (error,) = result.errors
    assert error.what.endswith("fails")


# Threads that wait in their pool


class CountedQueue:
    """Somebody's wrapper round the queue of a pool."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.taken = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, *args: Any, **options: Any) -> Any:
        item = self._wait(*args, **options)
        self.taken += 1
        return item

    def _wait(self, *args: Any, **options: Any) -> Any:
        return self._inner.get(*args, **options)


@contextmanager
def wrapped_pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        pool._work_queue = CountedQueue(pool._work_queue)  # type: ignore[assignment]
        yield pool


def test_a_thread_that_waits_behind_a_wrapper_is_idle() -> None:
    pools = ExitStack()

    async def scenario() -> None:
        pool = pools.enter_context(wrapped_pool())
        await asyncio.get_running_loop().run_in_executor(pool, int)
        await asyncio.sleep(1)

    with pools:
        result = audit(scenario, real_io=True, stops="cancel")
    assert result.findings == [], str(result)


def test_a_thread_that_works_behind_a_wrapper_is_at_work() -> None:
    is_over = threading.Event()
    pools = ExitStack()

    async def scenario() -> None:
        pools.enter_context(wrapped_pool()).submit(is_over.wait)  # a wait, but not for work
        await asyncio.sleep(1)

    with pools:
        try:
            result = audit(scenario, real_io=True, stops="cancel", phases="unstarted")
        finally:
            is_over.set()
    assert [finding.kind for finding in result.findings] == ["thread"], str(result)


# Where something was made

SOME_LIBRARY = """
import asyncio
import trio

async def poll():
    if asyncio._get_running_loop() is None:
        await trio.sleep_forever()
    await asyncio.Event().wait()

def start():
    if asyncio._get_running_loop() is None:
        trio.lowlevel.spawn_system_task(poll)
        return None
    return asyncio.create_task(poll())
"""


@in_both
def test_made_at_is_the_library_that_made_it_and_then_who_called_it(backend: str) -> None:
    file = os.path.join(sysconfig.get_path("purelib"), "some_library", "client.py")
    library: dict[str, Any] = {}
    exec(compile(SOME_LIBRARY, file, "exec"), library)

    async def scenario() -> None:
        task = library["start"]()
        await anyio.sleep(1)
        if task is not None:
            task.cancel()

    result = audit(scenario, backend=backend, stops="cancel")
    (finding,) = result.findings
    assert finding.kind == "leaked"
    assert finding.site is not None
    assert (finding.site.file, finding.site.function) == (file, "start"), str(result)
    assert finding.key == "leaked poll some_library/client.py:start"
    (made_at,) = [line for line in str(result).splitlines() if "made at" in line]
    assert re.search(r"some_library/client.py:\d+ in start <- \S*test_names.py:\d+ in .*scenario$", made_at)
