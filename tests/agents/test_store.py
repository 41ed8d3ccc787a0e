"""What every store keeps to, in memory and in a file."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.agents.store import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ItemAdded,
    ItemPopped,
    ItemsCleared,
    Log,
    MessageQueued,
    RunEnded,
    RunStarted,
    StatusChanged,
    Store,
    StoreClosed,
    StoreConflict,
    ToolStarted,
    UnknownEvent,
    UsageAdded,
    decode_event,
    encode_event,
    stamp,
)
from quiesce.agents.store.memory import MemoryStore
from quiesce.agents.store.sqlite import SQLiteStore
from quiesce.models import (
    AssistantMessage,
    Image,
    Note,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    UnknownItem,
    Usage,
    UserMessage,
)

pytestmark = pytest.mark.real_time  # the store's thread is at work outside the clock

ONE_OF_EACH: list[Event] = [
    RunStarted(run_id="r1", agent="assistant"),
    StatusChanged(status="running"),
    ItemAdded(
        item=UserMessage([Text("look"), Image("https://example.org/a.png")]), run_id="r1", message_id="m1"
    ),
    ItemAdded(item=Note("the user has interrupted")),
    ItemAdded(item=Reasoning("hm", "openai", {"id": "rs_1", "parts": [1, None, {"a": 2.5}]})),
    ItemAdded(item=AssistantMessage("Well", interrupted=True, agent="assistant")),
    ItemAdded(item=ToolCall("c1", "send", '{"to": "Zoë"}')),
    ApprovalRequested(call_id="c1"),
    ApprovalDecided(call_id="c1", approved=False, message="not today"),
    ToolStarted(call_id="c1", name="send"),
    ItemAdded(item=ToolResult("c1", "sent", "finished", 0.25)),
    ItemAdded(item=AssistantMessage("I send it."), run_id="r1", back=2),
    ItemAdded(item=UnknownItem({"type": "hologram", "depth": 3})),
    MessageQueued(message_id="m2", item=UserMessage("and then?")),
    UsageAdded(usage=Usage(requests=1, input_tokens=10, output_tokens=2, unreported=1), run_id="r1"),
    ItemPopped(),
    ItemsCleared(),
    UnknownEvent(data={"event": "teleported", "to": ["Mars"]}),
    RunEnded(run_id="r1", status="interrupted", reason="user: enough"),
]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "chat.db")
    made.ids_sync()  # opened here and closed here: what the test itself opens is its own to close
    yield made
    made.close_sync()


def said(events: list[Event]) -> list[str]:
    """The texts of users' messages."""
    return [
        str(event.item.content)
        for event in events
        if isinstance(event, ItemAdded) and isinstance(event.item, UserMessage)
    ]


def message(text: str) -> ItemAdded:
    return ItemAdded(item=UserMessage(text))


async def test_events_come_back_in_order_numbered_and_dated(store: Store) -> None:
    log = store.open("a")
    before = time.time()
    assert await log.append(ONE_OF_EACH[:3]) == 3
    assert await log.append(ONE_OF_EACH[3:]) == len(ONE_OF_EACH)
    for events in (await log.read(), await store.open("a").read()):
        assert [stamp(event, 0, 0.0) for event in events] == ONE_OF_EACH
        assert [event.seq for event in events] == list(range(1, len(ONE_OF_EACH) + 1))
        assert all(before <= event.time <= time.time() for event in events)


async def test_reading_goes_on_after_any_event(store: Store) -> None:
    log = store.open("a")
    await log.append([message(text) for text in "abc"])
    assert said(await log.read(after=1)) == ["b", "c"]
    assert await log.read(after=3) == []
    assert await log.append([message("d")]) == 4
    assert [event.seq for event in await log.read(after=3)] == [4]


async def test_the_sync_and_the_async_way_are_two_ways_to_the_same_log(store: Store) -> None:
    log = store.open("a")
    assert log.append_sync([message("one")]) == 1
    assert await log.append([message("two")]) == 2
    assert said(log.read_sync()) == said(await log.read()) == ["one", "two"]
    assert store.ids_sync() == await store.ids() == ["a"]


