"""What is the fault of the interpreter's own asyncio is said to be that, and hides nothing of the program's."""

from __future__ import annotations

import asyncio
import json
import socket
import sys

import pytest

from quiesce.audit import AuditResult, audit
from tests.world import world_names

pytestmark = pytest.mark.time_limit(60)

HAS_OLD_WAIT_FOR = sys.version_info < (3, 12)
each_asyncio = pytest.mark.parametrize("backend", [name for name in world_names() if name != "trio"])


def told(result: AuditResult) -> set[tuple[str, str, str]]:
    return {
        (finding.severity, finding.kind, finding.what.rpartition(".<locals>.")[2])
        for finding in result.findings
    }


async def work() -> None:
    await asyncio.sleep(0.01)


LOST_BY_PYTHON = {("warning", "swallowed", "scenario in asyncio.wait_for")} if HAS_OLD_WAIT_FOR else set()


@each_asyncio
def test_a_cancel_that_wait_for_loses_is_the_interpreters(backend: str) -> None:
    async def scenario() -> None:
        await asyncio.wait_for(work(), 5)

    result = audit(scenario, backend=backend, stops="cancel,timeout")
    assert result.clean, str(result)
    assert told(result) == LOST_BY_PYTHON
    assert all("wait_for of Python 3.11" in finding.fault for finding in result.findings)
    assert ("Python's fault: asyncio.wait_for" in str(result)) == HAS_OLD_WAIT_FOR
    assert [found["fault"] for found in json.loads(json.dumps(result.as_dict()))["findings"]] == [
        finding.fault for finding in result.findings
    ]


@each_asyncio
def test_so_is_one_that_is_lost_in_a_task_that_the_scenario_awaits(backend: str) -> None:
    async def waits() -> None:
        await asyncio.wait_for(work(), 5)

    async def scenario() -> None:
        await asyncio.create_task(waits())

    result = audit(scenario, backend=backend, stops="shutdown", phases="late")
    assert result.clean, str(result)
    assert told(result) == LOST_BY_PYTHON


@each_asyncio
def test_a_cancel_that_the_program_swallows_around_wait_for_is_the_programs(backend: str) -> None:
    async def scenario() -> None:
        try:
            await asyncio.wait_for(work(), 5)
        except asyncio.CancelledError:
            pass

    result = audit(scenario, backend=backend, stops="cancel")
    assert told(result) == {("error", "swallowed", "scenario"), *LOST_BY_PYTHON}, str(result)
    ours = {finding.key for finding in result.findings if finding.fault}
    assert not ours.intersection(finding.key for finding in result.errors)


@each_asyncio
def test_a_second_cancel_that_the_program_swallows_is_the_programs(backend: str) -> None:
    async def scenario() -> None:
        await asyncio.wait_for(work(), 5)
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass

    result = audit(scenario, backend=backend, stops="cancel", phases="late", depth=2)
    assert ("error", "swallowed", "scenario") in told(result), str(result)


async def serve_one(*, keeps_another: list[socket.socket] | None = None) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        with socket.create_connection(address) as client:
            if keeps_another is not None:
                keeps_another.append(client.dup())
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, b"x")
            await loop.sock_recv(client, 1)
            if keeps_another is not None:
                keeps_another.pop().close()


def test_a_connection_that_asyncio_accepts_and_loses_is_the_interpreters() -> None:
    async def scenario() -> None:
        await serve_one()

    result = audit(scenario, real_io=True, stops="shutdown", phases="unstarted")
    assert result.clean, str(result)
    assert ("warning", "unclosed", "unclosed <socket.socket> accepted by asyncio") in told(result), str(
        result
    )
    assert all(finding.fault for finding in result.findings), str(result)


def test_a_connection_that_the_program_loses_beside_it_is_the_programs() -> None:
    kept: list[socket.socket] = []

    async def scenario() -> None:
        await serve_one(keeps_another=kept)

    try:
        result = audit(scenario, real_io=True, stops="shutdown", phases="unstarted")
    finally:
        for each in kept:
            each.close()
    assert ("warning", "unclosed", "unclosed <socket.socket> accepted by asyncio") in told(result), str(
        result
    )
    assert ("error", "descriptor", "socket:[N]") in told(result), str(result)


@each_asyncio
def test_a_task_that_fails_in_its_eager_start_crashes_nothing(backend: str) -> None:
    # Python 3.12.0 to 3.12.4 crash when such a task is asked for its coroutine (CPython issue 122332).
    async def fail() -> None:
        raise LookupError("failed")

    async def scenario() -> None:
        asyncio.create_task(fail())
        await work()

    result = audit(scenario, backend=backend, stops="cancel", phases="early")
    assert {(finding.kind, finding.what.rpartition(".")[2]) for finding in result.findings} == {
        ("unretrieved", "a future with LookupError" if backend == "asyncio-eager" else "fail")
    }
