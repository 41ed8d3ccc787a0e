"""What `quiesce.claude` costs, and how soon it stops, beside claude-agent-sdk, with the same fake CLI
(tests/claude/fake_cli.py).

    make bench                               # with the others
    python bench/claude/run.py messages      # one part: messages, stops

It makes an environment of its own for the two (build/bench-claude, the versions in versions.txt) and runs
itself there, on asyncio. Messages: CPU time of the program, without the CLI's; best of interleaved rounds.
Stops: time on the clock from the stop until no process is left, and how often the tool that was at work has
ticked meanwhile; the best of the rounds. What asyncio complains of on stderr is what a stop has left in a
loop that has ended. docs/performance.md holds a result.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = ROOT / "build" / "bench-claude"
IS_THERE = "QUIESCE_BENCH_CLAUDE"
PACKAGES = {"quiesce": "quiesce.claude", "claude-agent-sdk": "claude_agent_sdk"}
OURS, THEIRS = PACKAGES

ROUNDS = 7  # of messages
LIMIT = 60.0  # seconds for a query, until it counts as a hang
STOP_ROUNDS = 3
PATIENCE = 15.0  # seconds for a stop, until what is there counts as left for good
BETWEEN_CANCELS = 0.05
TICK = 0.01  # seconds from one tick of the tool to the next

Step = list[Any]


def go_there() -> int:
    """Make the environment, and run this file in it."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from throwaway import NotInstalled, build_wheel, make_environment

    try:
        wheel = build_wheel(ROOT / "build" / "bench-wheel")
        make_environment(ENVIRONMENT, Path(__file__).with_name("versions.txt"), wheel)
    except NotInstalled as error:
        print(f"the peer cannot be had here, so nothing is compared: {error}", file=sys.stderr)
        return 1
    python = str(ENVIRONMENT / "bin" / "python")
    return os.spawnve(os.P_WAIT, python, [python, *sys.argv], {**os.environ, IS_THERE: "1"})


def fake_cli(folder: str) -> Any:
    sys.path.insert(0, str(ROOT))
    from tests.claude.clis import Cli

    return Cli(Path(folder))


# Messages


class Kind(NamedTuple):
    """Something of which a turn may have many."""

    title: str
    steps: Callable[[int], list[Step]]  # for so many
    many: int


KINDS = (
    Kind("a text of 100 bytes, as fast as they come", lambda count: [["flood", 100, count]], 5000),
    Kind("a text of 10,000 bytes, as fast as they come", lambda count: [["flood", 10_000, count]], 1000),
    Kind("a short text, one a millisecond", lambda count: [["talk", 0.001, count]], 500),
    Kind("a call of a tool in the program", lambda count: [["mcp", "here", "add", {"a": 1}]] * count, 300),
)


async def run_query(module: Any, cli: Any, steps: list[Step]) -> float:
    """CPU seconds of a whole query."""

    @module.tool("add", "Adds one", {"a": int})  # type: ignore[untyped-decorator]
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": str(given["a"] + 1)}]}

    servers = {"here": module.create_sdk_mcp_server("here", tools=[add])} if "mcp" in str(steps[:1]) else {}
    options = module.ClaudeAgentOptions(
        cli_path=str(cli.path), env=cli.environment(steps, record=None), mcp_servers=servers
    )
    start, count = time.process_time(), 0
    async with asyncio.timeout(LIMIT):
        async for _ in module.query(prompt="go", options=options):
            count += 1
    took = time.process_time() - start
    assert count > len(steps), count
    return took


def measure(cli: Any, kind: Kind) -> dict[str, tuple[float, float]]:
    """For each package the CPU seconds of a query with one, and of each further one."""
    one, many = dict.fromkeys(PACKAGES, float("inf")), dict.fromkeys(PACKAGES, float("inf"))
    for _ in range(ROUNDS):
        for name, package in PACKAGES.items():
            for best, count in ((one, 1), (many, kind.many)):
                gc.collect()
                gc.disable()
                try:
                    took = asyncio.run(run_query(importlib.import_module(package), cli, kind.steps(count)))
                finally:
                    gc.enable()
                best[name] = min(best[name], took)
    return {name: (one[name], (many[name] - one[name]) / (kind.many - 1)) for name in PACKAGES}


def messages(cli: Any) -> None:
    """The table of CPU times."""
    print(f"\n### CPU time of the program\n\n| | {OURS} (µs) | {THEIRS} (µs) | ratio |\n|---|---|---|---|")
    rows: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        took = measure(cli, kind)
        rows.setdefault("a query with one message, from start to end", {n: took[n][0] for n in PACKAGES})
        rows[kind.title] = {name: took[name][1] for name in PACKAGES}
    for title, cells in rows.items():
        ours, theirs = cells[OURS] * 1e6, cells[THEIRS] * 1e6
        print(f"| {title} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.1f}× |", flush=True)