async def test_a_conversation_that_nobody_wrote_to_is_not_there(store: Store) -> None:
    log = store.open("a")
    assert await log.read() == []
    assert await log.append([]) == 0
    assert await store.ids() == []
    await store.open("b").append([message("hello")])
    assert await store.ids() == ["b"]


async def test_conversations_do_not_see_each_other_and_go_one_by_one(store: Store) -> None:
    for name in ("b", "a", "it's; DROP TABLE x --", "ä\N{GRINNING FACE}"):
        await store.open(name).append([message(name)])
    assert await store.ids() == sorted(["b", "a", "it's; DROP TABLE x --", "ä\N{GRINNING FACE}"])
    assert said(await store.open("a").read()) == ["a"]
    assert await store.delete("a")
    assert not await store.delete("a")
    assert await store.open("a").read() == []
    assert said(await store.open("b").read()) == ["b"]
    assert await store.open("a").append([message("anew")]) == 1


async def test_the_second_writer_of_a_conversation_is_refused_until_it_has_read(store: Store) -> None:
    first, second = store.open("a"), store.open("a")
    await first.read()
    await second.read()
    await first.append([message("one"), message("two")])
    with pytest.raises(
        StoreConflict,
        match=r"'a' in .* was written to by another writer: it has 2 events, and this log knows of 0",
    ):
        await second.append([message("lost?")])
    with pytest.raises(StoreConflict):
        second.append_sync([message("lost?")])
    assert said(await first.read()) == ["one", "two"]
    await second.read()
    await second.append([message("three")])
    with pytest.raises(StoreConflict):
        await first.append([message("lost?")])
    assert said(await first.read()) == ["one", "two", "three"]


async def test_a_writer_can_say_itself_which_event_it_follows(store: Store) -> None:
    log = store.open("a")
    await log.append([message("one")])
    with pytest.raises(StoreConflict):
        await log.append([message("two")], after=0)
    assert await log.append([message("two")], after=1) == 2
    assert said(await log.read()) == ["one", "two"]


async def test_a_writer_notices_that_its_conversation_was_deleted(store: Store) -> None:
    log = store.open("a")
    await log.append([message("one")])
    await store.delete("a")
    with pytest.raises(StoreConflict, match="was deleted by another writer"):
        await log.append([message("two")])
    assert await store.ids() == []


async def test_what_is_no_event_is_refused_and_nothing_is_written(store: Store) -> None:
    log = store.open("a")
    wrong: Any = [message("one"), UserMessage("two")]
    with pytest.raises(TypeError, match=r"a log holds events, not UserMessage: .* ItemAdded"):
        await log.append(wrong)
    assert await log.read() == []


@pytest.mark.parametrize("name", ["", None, 7])
def test_an_id_is_a_text(store: Store, name: Any) -> None:
    with pytest.raises(ValueError, match="a conversation's id is a str"):
        store.open(name)


async def test_a_closed_log_or_store_refuses_and_says_so(store: Store) -> None:
    log, other = store.open("a"), store.open("a")
    await log.append([message("one")])
    log.close()
    with pytest.raises(StoreClosed, match="'a' cannot be written to: its log was closed"):
        await log.append([message("two")])
    await other.append([message("two")])
    await store.close()
    await store.close()
    for use in (other.read_sync, lambda: other.append_sync([message("three")]), lambda: store.open("a")):
        with pytest.raises(StoreClosed, match="closed"):
            use()
    with pytest.raises(StoreClosed):
        await other.read()


async def test_many_tasks_and_threads_write_to_one_log_and_every_batch_stays_whole(store: Store) -> None:
    log = store.open("a")

    def from_a_thread(name: str) -> None:
        for number in range(10):
            log.append_sync([message(f"{name}{number}"), message(f"{name}{number} too")])

    async def from_a_task(name: str) -> None:
        for number in range(10):
            await log.append([message(f"{name}{number}"), message(f"{name}{number} too")])

    threads = [threading.Thread(target=from_a_thread, args=(name,)) for name in "xy"]
    for thread in threads:
        thread.start()
    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(from_a_task, name)
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    texts = said(await log.read())
    assert len(texts) == 100
    assert all(second == f"{first} too" for first, second in zip(texts[::2], texts[1::2], strict=True))
    for name in "xyabc":
        assert [text for text in texts[::2] if text[0] == name] == [f"{name}{number}" for number in range(10)]


