"""What an append costs in each store, alone and with many conversations at once, and what groups gain.

    .venvs/database/bin/python bench/stores.py [ROUNDS]

`make test-database` makes that environment. Wall-clock time, as it is the disk and the server that take it: the
stores take turns, round by round, and the median round is shown. SQLite and PostgreSQL (a server of its own, over
a Unix socket, with `fsync`) write to the same disk. "one by one" is PostgresStore with one append in each
transaction.
"""

from __future__ import annotations

import asyncio
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from database_tests.server import PostgresServer  # noqa: E402

from quiesce.agents import ItemAdded, PostgresStore, SQLiteStore  # noqa: E402
from quiesce.agents.store import Event, MessageQueued  # noqa: E402
from quiesce.models import UserMessage  # noqa: E402

AnyStore = SQLiteStore | PostgresStore
Appends = Callable[[AnyStore, str], Coroutine[Any, Any, int]]
EVENT = ItemAdded(item=UserMessage("x" * 400))  # half a kilobyte in the log


async def alone(store: AnyStore, name: str) -> int:
    log = store.open(name)
    for _ in range(200):
        await log.append([EVENT])
    return 200


def at_once(conversations: int, each: int) -> Appends:
    async def appends(store: AnyStore, name: str) -> int:
        async def one(number: int) -> None:
            log = store.open(f"{name}-{number}")
            for _ in range(each):
                await log.append([EVENT])

        await asyncio.gather(*(one(number) for number in range(conversations)))
        return conversations * each

    return appends


CASES: Mapping[str, Appends] = {
    "one conversation": alone,
    "50 conversations at once": at_once(50, 10),
    "500 conversations at once": at_once(500, 4),
}


async def rates(stores: Mapping[str, AnyStore], appends: Appends, rounds: int) -> dict[str, float]:
    """Appends per second: the median of the rounds."""
    found: dict[str, list[float]] = {name: [] for name in stores}
    for number in range(rounds + 1):
        for name, store in stores.items():
            began = time.perf_counter()
            count = await appends(store, f"{appends.__qualname__}-{number}")
            if number:  # the first one opens files and connections
                found[name].append(count / (time.perf_counter() - began))
    return {name: statistics.median(rounds_of) for name, rounds_of in found.items()}


async def reading(stores: Mapping[str, AnyStore], rounds: int) -> dict[str, float]:
    """Seconds to read a log of 10,000 events."""
    took: dict[str, list[float]] = {name: [] for name in stores}
    for store in stores.values():
        await store.open("long").append([EVENT] * 10_000)
    for _ in range(rounds):
        for name, store in stores.items():
            began = time.perf_counter()
            await store.open("long").read()
            took[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


async def hints(watching: AnyStore, writing: AnyStore, count: int) -> list[float]:
    """Seconds from the start of a post in one store to the watch of another one."""
    seen: list[Event] = []
    end = watching.open("hinted").watch(seen.extend, after=0)
    took = []
    await asyncio.sleep(0.3)
    for number in range(count):
        began = time.perf_counter()
        await writing.open("hinted").post([MessageQueued(message_id=f"{number}", item=UserMessage("x"))])
        while len(seen) <= number:  # noqa: ASYNC110 - an event would have to come from another thread
            await asyncio.sleep(0.0002)
        took.append(time.perf_counter() - began)
    end()
    return took


async def measure(server: PostgresServer, folder: Path, rounds: int) -> None:
    one_by_one = PostgresStore(server.url, schema="one_by_one")
    one_by_one._writer.at_once = 1
    stores: dict[str, AnyStore] = {
        "PostgreSQL": PostgresStore(server.url, schema="grouped"),
        "PostgreSQL, one by one": one_by_one,
        "SQLite": SQLiteStore(folder / "bench.db"),
    }
    print("| appends/s | " + " | ".join(stores) + " | grouped / one by one | SQLite / PostgreSQL |")
    print("|---|" + "---|" * (len(stores) + 2))
    for label, appends in CASES.items():
        found = await rates(stores, appends, rounds)
        grouped, single, sqlite = found.values()
        cells = [f"{rate:,.0f}" for rate in found.values()]
        print(f"| {label} | " + " | ".join(cells) + f" | {grouped / single:.1f} | {sqlite / grouped:.1f} |")
    took = await reading(stores, rounds)
    print("\n10,000 events are read in " + ", ".join(f"{name} {1000 * s:.0f} ms" for name, s in took.items()))
    other = PostgresStore(server.url, schema="grouped")
    heard = await hints(other, stores["PostgreSQL"], 50)
    print(
        f"a post is seen by a watch in another store after {1000 * statistics.median(heard):.1f} ms (median of 50)"
    )
    for store in (*stores.values(), other):
        await store.close()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"Python {platform.python_version()}, {rounds} rounds\n")
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory(dir=server.folder.parent) as folder:
            asyncio.run(measure(server, Path(folder), rounds))
    finally:
        server.close()


if __name__ == "__main__":
    main()
