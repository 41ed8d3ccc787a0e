"""Sessions remember items between runs, in the same stores as conversations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce.agents.store import ItemAdded, Store, StoreClosed, StoreConflict, ToolStarted
from quiesce.agents.store.memory import MemoryStore
from quiesce.agents.store.session import LogSession, MemorySession, Session, SQLiteSession
from quiesce.agents.store.sqlite import SQLiteStore
from quiesce.models import AssistantMessage, Item, ToolCall, ToolResult, UnknownItem, UserMessage

pytestmark = pytest.mark.real_time

HISTORY: list[Item] = [
    UserMessage("What is the weather?"),
    ToolCall("c1", "weather", '{"city": "Paris"}'),
    ToolResult("c1", "rain"),
    AssistantMessage("It rains."),
]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "chat.db")
    made.ids_sync()  # opened here and closed here: what the test itself opens is its own to close
    yield made
    made.close_sync()


async def test_items_come_back_in_order_and_the_last_ones_alone_if_asked(store: Store) -> None:
    session = LogSession(store.open("user-7"))
    assert session.session_id == "user-7"
    assert await session.get_items() == []
    await session.add_items(HISTORY[:2])
    await session.add_items(HISTORY[2:])
    assert await session.get_items() == HISTORY
    assert await LogSession(store.open("user-7")).get_items() == HISTORY
    assert await session.get_items(limit=2) == HISTORY[-2:]
    assert await session.get_items(limit=9) == HISTORY
    assert await session.get_items(limit=0) == []
    with pytest.raises(ValueError, match="limit must be 0 or more, not -1"):
        await session.get_items(limit=-1)


async def test_the_last_item_is_taken_back_until_none_is_left(store: Store) -> None:
    session = LogSession(store.open("a"))
    await session.add_items(HISTORY)
    assert [await session.pop_item() for _ in HISTORY] == HISTORY[::-1]
    assert await session.pop_item() is None
    assert await session.get_items() == []
    await session.add_items(HISTORY[:1])
    assert await session.get_items() == HISTORY[:1]


async def test_a_cleared_session_is_empty_and_can_be_used_again(store: Store) -> None:
    session = LogSession(store.open("a"))
    await session.clear_session()
    assert await store.ids() == []
    await session.add_items(HISTORY)
    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items(HISTORY[:1])
    assert await session.get_items() == HISTORY[:1]


async def test_nothing_is_ever_removed_from_the_log(store: Store) -> None:
    session = LogSession(store.open("a"))
    await session.add_items(HISTORY)
    await session.pop_item()
    await session.clear_session()
    events = await store.open("a").read()
    assert [type(event).__name__ for event in events] == ["ItemAdded"] * 4 + ["ItemPopped", "ItemsCleared"]


async def test_the_transcript_of_a_conversation_is_a_session(store: Store) -> None:
    log = store.open("a")
    await log.append([ItemAdded(item=item) for item in HISTORY[:2]] + [ToolStarted(call_id="c1")])
    assert await LogSession(log).get_items() == HISTORY[:2]


async def test_items_that_a_newer_version_has_written_stay_where_they_are(store: Store) -> None:
    session = LogSession(store.open("a"))
    items: list[Item] = [UserMessage("hello"), UnknownItem({"type": "hologram", "depth": 3})]
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.pop_item() == items[1]


async def test_what_is_no_item_is_refused_and_nothing_is_added(store: Store) -> None:
    session = LogSession(store.open("a"))
    wrong: Any = [UserMessage("hello"), {"role": "tool", "content": "hello"}]
    with pytest.raises(TypeError, match="the role 'tool' is not one of"):
        await session.add_items(wrong)
    assert await session.get_items() == []


async def test_a_second_session_of_the_same_id_cannot_mix_its_items_in(store: Store) -> None:
    first, second = LogSession(store.open("a")), LogSession(store.open("a"))
    await first.get_items()
    await second.get_items()
    await first.add_items(HISTORY)
    with pytest.raises(StoreConflict):
        await second.add_items([UserMessage("me too")])
    assert await second.get_items() == HISTORY
    await second.add_items([UserMessage("me too")])
    assert await first.get_items() == [*HISTORY, UserMessage("me too")]


@pytest.mark.parametrize("shared", [True, False], ids=["one session", "a session each"])
async def test_those_who_take_the_last_item_back_at_once_take_one_each(store: Store, shared: bool) -> None:
    session = LogSession(store.open("a"))
    await session.add_items(HISTORY)
    taken: list[Item | None] = []

    async def take() -> None:
        taken.append(await (session if shared else LogSession(store.open("a"))).pop_item())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(take)
    assert {str(item) for item in taken} == {str(item) for item in HISTORY[1:]}
    assert await session.get_items() == HISTORY[:1]


async def test_a_session_in_a_file_is_there_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with SQLiteSession("user-7", path) as session:
        await session.add_items(HISTORY)
    with pytest.raises(StoreClosed):
        await session.get_items()
    again = SQLiteSession("user-7", str(path))
    assert await again.get_items() == HISTORY
    await again.close()
    other = SQLiteSession("user-8", path)
    assert await other.get_items() == []
    await other.close()


async def test_sessions_in_memory_have_nothing_to_do_with_each_other() -> None:
    for make in (MemorySession, SQLiteSession):
        first, second = make("a"), make("a")
        await first.add_items(HISTORY)
        assert await first.get_items() == HISTORY
        assert await second.get_items() == []
    assert MemorySession().session_id != MemorySession().session_id


def test_every_session_keeps_to_the_protocol(tmp_path: Path) -> None:
    sessions = [
        MemorySession(),
        SQLiteSession("a", tmp_path / "chat.db"),
        LogSession(MemoryStore().open("a")),
    ]
    assert all(isinstance(session, Session) for session in sessions)
    assert repr(sessions[1]) == "<SQLiteSession 'a'>"