# Stops


class Stopped(NamedTuple):
    seconds: float  # until no process was left
    ticks: int  # of the tool, meanwhile
    left: int  # processes, when nobody wanted to wait any longer


class Work:
    """A CLI with a tool at work."""

    def __init__(self, module: Any, cli: Any) -> None:
        self.module = module
        self.cli = cli
        ticking = cli.ticking(every=TICK)
        environment = cli.environment([["text", "hello"], ticking], record=None)
        self.options = module.ClaudeAgentOptions(cli_path=str(cli.path), env=environment)
        self._began = 0.0
        self._ticks = 0

    def query(self) -> Any:
        return self.module.query(prompt="work", options=self.options)

    async def read(self) -> None:
        async for _ in self.query():
            pass

    def begin(self) -> None:
        """The stop begins."""
        self._ticks, self._began = self.cli.ticks(), time.monotonic()

    async def gone(self) -> Stopped:
        """Look until nothing is left; then end what is."""
        until = self._began + PATIENCE
        while (left := self.cli.processes()) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.002)  # other programs: nobody tells us
        result = Stopped(time.monotonic() - self._began, self.cli.ticks() - self._ticks, len(left))
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return result


async def cancelled(work: Work, times: int = 1) -> Stopped:
    task = asyncio.create_task(work.read())
    await work.cli.until_ticking()
    work.begin()
    for number in range(times):
        if number:
            await asyncio.wait({task}, timeout=BETWEEN_CANCELS)
        task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE)
    return await work.gone()


async def cancelled_twice(work: Work) -> Stopped:
    return await cancelled(work, 2)


async def broken_off(work: Work) -> Stopped:
    async for message in work.query():
        if isinstance(message, work.module.AssistantMessage):
            await work.cli.until_ticking()
            work.begin()
            break
    return await work.gone()


async def aclosed(work: Work) -> Stopped:
    messages = work.query()
    async for message in (iterator := aiter(messages)):
        if isinstance(message, work.module.AssistantMessage):
            await work.cli.until_ticking()
            work.begin()
            await messages.aclose()
            break
    del iterator
    return await work.gone()


async def disconnected(work: Work) -> Stopped:
    client = work.module.ClaudeSDKClient(work.options)
    await client.connect()
    await client.query("work")
    await work.cli.until_ticking()
    work.begin()
    await client.disconnect()
    return await work.gone()


STOPS: dict[str, Callable[[Work], Awaitable[Stopped]]] = {
    "`query()`, cancelled": cancelled,
    "`query()`, cancelled twice": cancelled_twice,
    "`query()`, left by `break`": broken_off,
    "`query()`, `aclose()`": aclosed,
    "the client, `disconnect()`": disconnected,
}


def stops() -> None:
    """The table of stops."""
    print("\n### From the stop until no process is left\n")
    print(f"| | {OURS} | ticks | {THEIRS} | ticks | ratio |\n|---|---|---|---|---|---|")
    for title, stop in STOPS.items():
        best: dict[str, Stopped] = {}
        for _ in range(STOP_ROUNDS):
            for name, package in PACKAGES.items():
                with tempfile.TemporaryDirectory() as folder:
                    work = Work(importlib.import_module(package), fake_cli(folder))
                    best[name] = min(
                        best.get(name, Stopped(float("inf"), 0, 0)), asyncio.run(stopped(work, stop))
                    )
        ours, theirs = best[OURS], best[THEIRS]
        ratio = f"{theirs.seconds / ours.seconds:.0f}×" if not theirs.left else "-"
        print(f"| {title} | {in_words(ours)} | {in_words(theirs)} | {ratio} |", flush=True)


async def stopped(work: Work, stop: Callable[[Work], Awaitable[Stopped]]) -> Stopped:
    return await stop(work)


def in_words(stopped: Stopped) -> str:
    after = (
        f"{stopped.left} left for good, after {PATIENCE:.0f} s"
        if stopped.left
        else f"{stopped.seconds * 1000:.0f} ms"
    )
    return f"{after} | {stopped.ticks}"


def main() -> int:
    parts = sys.argv[1:] or ["messages", "stops"]
    if unknown := set(parts) - {"messages", "stops"}:
        print(f"no such part: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if IS_THERE not in os.environ:
        return go_there()
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    print(f"CPython {platform.python_version()}, {versions}")
    if "messages" in parts:
        with tempfile.TemporaryDirectory() as folder:
            messages(fake_cli(folder))
    if "stops" in parts:
        stops()
    return 0


if __name__ == "__main__":
    sys.exit(main())
