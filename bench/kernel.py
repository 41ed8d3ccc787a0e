"""What the kernel costs, beside its peers in one run.

    make bench                     # all of it
    python bench/kernel.py scopes  # one part: scopes, trio, streams, own, threads, tokens, many, import, exec

Ratios are to the first column; below 1 is cheaper than the peer. docs/performance.md holds a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import platform
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.metadata import version
from resource import RUSAGE_CHILDREN, getrusage

import anyio
import anyio.to_thread
import trio
from measure import best_of, table

import quiesce
from quiesce import CancelToken, Scope

SIZES = {1: 60, 10: 60, 1000: 40}


def on_asyncio(timed: Callable[[], Awaitable[float]]) -> float:
    async def main() -> float:
        return await timed()

    return asyncio.run(main())


def on_trio(timed: Callable[[], Awaitable[float]]) -> float:
    async def main() -> float:
        return await timed()

    return trio.run(main)


class Stop(Exception):
    pass


async def nothing() -> None:
    pass


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


# Finish: n children that end by themselves. Cancel: n children that wait, cancelled and drained.


async def finish_task_group(n: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(nothing())


async def finish_anyio(n: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(n):
            group.start_soon(nothing)


async def finish_nursery(n: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(n):
            nursery.start_soon(nothing)


async def finish_scope(n: int) -> None:
    async with Scope() as scope:
        for _ in range(n):
            scope.spawn(nothing)


async def cancel_task_group(n: int) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(n):
                group.create_task(for_ever())
            await asyncio.sleep(0)
            raise Stop
    except* Stop:
        pass


async def cancel_anyio(n: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(n):
            group.start_soon(anyio.sleep_forever)
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def cancel_nursery(n: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(n):
            nursery.start_soon(trio.sleep_forever)
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def cancel_scope_asyncio(n: int) -> None:
    scope = await Scope.open()
    for _ in range(n):
        scope.spawn(for_ever)
    await asyncio.sleep(0)
    await scope.close()


async def cancel_scope_trio(n: int) -> None:
    scope = await Scope.open()
    for _ in range(n):
        scope.spawn(trio.sleep_forever)
    await trio.lowlevel.checkpoint()
    await scope.close()


def scopes() -> None:
    """Scopes on asyncio."""
    finish = {"asyncio.TaskGroup": finish_task_group, "Scope": finish_scope, "anyio TaskGroup": finish_anyio}
    cancel = {
        "asyncio.TaskGroup": cancel_task_group,
        "Scope": cancel_scope_asyncio,
        "anyio TaskGroup": cancel_anyio,
    }
    rows = {}
    for size, rounds in SIZES.items():
        rows[f"finish {size}"] = best_of(on_asyncio, finish, size, rounds)
    for size, rounds in SIZES.items():
        rows[f"cancel and drain {size}"] = best_of(on_asyncio, cancel, size, rounds)
    table("Scopes on asyncio", rows)


def trio_scopes() -> None:
    """Scopes on trio."""
    finish = {"trio nursery": finish_nursery, "Scope": finish_scope, "anyio TaskGroup": finish_anyio}
    cancel = {"trio nursery": cancel_nursery, "Scope": cancel_scope_trio, "anyio TaskGroup": cancel_anyio}
    rows = {}
    for size, rounds in SIZES.items():
        rows[f"finish {size}"] = best_of(on_trio, finish, size, rounds)
    for size, rounds in SIZES.items():
        rows[f"cancel and drain {size}"] = best_of(on_trio, cancel, size, rounds)
    table("Scopes on trio", rows)


# Other people's code


async def numbers(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


async def iterate_bare(n: int) -> None:
    async for _ in numbers(n):
        pass


async def iterate_stream(n: int) -> None:
    async with quiesce.stream(numbers(n)) as items:
        async for _ in items:
            pass


async def iterate_prefetching(n: int) -> None:
    async with quiesce.stream(numbers(n), prefetch=16) as items:
        async for _ in items:
            pass


async def iterate_memory_channel(n: int) -> None:
    """What people write by hand: a task that iterates, a channel of no buffer between."""
    send, receive = anyio.create_memory_object_stream[int](0)

    async def pump() -> None:
        async with send:
            async for number in numbers(n):
                await send.send(number)

    async with anyio.create_task_group() as group, receive:
        group.start_soon(pump)
        async for _ in receive:
            pass


def streams() -> None:
    """A thousand items through `stream`."""
    batches = {
        "task + anyio channel": iterate_memory_channel,
        "stream": iterate_stream,
        "stream, prefetch=16": iterate_prefetching,
        "bare async for": iterate_bare,
    }
    rows = {
        "asyncio, 1000 items": best_of(on_asyncio, batches, 1000, 30),
        "trio, 1000 items": best_of(on_trio, batches, 1000, 30),
    }
    table("Streams", rows)


@contextlib.asynccontextmanager
async def resource() -> AsyncIterator[int]:
    yield 1


async def enter_bare(n: int) -> None:
    for _ in range(n):
        async with resource():
            pass


async def enter_owned(n: int) -> None:
    for _ in range(n):
        async with quiesce.own(resource()):
            pass


async def enter_in_group(n: int) -> None:
    """The least that gives a context manager a task of its own: a task group a time."""

    async def hold(ready: anyio.Event, leave: anyio.Event) -> None:
        async with resource():
            ready.set()
            await leave.wait()

    for _ in range(n):
        async with anyio.create_task_group() as group:
            ready, leave = anyio.Event(), anyio.Event()
            group.start_soon(hold, ready, leave)
            await ready.wait()
            leave.set()


def owned() -> None:
    """`own` around a context manager, opened and closed."""
    batches = {"task group by hand": enter_in_group, "own": enter_owned, "bare async with": enter_bare}
    rows = {
        "asyncio, 100 times": best_of(on_asyncio, batches, 100, 30),
        "trio, 100 times": best_of(on_trio, batches, 100, 30),
    }
    table("Own", rows)


def quick() -> None:
    pass


async def thread_asyncio(n: int) -> None:
    for _ in range(n):
        await asyncio.to_thread(quick)


async def thread_anyio(n: int) -> None:
    for _ in range(n):
        await anyio.to_thread.run_sync(quick)


async def thread_quiesce(n: int) -> None:
    for _ in range(n):
        await quiesce.to_thread(quick)


def threads() -> None:
    """`to_thread` of a function that does nothing."""
    ours = {"anyio.to_thread": thread_anyio, "to_thread": thread_quiesce}
    rows = {
        "asyncio, 100 calls": best_of(on_asyncio, {**ours, "asyncio.to_thread": thread_asyncio}, 100, 20),
        "trio, 100 calls": best_of(on_trio, {**ours, "asyncio.to_thread": thread_anyio}, 100, 20),
    }
    del rows["trio, 100 calls"]["asyncio.to_thread"]
    table("Threads, asyncio", {"asyncio, 100 calls": rows["asyncio, 100 calls"]})
    table("Threads, trio", {"trio, 100 calls": rows["trio, 100 calls"]})


def tokens() -> None:
    """Nanoseconds of single operations on a token."""
    token, fired = CancelToken(), CancelToken()
    fired.cancel("done")
    deep = token
    for _ in range(5):
        deep = deep.child()

    def register() -> None:
        token.on_cancel(quick)()

    def cancel_one() -> None:
        CancelToken().cancel("done")

    operations: dict[str, Callable[[], object]] = {
        "cancelled, active token": lambda: token.cancelled,
        "cancelled, cancelled token": lambda: fired.cancelled,
        "cancelled, five levels deep": lambda: deep.cancelled,
        "child()": token.child,
        "on_cancel and take back": register,
        "make and cancel": cancel_one,
    }
    print("\n### Tokens\n\n| operation | ns |\n|---|---|")
    for name, operation in operations.items():
        best = float("inf")
        for _ in range(50):
            start = time.process_time_ns()
            for _ in range(2000):
                operation()
            best = min(best, (time.process_time_ns() - start) / 2000)
        print(f"| {name} | {best:.0f} |")


def many() -> None:
    """Scopes of up to 100,000 children: growth and memory."""
    print("\n### Many children in one scope, asyncio\n")
    print("| children | µs a child, cancel and drain | TaskGroup | bytes a child | TaskGroup |")
    print("|---|---|---|---|---|")
    for size in (1_000, 10_000, 100_000):
        batches = {"TaskGroup": cancel_task_group, "Scope": cancel_scope_asyncio}
        times = best_of(on_asyncio, batches, size, 3, seconds=0.0)
        ours, theirs = asyncio.run(memory_of_scope(size)), asyncio.run(memory_of_group(size))
        print(
            f"| {size:,} | {times['Scope'] / size * 1e6:.2f} | {times['TaskGroup'] / size * 1e6:.2f} "
            f"| {ours:.0f} | {theirs:.0f} |"
        )


async def memory_of_scope(size: int) -> float:
    scope = await Scope.open()
    gc.collect()
    tracemalloc.start()
    for _ in range(size):
        scope.spawn(for_ever)
    await asyncio.sleep(0)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    await scope.close(deadline=60)
    return used / size


async def memory_of_group(size: int) -> float:
    used = 0
    try:
        async with asyncio.TaskGroup() as group:
            gc.collect()
            tracemalloc.start()
            for _ in range(size):
                group.create_task(for_ever())
            await asyncio.sleep(0)
            used = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            raise Stop
    except* Stop:
        pass
    return used / size


def imports() -> None:
    """CPU time of the import and of a first scope, above `import asyncio`."""
    programs = {
        "import asyncio": "import asyncio\nasync def m(): pass\nasyncio.run(m())",
        "import quiesce, a first Scope": (
            "import asyncio, quiesce\n"
            "async def n(): pass\n"
            "async def m():\n"
            "    async with quiesce.Scope() as s: s.spawn(n)\n"
            "asyncio.run(m())"
        ),
        "import anyio, a first task group": (
            "import asyncio, anyio\n"
            "async def n(): pass\n"
            "async def m():\n"
            "    async with anyio.create_task_group() as g: g.start_soon(n)\n"
            "asyncio.run(m())"
        ),
    }
    starts("Import and first use", {name: [sys.executable, "-c", code] for name, code in programs.items()})


def execs() -> None:
    """CPU time of `quiesce exec -- true`, with all of its processes, above a Python that does nothing."""
    quiesce_exec = [sys.executable, "-m", "quiesce", "exec"]
    commands = {
        "a Python that does nothing": [sys.executable, "-c", ""],
        "`true`, started by `subprocess.run`": [
            *(sys.executable, "-c", "import subprocess; subprocess.run(['true'])")
        ],
        "`quiesce exec -- true`": [*quiesce_exec, "--", "true"],
        "`quiesce exec --no-guard -- true`": [*quiesce_exec, "--no-guard", "--", "true"],
    }
    starts("`quiesce exec`", commands)


def starts(title: str, commands: Mapping[str, list[str]]) -> None:
    """CPU time of whole programs, above the first."""
    best = dict.fromkeys(commands, float("inf"))
    for _ in range(20):
        for name, command in commands.items():
            before = getrusage(RUSAGE_CHILDREN)
            subprocess.run(command, check=True)
            after = getrusage(RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            best[name] = min(best[name], used)
    base = best[next(iter(commands))]
    print(f"\n### {title}, CPU\n\n| program | ms | above the first |\n|---|---|---|")
    for name, used in best.items():
        print(f"| {name} | {used * 1e3:.1f} | {(used - base) * 1e3:.1f} |")


PARTS: dict[str, Callable[[], None]] = {
    "scopes": scopes,
    "trio": trio_scopes,
    "streams": streams,
    "own": owned,
    "threads": threads,
    "tokens": tokens,
    "many": many,
    "import": imports,
    "exec": execs,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    print(
        f"CPython {platform.python_version()}, anyio {version('anyio')}, trio {version('trio')}. "
        "CPU time, best of interleaved rounds; ratios to the first column."
    )
    for name in names or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