def test_a_store_and_its_logs_keep_to_the_protocols(store: Store) -> None:
    assert isinstance(store, Store)
    assert isinstance(store.open("a"), Log)


def test_ten_thousand_open_logs_in_memory_take_little_room() -> None:
    store = MemoryStore()
    names = [str(number) for number in range(10_000)]
    tracemalloc.start()
    try:
        logs = [store.open(name) for name in names]
        untouched = tracemalloc.get_traced_memory()[0] / len(logs)
        event = message("hello")
        for log in logs:
            log.append_sync([event])
        with_an_event = tracemalloc.get_traced_memory()[0] / len(logs)
    finally:
        tracemalloc.stop()
    assert untouched < 100
    assert with_an_event < 600


# What is written of an event

# Characters that are written in different ways, and a half of one. (All of Unicode takes seconds to set up.)
NASTY = 'aZ0 "\\/\n\x00\x7f\x85é\u2028\ud800\udfff\ufffe\N{GRINNING FACE}'
any_text = st.text(NASTY, max_size=20)
text = st.text(NASTY.replace("\ud800", "").replace("\udfff", ""), max_size=10)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text | st.lists(text, max_size=3)


def joined(text: str) -> str:
    """Two halves that belong together are one character: in JSON they cannot be told apart."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@given(any_text.map(joined), any_text.map(joined))
def test_any_text_survives_even_one_that_is_not_quite_unicode(text: str, other: str) -> None:
    for event in (
        ItemAdded(item=UserMessage(text), message_id=other),
        ItemAdded(item=ToolResult("c", text, "failed"), run_id=other),
        ItemAdded(item=AssistantMessage(text), back=2),
        ItemAdded(item=UnknownItem({"type": "hologram", "text": text})),
        MessageQueued(message_id=other, item=UserMessage([Text(text)])),
        RunEnded(run_id=text, status="error", reason=other),
        UnknownEvent(data={"event": "newer", "text": text}),
    ):
        assert decode_event(encode_event(event)) == event


@given(text.map("newer {}".format), st.dictionaries(text, plain, max_size=3))
def test_an_event_of_a_newer_version_is_kept_as_it_is(kind: str, rest: dict[str, Any]) -> None:
    event = UnknownEvent(data={**rest, "event": kind})
    assert decode_event(encode_event(event), 4, 2.0) == UnknownEvent(data=event.data, seq=4, time=2.0)


def test_members_that_a_newer_version_has_added_to_an_event_do_no_harm() -> None:
    assert decode_event('{"event":"tool_started","call_id":"c","where":"Mars"}', 2, 1.0) == ToolStarted(
        call_id="c", seq=2, time=1.0
    )


@pytest.mark.parametrize(
    "payload",
    [
        *("", "{", "[]", "7", "{}", '{"event": 3}', '{"event": "tool_started"}', '{"event": "item"}'),
        *('{"event": "item", "item": {"type": "user"}}', '{"event": "item", "item": {}}'),
    ],
)
def test_what_is_no_event_cannot_be_read_as_one(payload: str) -> None:
    with pytest.raises(ValueError):
        decode_event(payload)


def test_an_event_that_was_read_from_one_log_can_be_written_to_another(store: Store) -> None:
    first, second = store.open("a"), store.open("b")
    second.append_sync([message("before")])
    first.append_sync(ONE_OF_EACH)
    second.append_sync(first.read_sync())
    copied = second.read_sync(after=1)
    assert [event.seq for event in copied] == list(range(2, len(ONE_OF_EACH) + 2))
    assert [stamp(event, 0, 0.0) for event in copied] == ONE_OF_EACH
    assert [encode_event(event) for event in copied] == [encode_event(event) for event in ONE_OF_EACH]
