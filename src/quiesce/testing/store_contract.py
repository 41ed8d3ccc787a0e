"""The contract of a store, as checks that any store can be put through: `check_store`.

Each check is a rule of `quiesce.agents.Store`, in the words of its docstring, and has conversations of its own. So
they can run against a store that is in use. What a rule needs from outside (an answer that gets lost) is passed in.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread

from quiesce.agents import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ItemAdded,
    ItemPopped,
    ItemsCleared,
    Log,
    MessageQueued,
    Posted,
    RunEnded,
    RunStarted,
    Snapshot,
    StatusChanged,
    StopRequested,
    Store,
    StoreClosed,
    StoreConflict,
    StoreFenced,
    StoreHeld,
    StoreInDoubt,
    ToolStarted,
    UnknownEvent,
    UsageAdded,
    encode_event,
    recover,
)
from quiesce.models import (
    AssistantMessage,
    Note,
    Reasoning,
    ToolCall,
    ToolResult,
    UnknownItem,
    Usage,
    UserMessage,
)

MakeStore: TypeAlias = Callable[[], "Store | Awaitable[Store]"]
LoseAnswer: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]

_WATCH_SECONDS = 10.0  # for a hint that was lost, and found by looking
_MOST_POINTS = 200  # where one call is cancelled
_ODD = "ü\N{SNOWMAN}\x00\U0001f600 'quoted' \\ \"double\" %s {}"


async def check_store(make_store: MakeStore, *, lose_answer: LoseAnswer | None = None) -> list[str]:
    """Put a store through every rule of its contract; raise an ExceptionGroup of those that it breaks.

    ```python
    async def test_my_store_keeps_the_contract():
        await check_store(lambda: MyStore("dsn"))
    ```

    `make_store()` returns a store (or an awaitable of one). Each call returns another one on the same data, as another
    process would have; a store that only one process can see may return itself. They are closed here.

    `lose_answer()` is an async context manager. Inside it, the next write of any of these stores takes place, and its
    answer is lost. Without it, the rule about answers that are lost is not checked.

    Returns the rules that were checked. Works on asyncio and trio.
    """
    subject = _Subject(make_store, lose_answer)
    broken: list[Exception] = []
    checked: list[str] = []
    for check in _CHECKS:
        if check is _a_lost_answer and lose_answer is None:
            continue
        rule = inspect.cleandoc(check.__doc__ or "")
        checked.append(rule)
        try:
            await check(subject)
        except Exception as error:
            error.add_note(f"the rule: {rule}")
            broken.append(error)
        finally:
            await subject.close()
    if broken:
        raise ExceptionGroup(
            f"the store breaks {len(broken)} of {len(checked)} rules of its contract", broken
        )
    return checked


class _Subject:
    """The store that is checked: any number of it, on the same data."""

    def __init__(self, make_store: MakeStore, lose_answer: LoseAnswer | None) -> None:
        self._make_store = make_store
        self.lose_answer = lose_answer
        self._stores: list[Store] = []
        self._is_the_same = False

    async def store(self) -> Store:
        """Return one more."""
        made: Any = self._make_store()
        store: Any = await made if inspect.isawaitable(made) else made
        if not isinstance(store, Store):
            missing = [
                name
                for name in dir(Store)
                if name[0] != "_" and getattr(Store, name, None) is not None and not hasattr(store, name)
            ]
            raise TypeError(f"{type(store).__name__} is not a Store: it lacks {', '.join(missing)}")
        if any(store is one for one in self._stores):
            self._is_the_same = True
        else:
            self._stores.append(store)
        found: Store = store
        return found

    async def two(self) -> tuple[Store, Store]:
        """Return two, as two processes would have them."""
        return await self.store(), await self.store()

    async def close(self) -> None:
        """Close all, unless that would close the only one that there is."""
        if self._is_the_same:
            return
        stores, self._stores = self._stores, []
        for store in stores:
            await store.close()


def _id() -> str:
    return f"contract-{uuid.uuid4().hex}"


def _says(text: str) -> list[Event]:
    return [ItemAdded(item=UserMessage(text))]


def _message(message_id: str, text: str = "Hi") -> MessageQueued:
    return MessageQueued(message_id=message_id, item=UserMessage(text))


def _plain(events: Sequence[Event]) -> list[str]:
    return [encode_event(event) for event in events]


def _check_numbers(events: Sequence[Event]) -> None:
    numbers = [event.seq for event in events]
    assert numbers == list(range(1, len(numbers) + 1)), f"events are numbered {numbers}"


async def _raises(kind: type[Exception], awaitable: Awaitable[object]) -> Exception:
    try:
        value = await awaitable
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, and {value!r} was returned")


ONE_OF_EACH: list[Event] = [
    RunStarted(run_id="r", agent=_ODD, turns=3),
    StatusChanged(status="running", reason=_ODD),
    ItemAdded(item=UserMessage(_ODD), run_id="r", message_id="m", back=1),
    ItemAdded(item=AssistantMessage("", interrupted=True)),
    ItemAdded(item=Reasoning("", data={"data": "x"})),
    ItemAdded(item=ToolCall("c", "t", '{"a": "\\u0000"}')),
    ItemAdded(item=ToolResult("c", "\ud800 is half of something", "interrupted")),
    ItemAdded(item=Note("note")),
    ItemAdded(item=UnknownItem({"type": "of a newer version", "deep": [{"x": None}]})),
    ToolStarted(call_id="c", name="t"),
    ApprovalRequested(call_id="c"),
    ApprovalDecided(call_id="c", approved=True, message=_ODD),
    MessageQueued(message_id="m2", item=UserMessage("queued")),
    StopRequested(request_id="q", run_id="r", message=_ODD, grace={"cancel": 0.5}),
    UsageAdded(usage=Usage(1, 2**40, 3), run_id="r"),
    RunEnded(run_id="r", status="interrupted", lost=True, report={"name": "r", "left": []}),
    ItemPopped(),
    ItemsCleared(),
    UnknownEvent(data={"event": "of a newer version", "x": [1, {"y": _ODD}]}),
    Snapshot(items=[UserMessage("Hi"), ToolResult("c", "\udfff")], kept=1, status="idle", usage=Usage(1, 2)),
]


async def _events_come_back(subject: _Subject) -> None:
    """What was appended is read back as it was, by any store on the same data: numbered 1, 2, 3, ..., with its time."""
    one, other = await subject.two()
    name = _id()
    log = one.open(name)
    half = len(ONE_OF_EACH) // 2
    assert await log.append(ONE_OF_EACH[:half]) == half
    assert await log.append(ONE_OF_EACH[half:]) == len(ONE_OF_EACH)
    for store in (one, other):
        found = await store.open(name).read()
        assert _plain(found) == _plain(ONE_OF_EACH)
        _check_numbers(found)
        assert all(event.time > 1e9 for event in found), "an event has no time"
        assert _plain(await store.open(name).read(3)) == _plain(ONE_OF_EACH[3:])
    assert await one.open(_id()).read() == []


async def _nothing_to_append(subject: _Subject) -> None:
    """An append of no events adds none, and one of something else raises TypeError and adds none."""
    store = await subject.store()
    name = _id()
    log = store.open(name)
    assert await log.append(_says("a")) == 1
    assert await log.append([]) == 1
    not_an_event: Any = UserMessage("an item")
    await _raises(TypeError, log.append([*_says("b"), not_an_event]))
    assert len(await log.read()) == 1
    assert name in await store.ids()


async def _ids(subject: _Subject) -> None:
    """Conversations are listed once they have an event, and gone when deleted; an id is a str that is not empty."""
    one, other = await subject.two()
    name, empty = _id(), _id()
    one.open(empty)
    await one.open(name).append(_says("a"))
    for store in (one, other):
        found = await store.ids()
        assert name in found
        assert empty not in found
        assert found == sorted(found)
    assert await other.delete(name) is True
    assert await one.delete(name) is False
    assert name not in await one.ids()
    assert await one.open(name).read() == []
    wrong: Any
    for wrong in ("", None, 7):
        try:
            one.open(wrong)
        except ValueError:
            continue
        raise AssertionError(f"a conversation was opened whose id is {wrong!r}")


async def _a_second_writer(subject: _Subject) -> None:
    """A log that does not know the last event cannot append, and adds nothing, until it has read that."""
    one, other = await subject.two()
    name = _id()
    first, second = one.open(name), other.open(name)
    await first.append(_says("a"))
    await second.read()
    await first.append(_says("b"))
    await _raises(StoreConflict, second.append([*_says("x"), *_says("y")]))
    await _raises(StoreConflict, second.append(_says("x"), after=1))
    await _raises(StoreConflict, second.append(_says("x"), after=3))  # there is no event 3
    assert await second.append(_says("c"), after=2) == 3
    await first.read()
    assert await first.append(_says("d")) == 4
    assert _plain(await other.open(name).read()) == _plain(
        [*_says("a"), *_says("b"), *_says("c"), *_says("d")]
    )


async def _a_deleted_conversation(subject: _Subject) -> None:
    """A log whose conversation was deleted cannot go on with it unseen, and its leases are not valid any more."""
    one, other = await subject.two()
    name = _id()
    log = one.open(name)
    await log.append([*_says("a"), *_says("b")])
    lease = await one.lease(name)
    await lease.release()
    await other.delete(name)
    await _raises(StoreConflict, log.append(_says("c")))
    later = await other.lease(name)
    assert later.epoch > lease.epoch
    assert later.last_seq == 0
    await _raises(StoreFenced, lease.log.append(_says("c"), after=0))
    await later.release()


async def _writers_that_race(subject: _Subject) -> None:
    """Of writers that race, each append is there once, whole, and without a gap."""
    one, other = await subject.two()
    name = _id()
    expected: list[str] = []

    async def write(store: Store, who: str) -> None:
        log = store.open(name)
        for number in range(8):
            batch = [*_says(f"{who} {number} a"), *_says(f"{who} {number} b")]
            while True:
                try:
                    await log.append(batch)
                    break
                except StoreConflict:
                    await log.read()
            expected.append(f"{who} {number}")

    async with anyio.create_task_group() as group:
        for store, who in ((one, "1"), (other, "2"), (one, "3")):
            group.start_soon(write, store, who)
    found = await one.open(name).read()
    _check_numbers(found)
    texts = [str(getattr(event.item, "content", "")) for event in found if isinstance(event, ItemAdded)]
    halves = list(zip(texts[::2], texts[1::2], strict=True))
    assert all((first[-1], second) == ("a", f"{first[:-1]}b") for first, second in halves), texts
    assert sorted(first[:-2] for first, _ in halves) == sorted(expected)


async def _many_conversations(subject: _Subject) -> None:
    """Many conversations that append at once do not mix."""
    store = await subject.store()
    names = [_id() for _ in range(50)]

    async def write(name: str) -> None:
        log = store.open(name)
        for number in range(4):
            assert await log.append(_says(f"{name} {number}")) == number + 1

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(write, name)
    for name in names:
        assert _plain(await store.open(name).read()) == _plain([*(_says(f"{name} {n}")[0] for n in range(4))])


async def _posts(subject: _Subject) -> None:
    """A post goes to the end of the log, from any log and under any lease; the poster has not read the log by that."""
    one, other = await subject.two()
    name = _id()
    lease = await one.lease(name, owner="the runner")
    behind = other.open(name)
    await behind.read()
    assert await lease.log.append(_says("a")) == 1
    posted: list[Posted] = [
        _message("m1"),
        ApprovalDecided(call_id="c", approved=False),
        StopRequested(request_id="q", run_id="r"),
    ]
    assert await behind.post(posted) == 4
    assert _plain(await one.open(name).read()) == _plain([*_says("a"), *posted])
    await _raises(StoreConflict, lease.log.append(_says("b")))
    assert await lease.log.append(_says("b"), after=4) == 5
    await lease.release()
    await _raises(StoreConflict, behind.append(_says("x")))
    not_posted: Any = _says("an item")
    await _raises(TypeError, behind.post(not_posted))
    fresh = _id()
    assert await other.open(fresh).post([_message("m1")]) == 1  # the same id, in another conversation
    assert await other.open(fresh).post([]) == 0


async def _a_message_once(subject: _Subject) -> None:
    """A message id is in a log only once, however often and from however many stores it is posted."""
    one, other = await subject.two()
    name = _id()
    assert await one.open(name).post([_message("m", "first"), _message("m", "again")]) == 1
    assert await other.open(name).post([_message("m", "later")]) == 0
    assert await other.open(name).post([_message("m", "later"), _message("n")]) == 2
    lease = await one.lease(name)
    await lease.log.append([_message("o")])
    await lease.release()
    assert await other.open(name).post([_message("o", "later")]) == 0
    results: list[int] = []

    async def post(store: Store) -> None:
        results.append(await store.open(name).post([_message("race")]))

    async with anyio.create_task_group() as group:
        for store in (one, other, one, other):
            group.start_soon(post, store)
    assert sorted(results) == [0, 0, 0, 4]
    ids = [event.message_id for event in await one.open(name).read() if isinstance(event, MessageQueued)]
    assert ids == ["m", "n", "o", "race"]


async def _leases(subject: _Subject) -> None:
    """One holder at a time has the lease: others are told who, and cannot append; each lease has a higher epoch."""
    one, other = await subject.two()
    name = _id()
    await one.open(name).append(_says("before"))
    lease = await one.lease(name, owner=f"first {_ODD[1:4]}".replace("\x00", ""))
    assert lease.last_seq == 1
    for store in (one, other):
        holder = await store.holder(name)
        assert holder is not None
        assert holder.epoch == lease.epoch
        assert holder.owner.startswith("first")
        error = await _raises(StoreHeld, store.lease(name, owner="second"))
        assert isinstance(error, StoreHeld)
        assert error.holder == holder
        log = store.open(name)
        await log.read()
        await _raises(StoreHeld, log.append(_says("x")))
    assert await lease.log.append(_says("mine")) == 2
    await lease.release()
    await lease.release()
    assert await other.holder(name) is None
    second = await other.lease(name)
    assert second.epoch > lease.epoch
    assert second.last_seq == 2
    await lease.release()  # of an earlier one: the later one stays
    assert await one.holder(name) is not None
    await _raises(StoreFenced, lease.log.append(_says("x"), after=2))
    await second.release()
    log = one.open(name)
    await log.read()
    assert await log.append(_says("anyone")) == 3
    assert await one.holder(_id()) is None


async def _leases_that_race(subject: _Subject) -> None:
    """Of those who ask for a lease at the same time, one gets it."""
    one, other = await subject.two()
    for _ in range(5):
        name = _id()
        granted: list[Any] = []
        refused: list[StoreHeld] = []

        async def ask(store: Store, name: str, granted: list[Any], refused: list[StoreHeld]) -> None:
            try:
                granted.append(await store.lease(name))
            except StoreHeld as error:
                refused.append(error)

        async with anyio.create_task_group() as group:
            for store in (one, other, one, other):
                group.start_soon(ask, store, name, granted, refused)
        assert (len(granted), len(refused)) == (1, 3), f"{len(granted)} of 4 got the lease"
        await granted[0].release()


async def _fences(subject: _Subject) -> None:
    """From the moment a lease is granted, an append under an older one raises StoreFenced and adds nothing."""
    one, other = await subject.two()
    name = _id()
    old = await one.lease(name, epoch=10)
    await old.log.append(_says("old"))
    await _raises(StoreFenced, other.lease(name, epoch=10))
    await _raises(StoreFenced, other.lease(name, epoch=9))
    assert await old.log.append(_says("still")) == 2
    new = await other.lease(name, epoch=11, owner="new")
    assert (new.epoch, new.last_seq) == (11, 2)
    await _raises(StoreFenced, old.log.append(_says("late"), after=2))
    await _raises(StoreFenced, old.log.append(_says("late")))
    assert await old.log.post([_message("said under the old lease")]) == 3  # that needs none
    await old.release()
    holder = await one.holder(name)
    assert holder is not None
    assert holder.epoch == 11
    assert await new.log.append(_says("new"), after=3) == 4
    assert len(await one.open(name).read()) == 4
    await new.release()
    after = await one.lease(name)
    assert after.epoch > 11
    await after.release()


async def _fences_that_race(subject: _Subject) -> None:
    """An append under the old lease that races with a new one is before it, or is refused."""
    one, other = await subject.two()

    async def write(log: Log, written: list[int]) -> None:
        try:
            while True:
                written.append(await log.append(_says("old")))
                await anyio.lowlevel.checkpoint()  # a store in memory never waits
        except StoreFenced:
            pass

    for _ in range(10):
        name = _id()
        old = await one.lease(name, epoch=1)
        written: list[int] = []
        before = 0
        async with anyio.create_task_group() as group:
            group.start_soon(write, old.log, written)
            while not written:
                await anyio.lowlevel.checkpoint()
            new = await other.lease(name, epoch=2)
            before = new.last_seq
            await new.log.append(_says("new"))
            await new.release()
            found = await one.open(name).read()
            assert len(found) == before + 1
        assert len(written) == before


async def _a_dropped_lease(subject: _Subject) -> None:
    """A caller who is cancelled while it waits for a lease holds none."""
    store = await subject.store()
    for point in range(_MOST_POINTS):
        name = _id()
        lease = await _cancelled_at(point, store.lease, name)
        if lease is not None:
            await lease.release()
            return
        assert await store.holder(name) is None, f"cancelled at point {point}"


async def _cancels(subject: _Subject) -> None:
    """A caller who is cancelled during a write gets the cancel when the events are there, all of them, or none ever."""
    store = await subject.store()
    for way in ("append", "post"):
        for point in range(_MOST_POINTS):
            log = store.open(_id())
            events: list[Any] = [_message("a"), _message("b")]
            last = await _cancelled_at(point, getattr(log, way), events)
            found = await log.read()
            if last is not None:
                assert (last, len(found)) == (2, 2)
                break
            assert len(found) in (0, 2), f"cancelled at point {point}, {len(found)} of 2 events are there"
            assert await log.append(_says("next")) == len(found) + 1
            await anyio.sleep(0.002)
            assert len(await log.read()) == len(found) + 1, "what was cancelled arrived later"


async def _cancelled_at(point: int, fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Call `fn` and cancel that after so many rounds of the event loop; returns None if the cancel came through."""
    result: Any = None

    async def call() -> None:
        nonlocal result
        result = await fn(*args)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        for _ in range(point):
            if result is not None:
                break
            # Some of it happens in threads, or on the other side of a connection: give that time too.
            await anyio.sleep(0 if point % 2 else 0.0003)
        group.cancel_scope.cancel()
    return result


