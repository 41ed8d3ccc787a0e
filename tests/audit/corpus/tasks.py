"""Tasks that nobody ends, waits for or looks at."""

from __future__ import annotations

import asyncio
import gc

from .entry import ASYNCIO, LONG, NOT_TRIO_CALLBACKS, NOT_TRIO_TASKS, TICK, Entry, Finds

# A helper task is cancelled at the end, and only there.


async def poll() -> None:
    await asyncio.Event().wait()  # stuck: forgotten-poller


async def forgets_its_poller() -> None:
    poller = asyncio.create_task(poll())  # leak: forgotten-poller
    await asyncio.sleep(TICK)
    poller.cancel()
    await asyncio.wait([poller])


async def groups_its_poller() -> None:
    async with asyncio.TaskGroup() as group:
        poller = group.create_task(poll())
        await asyncio.sleep(TICK)
        poller.cancel()


# The guardrail fails, and the model call that was gathered with it goes on.


async def guardrail() -> None:
    await asyncio.sleep(TICK)  # stop: guardrail-beside-model


async def model_call() -> None:
    await asyncio.sleep(LONG)


async def gathers_guardrail_and_model() -> None:
    await asyncio.gather(guardrail(), model_call())  # leak: guardrail-beside-model


async def groups_guardrail_and_model() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(guardrail())
        group.create_task(model_call())


# A session says that it is closed while its tasks still clean up.


class HastySession:
    def __init__(self) -> None:
        self.calls: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> None:
        self.calls.add(asyncio.create_task(self.tool_call()))  # leak: session-closed-early

    async def __aexit__(self, *exc: object) -> None:
        for call in self.calls:
            call.cancel()
        self.calls.clear()

    async def tool_call(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)


class PatientSession(HastySession):
    async def __aexit__(self, *exc: object) -> None:
        for call in self.calls:
            call.cancel()
        # gather, not wait: cancelled itself, it still ends only when its tasks have.
        await asyncio.gather(*self.calls, return_exceptions=True)


async def closes_before_its_tasks_end() -> None:
    async with HastySession():
        await asyncio.sleep(TICK)


async def closes_after_its_tasks_ended() -> None:
    async with PatientSession():
        await asyncio.sleep(TICK)


# A connection starts its loops when it is made, and nobody closes it when the caller is cancelled.


class Connection:
    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.loops.append(asyncio.create_task(self.send_loop()))  # leak: connection-loops/sender
        self.loops.append(asyncio.create_task(self.dispatch_loop()))  # leak: connection-loops/dispatcher

    async def send_loop(self) -> None:
        while True:
            await self.outgoing.get()

    async def dispatch_loop(self) -> None:
        while True:
            await self.incoming.get()

    async def listen(self) -> None:
        self.outgoing.put_nowait(b"initialize")
        await asyncio.sleep(TICK)

    async def close(self) -> None:
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)


async def run_agent_and_hope() -> None:
    connection = Connection()
    connection.start()
    await connection.listen()
    await connection.close()


async def run_agent_and_close() -> None:
    connection = Connection()
    connection.start()
    try:
        await connection.listen()
    finally:
        await connection.close()


# A task that nobody holds is pending when the collector comes.


async def beat() -> None:
    await asyncio.get_running_loop().create_future()


async def drops_its_heartbeat() -> None:
    heartbeat = asyncio.create_task(beat())  # leak: collected-heartbeat
    try:
        await asyncio.sleep(TICK)
        heartbeat.cancel()
        await asyncio.wait([heartbeat])
    except asyncio.CancelledError:
        del heartbeat
        gc.collect()  # as happens to every program at some time
        raise


async def keeps_its_heartbeat() -> None:
    async with asyncio.TaskGroup() as group:
        heartbeat = group.create_task(beat())
        await asyncio.sleep(TICK)
        heartbeat.cancel()


# Shielded work goes on when its caller has left.


async def save() -> None:
    await asyncio.sleep(LONG)


async def leaves_a_shielded_save() -> None:
    await asyncio.shield(save())  # leak: shielded-save


async def waits_for_a_shielded_save() -> None:
    saving = asyncio.ensure_future(save())
    try:
        await asyncio.shield(saving)
    except asyncio.CancelledError:
        await asyncio.wait([saving])
        raise


# The first answer wins, and the slower one goes on, stopped or not.


async def fast_mirror() -> None:
    await asyncio.sleep(TICK)


async def slow_mirror() -> None:
    await asyncio.sleep(LONG)


async def takes_the_first_answer() -> None:
    fast = asyncio.ensure_future(fast_mirror())
    slow = asyncio.ensure_future(slow_mirror())  # leak: race-loser
    await asyncio.wait([fast, slow], return_when=asyncio.FIRST_COMPLETED)


