"""Calls of an SDK that are contained: what they start ends with them, however they are stopped."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from functools import partial
from typing import Any

import pytest

import quiesce
from quiesce import Grace, Reason
from quiesce.dropin.connected import Connection
from quiesce.dropin.contained import Call
from tests.world import asyncio_only

pytestmark = asyncio_only

QUICK = Grace(cancel=0.05, terminate=0.05, kill=0.0)
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Sdk:
    """Starts a task of its own, and needs time to clean up, as that task does."""

    def __init__(self) -> None:
        self.cleaned: list[str] = []
        self.is_up = asyncio.Event()
        self.kept: list[asyncio.Task[Any]] = []

    async def work(self, name: str) -> None:
        self.is_up.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            self.cleaned.append(name)

    def start(self, name: str) -> None:
        self.kept.append(asyncio.create_task(self.work(name)))

    async def run(self) -> str:
        self.start("task")
        await self.work("call")
        return "done"

    async def run_and_fail(self) -> None:
        self.start("task")
        await self.is_up.wait()
        raise LookupError("failed")

    async def run_to_the_end(self) -> str:
        self.start("task")
        await self.is_up.wait()
        return "done"


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_cancelled_call_has_cleaned_up_when_its_caller_is_back(times: int) -> None:
    sdk = Sdk()
    call = Call(sdk.run, name="run")
    task = asyncio.create_task(call.result())
    await sdk.is_up.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(sdk.cleaned) == ["call", "task"]
    assert call.report is not None
    assert call.report.clean


async def test_a_timeout_around_a_call_raises_timeout_error() -> None:
    sdk = Sdk()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await Call(sdk.run, name="run").result()
    assert sorted(sdk.cleaned) == ["call", "task"]


async def test_the_error_of_a_call_is_raised_as_itself_when_all_has_ended() -> None:
    sdk = Sdk()
    with pytest.raises(LookupError, match="failed") as raised:
        await Call(sdk.run_and_fail, name="run").result()
    assert sdk.cleaned == ["task"]
    assert not hasattr(raised.value, "__notes__")


async def test_a_call_that_returns_leaves_nothing_behind() -> None:
    sdk = Sdk()
    call = Call(sdk.run_to_the_end, name="run")
    assert await call.result() == "done"
    assert sdk.cleaned == ["task"]
    assert call.report is not None
    assert [outcome.state for outcome in call.report.outcomes] == ["cancelled"]


async def test_what_is_kept_may_outlive_the_call() -> None:
    sdk = Sdk()
    call = Call(sdk.run_to_the_end, name="run", keep=lambda task: task in sdk.kept)
    await call.result()
    assert sdk.cleaned == []
    sdk.kept[0].cancel()
    await asyncio.wait(sdk.kept)


@pytest.mark.real_time
async def test_a_process_that_belongs_to_something_else_may_outlive_the_call() -> None:
    process: list[asyncio.subprocess.Process] = []

    async def start() -> None:
        process.append(await asyncio.create_subprocess_exec("sleep", "60"))

    call = Call(start, name="start", leaves=lambda proc: proc.comm == "sleep")
    await call.result()
    assert call.report is not None
    assert call.report.clean
    assert process[0].returncode is None
    process[0].kill()
    await process[0].wait()


async def test_what_does_not_end_is_a_note_on_the_error(caplog: pytest.LogCaptureFixture) -> None:
    released = asyncio.Event()

    async def deaf() -> None:
        while not released.is_set():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    tasks: list[asyncio.Task[None]] = []

    async def fail() -> None:
        tasks.append(asyncio.create_task(deaf()))
        await asyncio.sleep(0.01)
        raise LookupError("failed")

    with caplog.at_level(logging.WARNING, "quiesce"), pytest.raises(LookupError) as raised:
        await Call(fail, name="run", grace=QUICK).result()
    assert "left: task" in raised.value.__notes__[0]
    assert "left: task" in caplog.text
    released.set()
    tasks[0].cancel()
    await asyncio.wait(tasks)


async def test_a_call_that_its_scope_stops_is_cancelled_for_its_caller() -> None:
    sdk = Sdk()
    scope = await quiesce.Scope.open()
    task = asyncio.create_task(Call(sdk.run, name="run", scope=scope).result())
    await sdk.is_up.wait()
    await scope.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(sdk.cleaned) == ["call", "task"]


@pytest.mark.parametrize("early", [True, False])
async def test_a_call_can_be_stopped_without_waiting(early: bool) -> None:
    sdk = Sdk()
    call = Call(sdk.run, name="run")
    if early:
        call.cancel(Reason("user", "at once"))
    task = asyncio.create_task(call.result())
    if not early:
        await sdk.is_up.wait()
        call.cancel(Reason("user", "at once"))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(sdk.cleaned) in ([], ["call", "task"])


async def test_a_call_sees_the_callers_context() -> None:
    async def look() -> str:
        found = variable.get()
        variable.set("inside")
        return found

    variable.set("outside")
    assert await Call(look, name="look").result() == "outside"
    assert variable.get() == "outside"


# Connections


async def fail_to_connect(sdk: Sdk) -> None:
    sdk.start("task")
    await sdk.is_up.wait()
    raise ConnectionError("refused")


class Client:
    """Holds a task group from `connect` to `disconnect`, which only the task that entered it may exit."""

    def __init__(self) -> None:
        self.sdk = Sdk()
        self.entered_by: asyncio.Task[Any] | None = None

    async def connect(self) -> str:
        self.entered_by = asyncio.current_task()
        self.sdk.start("reader")
        await self.sdk.is_up.wait()
        return "connected"

    async def disconnect(self) -> None:
        assert asyncio.current_task() is self.entered_by

    async def send(self, name: str) -> str:
        self.sdk.start(name)
        await asyncio.sleep(0.01)
        return variable.get()

    async def fail(self) -> None:
        await asyncio.sleep(0.01)
        raise LookupError("failed")

    def connection(self) -> Connection[str]:
        return Connection(self.connect, self.disconnect, name="client")


async def test_a_connection_is_opened_and_closed_from_any_tasks() -> None:
    client = Client()
    connection = client.connection()
    assert await asyncio.create_task(connection.open()) == "connected"
    was_open = connection.is_open
    report = await asyncio.create_task(connection.close())
    assert report.clean
    assert (was_open, connection.is_open) == (True, False)
    assert client.sdk.cleaned == ["reader"]


async def test_a_connection_that_fails_to_open_leaves_nothing_behind() -> None:
    sdk = Sdk()
    with pytest.raises(ConnectionError, match="refused"):
        await Connection(partial(fail_to_connect, sdk), sdk.run, name="client").open()
    assert sdk.cleaned == ["task"]


async def test_what_a_users_call_starts_belongs_to_the_connection() -> None:
    client = Client()
    connection = client.connection()
    await connection.open()
    assert await connection.call(client.send, "sender") == "unset"
    await connection.close()
    assert sorted(client.sdk.cleaned) == ["reader", "sender"]


async def test_a_users_call_raises_its_error_and_is_cancelled_as_any() -> None:
    client = Client()
    connection = client.connection()
    await connection.open()
    with pytest.raises(LookupError, match="failed"):
        await connection.call(client.fail)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await connection.call(client.sdk.work, "call")
    assert client.sdk.cleaned == ["call"]
    await connection.close()


async def test_a_users_call_after_the_end_is_an_ordinary_call() -> None:
    client = Client()
    connection = client.connection()
    await connection.open()
    await connection.close()
    with pytest.raises(LookupError, match="failed"):
        await connection.call(client.fail)