async def _loads(subject: _Subject) -> None:
    """`load` returns every snapshot, and the events after the last one: they add up to the same as all events."""
    one, other = await subject.two()
    name = _id()
    assert await one.open(name).load() == []
    log = one.open(name)
    items: list[Any] = []
    kept = 0
    for number in range(1, 40):
        items.append(UserMessage(str(number)))
        await log.append([ItemAdded(item=items[-1]), UsageAdded(usage=Usage(1, 2))])
        if number % 10 == 0:
            usage = Usage(number, 2 * number)
            await log.append([Snapshot(items=items[kept:], kept=kept, status="paused", usage=usage)])
            kept = len(items)
    everything = await one.open(name).read()
    for store in (one, other):
        found = await store.open(name).load()
        assert sum(isinstance(event, Snapshot) for event in found) == 3
        assert len(found) == 3 + 9 * 2
        assert found[-1].seq == everything[-1].seq
        short, long = recover(found), recover(everything)
        assert short.items == long.items == items
        assert (short.usage, short.status, short.last_seq) == (long.usage, long.status, long.last_seq)
    assert await log.append(_says("load has read")) == len(everything) + 1


async def _watches(subject: _Subject) -> None:
    """A watch hands over every event after a number, in order and once: those there are, and those that come."""
    one, other = await subject.two()
    name = _id()
    await one.open(name).append([*_says("1"), *_says("2")])
    seen: list[int] = []
    late: list[int] = []
    end = one.open(name).watch(lambda events: seen.extend(event.seq for event in events), after=1)
    end_other = other.open(name).watch(lambda events: late.extend(event.seq for event in events), after=0)
    lease = await one.lease(name)
    await lease.log.append([*_says("3"), *_says("4")])
    await other.open(name).post([_message("5")])
    await one.open(name).post([_message("6")])
    await lease.release()
    with anyio.move_on_after(_WATCH_SECONDS):
        while len(seen) < 5 or len(late) < 6:  # noqa: ASYNC110 - it is called in a thread of the store
            await anyio.sleep(0.005)
    assert seen == [2, 3, 4, 5, 6], f"the watch from number 1 on has handed over {seen}"
    assert late == [1, 2, 3, 4, 5, 6], f"the watch of another store has handed over {late}"
    end()
    end()
    end_other()
    await other.open(name).post([_message("7")])
    await anyio.sleep(0.1)
    assert seen == [2, 3, 4, 5, 6], "a watch goes on after its end"