async def ends_the_slower_answer() -> None:
    async with asyncio.TaskGroup() as group:
        mirrors = [group.create_task(fast_mirror()), group.create_task(slow_mirror())]
        await asyncio.wait(mirrors, return_when=asyncio.FIRST_COMPLETED)
        for mirror in mirrors:
            mirror.cancel()


# A task's error is waited for, and never looked at.


async def upload() -> None:
    await asyncio.sleep(TICK)  # stop: unseen-error


async def ignores_how_the_upload_ended() -> None:
    uploading = asyncio.create_task(upload())  # leak: unseen-error
    await asyncio.wait([uploading])


async def looks_how_the_upload_ended() -> None:
    uploading = asyncio.create_task(upload())
    await asyncio.wait([uploading])
    uploading.result()


# A timer outlives the object that it was set for.


class Buffer:
    def __init__(self) -> None:
        self.is_closed = False
        self.timer = asyncio.get_running_loop().call_later(2 * TICK, self.flush)

    def flush(self) -> None:
        if self.is_closed:
            raise ValueError("flush of a closed buffer")


async def forgets_its_timer() -> None:
    buffer = Buffer()
    try:
        await asyncio.sleep(3 * TICK)
    finally:
        buffer.is_closed = True


async def cancels_its_timer() -> None:
    buffer = Buffer()
    try:
        await asyncio.sleep(3 * TICK)
    finally:
        buffer.is_closed = True
        buffer.timer.cancel()


# An error that the program reports to the loop by its own hand is handled.


async def reports_its_stop() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError as error:
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "stopped", "exception": error})  # leak: reports-its-stop
        raise


async def keeps_its_stop_to_itself() -> None:
    await asyncio.sleep(TICK)


ENTRIES = [
    Entry(
        "forgotten-poller",
        forgets_its_poller,
        groups_its_poller,
        (
            Finds(
                "leaked",
                "poll",
                "cancel/early",
                leak="forgotten-poller",
                stuck="forgotten-poller",
            ),
        ),
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
    Entry(
        "guardrail-beside-model",
        gathers_guardrail_and_model,
        groups_guardrail_and_model,
        (
            Finds(
                "late",
                "model_call",
                "raise/late",
                leak="guardrail-beside-model",
                stop="guardrail-beside-model",
                only=("raise/late",),
            ),
        ),
        {"stops": "cancel,shutdown,raise"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
    Entry(
        "session-closed-early",
        closes_before_its_tasks_end,
        closes_after_its_tasks_ended,
        (Finds("outlived", "HastySession.tool_call", "baseline", leak="session-closed-early"),),
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
    Entry(
        "connection-loops",
        run_agent_and_hope,
        run_agent_and_close,
        (
            Finds("leaked", "Connection.send_loop", "cancel/early", leak="connection-loops/sender"),
            Finds("leaked", "Connection.dispatch_loop", "cancel/early", leak="connection-loops/dispatcher"),
        ),
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
    Entry(
        "collected-heartbeat",
        drops_its_heartbeat,
        keeps_its_heartbeat,
        (Finds("destroyed", "beat", "cancel/early", leak="collected-heartbeat"),),
        {"stops": "cancel"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
    Entry(
        "shielded-save",
        leaves_a_shielded_save,
        waits_for_a_shielded_save,
        (Finds("late", "save", "cancel/early", leak="shielded-save"),),
        {"stops": "cancel,timeout"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
    Entry(
        "race-loser",
        takes_the_first_answer,
        ends_the_slower_answer,
        (Finds("late", "slow_mirror", "baseline", leak="race-loser"),),
        {"stops": "shutdown"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
    Entry(
        "unseen-error",
        ignores_how_the_upload_ended,
        looks_how_the_upload_ended,
        (
            Finds(
                "unretrieved",
                "upload",
                "raise/late",
                leak="unseen-error",
                stop="unseen-error",
                says="the audit made this fail",
            ),
        ),
        {"stops": "raise"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_TASKS,
    ),
    Entry(
        "forgotten-timer",
        forgets_its_timer,
        cancels_its_timer,
        (Finds("callback", "Buffer.flush", "cancel/early", says="flush of a closed buffer"),),
        worlds=ASYNCIO,
        left_out=NOT_TRIO_CALLBACKS,
    ),
    Entry(
        "reports-its-stop",
        reports_its_stop,
        keeps_its_stop_to_itself,
        (
            Finds(
                "reported",
                "stopped",
                "cancel/early",
                leak="reports-its-stop",
                says="CancelledError",
                severity="warning",
            ),
        ),
        worlds=ASYNCIO,
        left_out=NOT_TRIO_CALLBACKS,
    ),
]
