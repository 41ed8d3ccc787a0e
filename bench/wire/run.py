"""What a JSON-RPC connection costs, beside agent-client-protocol and beside the least that one can be, in one process.

    make bench                                # with the others
    python bench/wire/run.py untyped memory   # some parts: untyped, typed, loops, memory, import

Both ends of a socketpair, messages of about 250 bytes. CPU time of both ends together, best of many short
interleaved rounds, without the garbage collector. docs/performance.md holds a result.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from wire import pairs

SEQUENTIAL, HUNDREDFOLD, TOLD, STREAMED = (
    "a request, one after the other",
    "a request, 100 at a time",
    "a notification",
    "a notification, one a turn of the loop",
)
Together = Callable[[list[Callable[[], Awaitable[None]]]], Awaitable[object]]


# What is measured: all the same for everybody


class Course:
    """One round of everything, with the words of one event loop."""

    def __init__(self, breathe: Callable[[], Awaitable[object]], together: Together) -> None:
        self._breathe = breathe
        self._together = together

    async def run(self, open_pair: pairs.Open) -> dict[str, float]:
        """CPU seconds of one message of each kind."""
        async with open_pair() as pair:
            await self.ask(pair, 0, 20)  # lazy imports, caches, the first turns
            await self.tell(pair, 20, 100)
            return {
                SEQUENTIAL: await self._timed(300, self.ask(pair, 0, 300)),
                HUNDREDFOLD: await self._timed(1000, self.ask_in_parallel(pair, 100, 10)),
                TOLD: await self._timed(1000, self.tell(pair, 1000, 100)),
                STREAMED: await self._timed(300, self.tell(pair, 300, 1)),
            }

    async def _timed(self, count: int, work: Awaitable[None]) -> float:
        start = time.process_time()
        await work
        return (time.process_time() - start) / count

    async def ask(self, pair: pairs.Pair, number: int, count: int) -> None:
        """One after the other, in one conversation."""
        for _ in range(count):
            await pair.ask(number)

    async def ask_in_parallel(self, pair: pairs.Pair, ways: int, count: int) -> None:
        """The same in many conversations at once."""
        await self._together([functools.partial(self.ask, pair, number, count) for number in range(ways)])

    async def tell(self, pair: pairs.Pair, count: int, in_a_turn: int) -> None:
        """Each awaited; and all of them heard before it is over."""
        wanted = pair.heard() + count
        for number in range(1, count + 1):
            await pair.tell()
            if number % in_a_turn == 0:
                await self._breathe()
        while pair.heard() < wanted:
            await self._breathe()


async def _gather(jobs: list[Callable[[], Awaitable[None]]]) -> None:
    await asyncio.gather(*(job() for job in jobs))


async def _nursery(jobs: list[Callable[[], Awaitable[None]]]) -> None:
    import trio

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(job)


def on_asyncio(open_pair: pairs.Open) -> dict[str, float]:
    return asyncio.run(Course(functools.partial(asyncio.sleep, 0), _gather).run(open_pair))


def on_uvloop(open_pair: pairs.Open) -> dict[str, float]:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Course(functools.partial(asyncio.sleep, 0), _gather).run(open_pair))


def on_trio(open_pair: pairs.Open) -> dict[str, float]:
    import trio

    return trio.run(Course(trio.lowlevel.checkpoint, _nursery).run, open_pair)


Candidate = Callable[[], dict[str, float]]


def best_of(candidates: Mapping[str, Candidate], rounds: int) -> dict[str, dict[str, float]]:
    """By candidate and kind of message, the best of all rounds."""
    best: dict[str, dict[str, float]] = {name: {} for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            gc.collect()
            gc.disable()
            try:
                took = candidate()
            finally:
                gc.enable()
            for kind, seconds in took.items():
                best[name][kind] = min(best[name].get(kind, seconds), seconds)
    return best


def table(title: str, best: Mapping[str, Mapping[str, float]]) -> None:
    """The first candidate's time; the others' time, and how many times the first one's that is."""
    first, *others = best
    print(f"\n### {title}\n")
    print(f"| CPU time | {first} (µs) | " + " | ".join(f"{name} (µs, ratio)" for name in others) + " |")
    print("|---|" + "---|" * len(best))
    for kind, ours in best[first].items():
        cells = [f"{best[name][kind] * 1e6:.1f}, {best[name][kind] / ours:.2f}×" for name in others]
        print(f"| {kind} | {ours * 1e6:.1f} | " + " | ".join(cells) + " |", flush=True)