async def _a_large_event(subject: _Subject) -> None:
    """An event of 5 MB is one event like another."""
    one, other = await subject.two()
    name = _id()
    text = "tool output \u2603 " * 400_000
    await one.open(name).append([ItemAdded(item=ToolResult("c", text)), *_says("b")])
    found = await other.open(name).read()
    assert isinstance(found[0], ItemAdded)
    assert isinstance(found[0].item, ToolResult)
    assert found[0].item.output == text


async def _plain_threads(subject: _Subject) -> None:
    """Every method has a twin for plain threads, that does the same."""
    store = await subject.store()
    name = _id()

    def work() -> None:
        log = store.open(name)
        assert log.append_sync(_says("a")) == 1
        assert log.post_sync([_message("m")]) == 2
        assert [event.seq for event in log.read_sync(1)] == [2]
        lease = store.lease_sync(name, owner="thread")
        holder = store.holder_sync(name)
        assert holder is not None
        assert holder.epoch == lease.epoch
        assert lease.log.append_sync(_says("b")) == 3
        lease.release_sync()
        assert store.holder_sync(name) is None
        assert len(log.load_sync()) == 3
        assert name in store.ids_sync()
        assert store.delete_sync(name) is True

    await anyio.to_thread.run_sync(work)


async def _closing(subject: _Subject) -> None:
    """A log or store that was closed refuses to write; closing again, and by several callers, does nothing."""
    one, other = await subject.two()
    name = _id()
    log = one.open(name)
    await log.append(_says("a"))
    log.close()
    log.close()
    await _raises(StoreClosed, log.append(_says("b")))
    await _raises(StoreClosed, log.post([_message("m")]))
    again = one.open(name)
    await again.read()
    await again.append(_says("b"))
    lease = await one.lease(name) if one is not other else None
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one.close)
    await one.close()
    await _raises(StoreClosed, again.append(_says("c")))
    try:
        one.open(name)
    except StoreClosed:
        pass
    else:
        raise AssertionError("a store that was closed opens a log")
    if lease is not None:
        assert len(await other.open(name).read()) == 2
        assert await other.holder(name) is None, "a store that was closed still holds a lease"


