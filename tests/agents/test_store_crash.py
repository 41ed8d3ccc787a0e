"""What was acknowledged is there, however the writer ended; what was not is there in full or not at all."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from quiesce.agents.store import ItemAdded, StoreError
from quiesce.agents.store.replay import recover
from quiesce.agents.store.sqlite import SQLiteStore
from tests.agents.test_store import message, said

CONVERSATIONS = 3
KILLS = 6

# Each batch is numbered and says how many events it has. It is acknowledged on stdout when the append has returned.
WRITER = textwrap.dedent(
    """
    import asyncio, os, random, sys
    from quiesce.agents.store import ItemAdded
    from quiesce.agents.store.sqlite import SQLiteStore
    from quiesce.models import UserMessage

    async def write(log):
        number = len(await log.read())
        while True:
            size = random.randint(1, 4)
            batch = [ItemAdded(item=UserMessage(f"{number} {part} {size} " + "x" * random.randint(0, 3000))) for part in range(size)]
            number = await log.append(batch)
            os.write(1, f"{log.conversation_id} {number}\\n".encode())

    async def main(path, count):
        async with SQLiteStore(path) as store:
            await asyncio.gather(*(write(store.open(f"c{number}")) for number in range(count)))

    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
    """
)


@pytest.mark.time_limit(40)
def test_a_writer_that_is_killed_at_any_moment_loses_nothing_that_it_has_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    acknowledged = {f"c{number}": 0 for number in range(CONVERSATIONS)}
    moments = random.Random(7)
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(CONVERSATIONS)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        told: list[str] = []
        while len(told) < 2 * CONVERSATIONS or any(count_of(told, name) < 2 for name in acknowledged):
            told.append(writer.stdout.readline())
        time.sleep(moments.uniform(0.0, 0.08))
        writer.kill()
        told += writer.stdout.read().splitlines()
        writer.wait()
        writer.stdout.close()
        for line in told:
            name, last = line.split()
            acknowledged[name] = max(acknowledged[name], int(last))
        with SQLiteStore(path) as store:
            for name, number in acknowledged.items():
                texts = said(store.open(name).read_sync())
                assert len(texts) >= number
                assert_batches_are_whole(texts)
                acknowledged[name] = len(texts)
    assert min(acknowledged.values()) > KILLS


def count_of(told: list[str], name: str) -> int:
    return sum(line.split()[0] == name for line in told)


def assert_batches_are_whole(texts: list[str]) -> None:
    place = 0
    while place < len(texts):
        first, _, size = (int(number) for number in texts[place].split()[:3])
        batch = [tuple(text.split()[:3]) for text in texts[place : place + size]]
        assert batch == [(str(first), str(part), str(size)) for part in range(size)]
        assert first == place
        place += size


def a_store_cut_short(directory: Path) -> tuple[bytes, bytes]:
    """A database and its WAL as they are when the machine stops: ten appends of three events."""
    path = directory / "whole.db"
    with SQLiteStore(path) as store:
        log = store.open("a")
        for number in range(10):
            log.append_sync([message(f"{number}{part} " + "x" * 700) for part in "abc"])
        return path.read_bytes(), path.with_name("whole.db-wal").read_bytes()


def read_back(directory: Path, database: bytes, wal: bytes) -> list[str]:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / "torn.db").write_bytes(database)
    (directory / "torn.db-wal").write_bytes(wal)
    with SQLiteStore(directory / "torn.db") as store:
        log = store.open("a")
        texts = said(log.read_sync())
        assert log.append_sync([message("and on it goes")]) == len(texts) + 1
    return [text.split()[0] for text in texts]


def test_a_wal_whose_end_is_torn_off_gives_the_appends_before_it_each_in_full(tmp_path: Path) -> None:
    database, wal = a_store_cut_short(tmp_path)
    written = [f"{number}{part}" for number in range(10) for part in "abc"]
    seen = set()
    for cut in range(len(wal), 0, -len(wal) // 25):
        texts = read_back(tmp_path / "torn", database, wal[:cut])
        assert texts == written[: len(texts)]
        assert len(texts) % 3 == 0
        seen.add(len(texts))
    assert read_back(tmp_path / "torn", database, wal) == written
    assert len(seen) > 5


def test_a_wal_whose_end_is_garbage_gives_the_appends_before_it_each_in_full(tmp_path: Path) -> None:
    database, wal = a_store_cut_short(tmp_path)
    written = [f"{number}{part}" for number in range(10) for part in "abc"]
    noise = random.Random(7)
    seen = set()
    for _ in range(15):
        at = noise.randrange(len(wal) // 3, len(wal))
        torn = wal[:at] + noise.randbytes(min(500, len(wal) - at)) + wal[at + 500 :]
        texts = read_back(tmp_path / "torn", database, torn)
        assert texts == written[: len(texts)]
        assert len(texts) % 3 == 0
        seen.add(len(texts))
    assert len(seen) > 3


def test_a_database_that_is_damaged_says_so_and_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    with SQLiteStore(path) as store:
        store.open("a").append_sync([message("x" * 3000) for _ in range(50)])
    damaged = bytearray(path.read_bytes())
    damaged[4096 * 2 :] = b"\xa5" * (len(damaged) - 4096 * 2)
    path.write_bytes(damaged)
    with SQLiteStore(path) as store:
        with pytest.raises(StoreError, match=r"chat.db': it is damaged: keep a copy of it"):
            store.open("a").read_sync()
        with pytest.raises(StoreError, match="it is damaged"):
            store.open("a").append_sync([message("more")])
    assert path.read_bytes()[4096 * 2 :] == damaged[4096 * 2 :]


def test_a_tool_that_had_started_when_the_writer_was_killed_is_unknown_and_the_next_one_not_started(
    tmp_path: Path,
) -> None:
    path = tmp_path / "chat.db"
    source = """
        import os, signal, sys
        from quiesce.agents.store import ItemAdded, RunStarted, ToolStarted
        from quiesce.agents.store.sqlite import SQLiteStore
        from quiesce.models import ToolCall, UserMessage

        log = SQLiteStore(sys.argv[1]).open("a")
        log.append_sync([RunStarted(run_id="r1"), ItemAdded(item=UserMessage("pay and tell"))])
        log.append_sync([ItemAdded(item=ToolCall("c1", "pay")), ItemAdded(item=ToolCall("c2", "tell"))])
        log.append_sync([ToolStarted(call_id="c1")])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(path)], timeout=15, check=False
    )
    assert killed.returncode == -9
    with SQLiteStore(path) as store:
        found = recover(store.open("a").read_sync())
        assert found.unfinished_run == "r1"
        assert [(result.call_id, result.outcome) for result in found.results] == [
            ("c1", "unknown"),
            ("c2", "not_started"),
        ]
        store.open("a").append_sync([ItemAdded(item=result) for result in found.results])
        assert recover(store.open("a").read_sync()).results == []
