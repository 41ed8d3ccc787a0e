"""A tour of the kernel: six ways to lose control of what you started, and the same with quiesce.

    make run

Everything printed is looked up when it is printed: tasks in `asyncio.all_tasks()`, processes in the process table.
It needs no terminal and no input, takes a few seconds, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from quiesce import Process, Scope, current_token, guarded, own, run, stream, to_thread

ORDINARY, OURS = "plain asyncio", "with quiesce"
left_behind = {ORDINARY: 0, OURS: 0}
innocents_cancelled = {ORDINARY: 0, OURS: 0}


def say(text: object) -> None:
    print(textwrap.indent(str(text), "      "), flush=True)


def say_what_still_runs(who: str) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    names = sorted(task.get_name() for task in tasks)
    left_behind[who] += len(names)
    say(f"still running: {', '.join(names) or 'no task'}")


# 1. A guardrail fails while the model call beside it goes on -----------------------------------------------------


class OffTopic(Exception):
    pass


async def ask_model(spent: list[str]) -> str:
    for _ in range(100):
        await asyncio.sleep(0.02)
        spent.append("token")
    return "an answer"


async def check_topic() -> None:
    await asyncio.sleep(0.05)
    raise OffTopic("the question is off topic")


async def guardrail_with_gather() -> None:
    spent: list[str] = []
    model = asyncio.create_task(ask_model(spent), name="model call")
    try:
        await asyncio.gather(model, asyncio.create_task(check_topic(), name="guard"))
    except OffTopic as verdict:
        say(f"refused: {verdict}")
    say_what_still_runs(ORDINARY)
    so_far = len(spent)
    await asyncio.sleep(0.2)
    say(f"the model call has spent {len(spent) - so_far} more tokens since")


async def guardrail_with_guarded() -> None:
    spent: list[str] = []
    try:
        await guarded(partial(ask_model, spent), check_topic)
    except OffTopic as verdict:
        say(f"refused: {verdict}")
    say_what_still_runs(OURS)
    so_far = len(spent)
    await asyncio.sleep(0.2)
    say(f"the model call has spent {len(spent) - so_far} more tokens since")


# 2. A session that is closed before its tasks are -----------------------------------------------------------------


async def write_records() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.1)
        say("the last records are written")


async def session_that_only_cancels() -> None:
    tasks = [asyncio.create_task(write_records(), name="writer")]
    await asyncio.sleep(0.01)
    for task in tasks:  # this is its close()
        task.cancel()
    await asyncio.sleep(0)
    say("closed")
    say_what_still_runs(ORDINARY)
    await asyncio.wait(tasks)


async def session_with_a_scope() -> None:
    scope = await Scope.open("session")
    scope.spawn(write_records, name="writer")
    await asyncio.sleep(0.01)
    report = await scope.close()
    say("closed")
    say_what_still_runs(OURS)
    say(report)


# 3. A tool in a thread that never hears of the cancel -------------------------------------------------------------


def write_file(written: list[int], ended: threading.Event) -> None:
    """It looks at its token, as a good tool does; under `asyncio.to_thread` that is nobody's."""
    try:
        for number in range(40):
            if current_token().cancelled:
                return
            written.append(number)
            time.sleep(0.01)
    finally:
        ended.set()


async def tool_in_a_bare_thread() -> None:
    written: list[int] = []
    ended = threading.Event()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await asyncio.to_thread(write_file, written, ended)
    say(f"timed out; the thread has {'ended' if ended.is_set() else 'not ended'}")
    left_behind[ORDINARY] += not ended.is_set()
    so_far = len(written)
    await asyncio.to_thread(ended.wait)
    say(f"it has written {len(written) - so_far} more lines since")


async def tool_with_a_token() -> None:
    written: list[int] = []
    ended = threading.Event()
    async with Scope("tools") as scope:
        scope.spawn(to_thread, write_file, written, ended)
        await asyncio.sleep(0.1)
        report = await scope.close(reason="timed out")
    say(f"timed out; the thread has {'ended' if ended.is_set() else 'not ended'}")
    left_behind[OURS] += not ended.is_set()
    say(report)


# 4. Breaking out of a stream that has a task group inside ---------------------------------------------------------