async def _a_lost_answer(subject: _Subject) -> None:
    """A write whose answer is lost raises StoreInDoubt; it is there once, and can be asked for."""
    assert subject.lose_answer is not None
    one, other = await subject.two()
    name = _id()
    lease = await one.lease(name)
    await lease.log.append(_says("a"))
    async with subject.lose_answer():
        await _raises(StoreInDoubt, lease.log.append(_says("b")))
    found = await one.open(name).read()
    assert _plain(found) in (_plain([*_says("a")]), _plain([*_says("a"), *_says("b")]))
    assert await lease.log.append(_says("c"), after=len(found)) == len(found) + 1
    await other.open(_id()).append(_says("so that it is connected, and ready to write"))
    async with subject.lose_answer():
        await _raises(StoreInDoubt, other.open(name).post([_message("m")]))
    last = await other.open(name).post([_message("m")])
    messages = [event for event in await one.open(name).read() if isinstance(event, MessageQueued)]
    assert len(messages) == 1, (
        f"the message is there {len(messages)} times (posting it again returned {last})"
    )
    await lease.release()


_CHECKS: Sequence[Callable[[_Subject], Awaitable[None]]] = (
    _events_come_back,
    _nothing_to_append,
    _ids,
    _a_second_writer,
    _a_deleted_conversation,
    _writers_that_race,
    _many_conversations,
    _posts,
    _a_message_once,
    _leases,
    _leases_that_race,
    _fences,
    _fences_that_race,
    _a_dropped_lease,
    _cancels,
    _loads,
    _watches,
    _a_large_event,
    _plain_threads,
    _a_lost_answer,
    _closing,  # last: a store that returns itself is closed by it
)
