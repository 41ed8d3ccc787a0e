"""Every store of ours keeps the contract, and the checks of it notice one that does not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quiesce.agents import Event, MemoryStore, Posted, SQLiteStore
from quiesce.agents.store.memory import MemoryLog
from quiesce.testing import check_store

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(60)]


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


async def test_the_store_in_memory_keeps_the_contract(memory: MemoryStore) -> None:
    assert len(await check_store(lambda: memory)) == 20


async def test_the_store_in_a_file_keeps_the_contract(tmp_path: Path) -> None:
    assert len(await check_store(lambda: SQLiteStore(tmp_path / "chat.db"))) == 20
    assert os.listdir(tmp_path) == ["chat.db"]


async def test_one_store_in_a_file_that_all_share_keeps_the_contract(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "chat.db")
    await check_store(lambda: store)


class Forgetful(MemoryStore):
    """Breaks a rule."""

    def open(self, conversation_id: str) -> MemoryLog:
        return self.LOG(self, conversation_id)

    LOG: type[MemoryLog] = MemoryLog


class _NoFence(MemoryLog):
    """Does not look at its lease."""

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        self._epoch = self._store._latest_epoch(self.conversation_id) or None
        return self.append_sync(events, after=after)


class _Doubles(MemoryLog):
    """Posts a message as often as it is asked to."""

    async def post(self, events: Sequence[Posted]) -> int:
        self._store._conversations.clear() if not events else None
        stored = self._store._conversations.get(self.conversation_id)
        if stored is not None:
            stored.message_ids = set()
        return self.post_sync(events)


class _Halves(MemoryLog):
    """Adds the first event before it looks at the rest."""

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        last = 0
        for event in events:
            last = self.append_sync([event], after=after)
        return last or self.append_sync([], after=after)


class _Overwrites(MemoryLog):
    """Does not look whether it knows the last event."""

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        self._position = None
        return self.append_sync(events)


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        (_NoFence, "raises StoreFenced"),
        (_Doubles, "A message id is in a log only once"),
        (_Halves, "adds none"),
        (_Overwrites, "does not know the last event"),
    ],
)
async def test_a_store_that_breaks_a_rule_is_told_which(log: type[MemoryLog], rule: str) -> None:
    store = Forgetful()
    store.LOG = log
    with pytest.raises(ExceptionGroup) as caught:
        await check_store(lambda: store)
    notes = [note for error in caught.value.exceptions for note in error.__notes__]
    assert any(rule in note for note in notes), notes


async def test_what_is_not_a_store_is_told_what_it_lacks() -> None:
    class Half:
        def open(self, conversation_id: str) -> None: ...

    half: Any = Half()
    with pytest.raises(ExceptionGroup) as caught:
        await check_store(lambda: half)
    assert "Half is not a Store: it lacks" in str(caught.value.exceptions[0])
    assert "lease" in str(caught.value.exceptions[0])