async def answer() -> AsyncIterator[str]:
    """As in many SDKs: a reader in the background, as long as the stream is open."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever, name="reader")
        for word in ("to", "be", "or", "not"):
            yield word


async def innocent(cancels: list[str]) -> None:
    """What comes after the loop, in a task that nobody has cancelled."""
    for _ in range(5):
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError as error:
            cancels.append(str(error))


async def break_out_of_a_generator() -> None:
    cancels: list[str] = []

    def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        say(f"the event loop complains: {context.get('exception') or context['message']}")

    async def consume() -> None:
        async for word in answer():
            say(f"word: {word}")
            break
        gc.collect()
        await innocent(cancels)

    asyncio.get_running_loop().set_exception_handler(complain)
    await asyncio.wait([asyncio.create_task(consume())])
    say(f"the consumer was cancelled {len(cancels)} times in 5 awaits, though nobody cancelled it")
    innocents_cancelled[ORDINARY] += bool(cancels)
    say_what_still_runs(ORDINARY)


async def break_out_of_a_stream() -> None:
    cancels: list[str] = []
    async with stream(answer()) as words:
        async for word in words:
            say(f"word: {word}")
            break
    await innocent(cancels)
    say(f"the consumer was cancelled {len(cancels)} times in 5 awaits")
    innocents_cancelled[OURS] += bool(cancels)
    say_what_still_runs(OURS)
    say(words.report)


# 5. A process tree ------------------------------------------------------------------------------------------------

SERVER = ["sh", "-c", "sleep 30 & echo $!; wait"]  # as `npx some-server`: the real one is a grandchild


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    if Path("/proc/self").exists():
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def terminate_a_process() -> None:
    process = await asyncio.create_subprocess_exec(*SERVER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    grandchild = int(await process.stdout.readline())
    process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await process.wait()
    say(f"terminated; process {grandchild} is {'alive' if is_alive(grandchild) else 'gone'}")
    left_behind[ORDINARY] += is_alive(grandchild)
    with contextlib.suppress(ProcessLookupError):
        os.kill(grandchild, signal.SIGKILL)  # or it would outlive this tour
    await process.communicate()


async def close_a_process() -> None:
    process = await Process.open(SERVER, name="server")
    grandchild = int(await anext(process.lines()))
    report = await process.close()
    say(f"closed; process {grandchild} is {'alive' if is_alive(grandchild) else 'gone'}")
    left_behind[OURS] += is_alive(grandchild)
    say(report)


# 6. A context manager that is opened in one task and closed in another --------------------------------------------


@contextlib.asynccontextmanager
async def connect() -> AsyncIterator[str]:
    """As in many clients: a task group inside."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever, name="reader")
        yield "a connection"
        tasks.cancel_scope.cancel()


async def leave_in_another_task() -> None:
    connection = connect()

    async def opener() -> None:
        await connection.__aenter__()
        await asyncio.sleep(0.05)  # it has other things to do

    opening = asyncio.create_task(opener(), name="opener")
    await asyncio.sleep(0.01)
    try:
        await asyncio.create_task(leave(connection))
    except RuntimeError as error:
        say(f"RuntimeError: {error}")
    await asyncio.wait([opening])
    say(f"the opener was {'cancelled, though nobody cancelled it' if opening.cancelled() else 'left alone'}")
    innocents_cancelled[ORDINARY] += opening.cancelled()
    say_what_still_runs(ORDINARY)


async def leave(connection: contextlib.AbstractAsyncContextManager[str]) -> None:
    await connection.__aexit__(None, None, None)


async def close_from_another_task() -> None:
    connection = own(connect())
    opened = asyncio.get_running_loop().create_future()

    async def opener() -> None:
        opened.set_result(await connection.open())
        await asyncio.sleep(0.05)

    opening = asyncio.create_task(opener(), name="opener")
    report = await asyncio.create_task((await opened).close())
    await asyncio.wait([opening])
    say(f"the opener was {'cancelled' if opening.cancelled() else 'left alone'}")
    innocents_cancelled[OURS] += opening.cancelled()
    say_what_still_runs(OURS)
    say(report)


# ------------------------------------------------------------------------------------------------------------------

Scene = Callable[[], Awaitable[None]]

SCENES: list[tuple[str, Scene, Scene]] = [
    ("A guardrail fails while the model call goes on", guardrail_with_gather, guardrail_with_guarded),
    ("A session is closed before its tasks are", session_that_only_cancels, session_with_a_scope),
    ("A tool in a thread is cancelled", tool_in_a_bare_thread, tool_with_a_token),
    ("Breaking out of a stream", break_out_of_a_generator, break_out_of_a_stream),
    ("Stopping a process that has started another", terminate_a_process, close_a_process),
    ("Opened in one task, closed in another", leave_in_another_task, close_from_another_task),
]


def main() -> int:
    start = time.monotonic()
    print("quiesce: stop any agent, and know what is left")
    for number, (title, ordinary, ours) in enumerate(SCENES, 1):
        print(f"\n{number}. {title}")
        print(f"   {ORDINARY}:", flush=True)
        asyncio.run(in_a_task(ordinary))
        print(f"   {OURS}:", flush=True)
        run(ours)
    took = time.monotonic() - start
    print(f"\nLeft behind: {left_behind[ORDINARY]} by {ORDINARY}, {left_behind[OURS]} {OURS}.")
    print(f"Innocent tasks cancelled: {innocents_cancelled[ORDINARY]} and {innocents_cancelled[OURS]}.")
    print(f"It took {took:.1f} s.", end=" ")
    print("What you can rely on, and where that ends: docs/promises.md")
    return 1 if left_behind[OURS] or innocents_cancelled[OURS] else 0


async def in_a_task(scene: Scene) -> None:
    await scene()


if __name__ == "__main__":
    sys.exit(main())