def untyped(rounds: int) -> None:
    candidates: dict[str, Candidate] = {
        "quiesce Peer": functools.partial(on_asyncio, pairs.peers),
        "acp.Connection": functools.partial(on_asyncio, pairs.sdk_connections),
        "bare, asyncio.Protocol": functools.partial(on_asyncio, pairs.bare_protocols),
        "bare, asyncio streams": functools.partial(on_asyncio, pairs.bare_streams),
    }
    table("Any JSON", best_of(candidates, rounds))


def typed(rounds: int) -> None:
    candidates: dict[str, Candidate] = {
        "quiesce.acp": functools.partial(on_asyncio, pairs.typed),
        "agent-client-protocol": functools.partial(on_asyncio, pairs.sdk_typed),
    }
    table("Typed: `prompt` and `session_update`", best_of(candidates, rounds))


def loops(rounds: int) -> None:
    candidates: dict[str, Candidate] = {
        "Peer on asyncio": functools.partial(on_asyncio, pairs.peers),
        "on uvloop": functools.partial(on_uvloop, pairs.peers),
        "on trio": functools.partial(on_trio, pairs.peers),
    }
    table("Event loops", best_of(candidates, rounds))


# A million messages


def memory(messages: int = 1_000_000, looks: int = 5) -> None:
    """What is allocated after so many messages: requests, their answers, and notifications, without the
    garbage collector.
    """

    async def main() -> list[tuple[int, int, float]]:
        course = Course(functools.partial(asyncio.sleep, 0), _gather)
        seen = []
        async with pairs.peers() as pair:
            for number in range(looks + 1):
                if number:
                    share = (
                        messages // looks // 10
                    )  # of ten messages, two are requests, two answers, six told
                    await course.ask_in_parallel(pair, 100, 2 * share // 100)
                    await course.tell(pair, 6 * share, 100)
                else:
                    await course.ask_in_parallel(pair, 100, 10)
                    await course.tell(pair, 1000, 100)
                seen.append((number * messages // looks, sys.getallocatedblocks(), _resident()))
        return seen

    gc.collect()
    gc.disable()
    try:
        seen = asyncio.run(main())
    finally:
        gc.enable()
    print("\n### Memory\n")
    print("| messages | blocks allocated | resident (MiB) |\n|---|---|---|")
    for count, blocks, resident in seen:
        print(f"| {count:,} | {blocks:,} | {resident:.1f} |")
    sys.stdout.flush()


def _resident() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")  # only Linux says so
    return pages * 4096 / 2**20


# Importing


def imports(rounds: int) -> None:
    best = dict.fromkeys(("quiesce.wire", "quiesce.acp", "acp"), float("inf"))
    for _ in range(rounds):
        for name in best:
            program = (
                "import asyncio, time; start = time.process_time(); "
                f"import {name}; print(time.process_time() - start)"
            )
            out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            best[name] = min(best[name], float(out.stdout))
    print("\n### Importing, above asyncio\n\n| CPU time | ms |\n|---|---|")
    for name, seconds in best.items():
        print(f"| `import {name}` | {seconds * 1e3:.0f} |", flush=True)


PARTS: dict[str, Callable[[int], None]] = {
    "untyped": untyped,
    "typed": typed,
    "loops": loops,
    "memory": lambda rounds: memory(),
    "import": imports,
}


# asyncio's transports ask for 256 KiB a read. Whether glibc takes that from the system, and gives it back,
# each time, is a matter of luck (what else is on the heap), and makes a read twelve times dearer: so it is
# told not to, for everybody.
HEAP = {"MALLOC_MMAP_THRESHOLD_": "100000000", "MALLOC_TRIM_THRESHOLD_": "100000000"}


def main() -> int:
    rounds = 15
    wanted = sys.argv[1:] or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if not HEAP.items() <= os.environ.items():  # it is read when the process starts
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **HEAP})
    versions = []
    for package in ("quiesce", "agent-client-protocol", "msgspec", "uvloop", "trio"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} (none)")
    print(f"CPython {platform.python_version()}, {', '.join(versions)}")
    for part in wanted:
        PARTS[part](rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
