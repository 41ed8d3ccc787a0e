"""Conversations on disk: resumed by id, after an interrupt, after a crash in the middle of a tool, and with a store that fails."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce.agents import (
    Agent,
    Conversation,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    MemoryStore,
    RunHooks,
    SQLiteStore,
    function_tool,
    handoff,
)
from quiesce.agents.conversation.restore import restore
from quiesce.agents.store import (
    ApprovalDecided,
    Event,
    ItemAdded,
    MessageQueued,
    Posted,
    RunEnded,
    RunStarted,
    StatusChanged,
    StoreError,
    ToolStarted,
    recover,
)
from quiesce.agents.store.memory import MemoryLog
from quiesce.models import (
    AssistantMessage,
    ModelEvent,
    ModelRequest,
    Note,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from quiesce.testing import Answer, ScriptedModel, call
from tests.agents.conversations import asked, parked_tool, running
from tests.agents.scenes import MIDDLE, Parked, SlowModel, assert_valid, outcomes, time_limit_once

pytestmark = pytest.mark.real_time

made: list[str] = []


@function_tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay somebody."""
    made.append(to)
    return f"paid {to}"


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    made.clear()


def opened(path: Any, *turns: Any, tools: Any = (), **options: Any) -> Conversation:
    agent: Agent[Any] = Agent(name="assistant", model=ScriptedModel(turns), tools=tools)
    return Conversation(agent, store=path, conversation_id="c", **options)


async def test_it_goes_on_in_another_process_of_the_same_id(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    spent = Usage(requests=1, input_tokens=3, output_tokens=4)
    async with opened(path, Answer(["Hello!"], usage=spent)) as conversation:
        await conversation.asend_message("Hi")
        assert await conversation.arun() == "finished"
    async with opened(path, "Fine.") as conversation:
        assert conversation.status == "finished"
        assert conversation.items == [UserMessage("Hi"), AssistantMessage("Hello!")]
        assert conversation.usage == spent
        conversation.send_message("How are you?")
        assert await conversation.arun() == "finished"
        assert len(asked(conversation)[0].items) == 3
    async with opened(path) as conversation:
        assert [type(item).__name__ for item in conversation.items][-1] == "AssistantMessage"
        seqs = [event.seq for event in conversation.events()]
        assert seqs == list(range(1, len(seqs) + 1))


async def test_a_message_is_durable_when_send_message_returns(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    conversation = opened(path, "Hello!")
    conversation.send_message("Hi")
    with sqlite3.connect(path) as other:
        dump = "\n".join(other.iterdump())
    other.close()
    assert '"Hi"' in dump
    async with opened(path, "Hello!") as again:
        assert again.items == [UserMessage("Hi")]
        assert await again.arun() == "finished"
        assert again.items == [UserMessage("Hi"), AssistantMessage("Hello!")]
    conversation.send_message("Are you there?")  # another one has run it meanwhile: this comes behind that
    await conversation.close()
    async with opened(path, "Yes.") as again:
        assert again.items == [UserMessage("Hi"), AssistantMessage("Hello!"), UserMessage("Are you there?")]


async def test_an_interrupted_run_is_saved_before_anybody_is_told(tmp_path: Path) -> None:
    parked = Parked()
    conversation = opened(tmp_path / "chat.db", call("park"), "never", tools=[parked_tool(parked)])
    await conversation.asend_message("Hi")
    async with running(conversation) as run:
        await parked.reached.wait()
        await conversation.interrupt("Esc")
        async with opened(tmp_path / "chat.db") as seen:
            assert seen.items == conversation.items
            assert seen.status == "paused"
    assert run.status == "paused"
    await conversation.close()
    async with opened(tmp_path / "chat.db", "Going on.") as conversation:
        assert outcomes(conversation.items) == ["interrupted"]
        assert isinstance(conversation.items[-1], Note)
        assert await conversation.arun() == "finished"
        asked(conversation)


async def test_cancelled_again_and_again_it_is_saved_all_the_same(tmp_path: Path) -> None:
    parked = Parked()
    conversation = opened(tmp_path / "chat.db", call("park"), "never", tools=[parked_tool(parked)])
    await conversation.asend_message("Hi")
    async with time_limit_once(lambda: parked.begun, after=MIDDLE), time_limit_once(lambda: parked.begun):
        await conversation.arun()
    parked.assert_tidy()
    items = conversation.items
    await conversation.close()
    async with opened(tmp_path / "chat.db") as conversation:
        assert conversation.items == items
        assert conversation.status == "paused"
        assert_valid(items)


async def test_cancelled_at_any_moment_what_is_on_disk_is_what_was_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with SQLiteStore(path) as store:
        for number in range(12):
            agent: Agent[Any] = Agent(
                name="a",
                model=ScriptedModel([[call("add", a=1, b=2), call("add", a=2, b=2)], "Four."]),
                tools=[add],
            )
            conversation = Conversation(agent, store=store, conversation_id=str(number))
            await conversation.asend_message("Hi")
            with anyio.move_on_after(0.0005 * number):
                await conversation.arun()
            assert_valid(conversation.items)
            again = Conversation(agent, store=store, conversation_id=str(number))
            assert again.items == conversation.items, number
            assert again.status == conversation.status or conversation.status == "idle"


async def test_approvals_wait_through_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    both = [call("add", "sum", a=1, b=2), call("pay", "p", to="Ann"), call("pay", "q", to="Bob")]
    async with opened(path, both, tools=[pay, add]) as conversation:
        await conversation.asend_message("Pay.")
        assert await conversation.arun() == "waiting_for_approval"
        conversation.reject("q", "not him")
    async with opened(path, "Paid.", tools=[pay, add]) as conversation:
        assert conversation.status == "waiting_for_approval"
        assert [one.call_id for one in conversation.pending_approvals] == ["p"]
        conversation.approve("p")
        assert await conversation.arun() == "finished"
        assert made == ["Ann"]
        assert outcomes(conversation.items) == ["finished", "finished", "rejected"]
        asked(conversation)
        items = conversation.items
    async with opened(path) as conversation:
        assert conversation.items == items


async def test_a_message_after_a_restart_gives_up_what_waited(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with opened(path, call("pay", to="Ann"), tools=[pay]) as conversation:
        await conversation.asend_message("Pay.")
        await conversation.arun()
    async with opened(path, "Fine.", tools=[pay]) as conversation:
        await conversation.asend_message("Forget it.")
        assert await conversation.arun() == "finished"
        items = conversation.items
        assert outcomes(items) == ["not_started"]
    async with opened(path) as conversation:
        assert conversation.items == items


async def test_after_a_restart_the_agent_that_took_over_goes_on(tmp_path: Path) -> None:
    def house() -> Agent[Any]:
        expert: Agent[Any] = Agent(name="expert", model=ScriptedModel(["I know."]))
        return Agent(
            name="desk", model=ScriptedModel([call("transfer_to_expert")]), handoffs=[handoff(expert)]
        )

    path = tmp_path / "chat.db"
    async with Conversation(house(), store=path, conversation_id="c") as conversation:
        await conversation.asend_message("Hi")
        await conversation.arun()
    async with Conversation(house(), store=path, conversation_id="c") as conversation:
        assert conversation.agent.name == "expert"


async def test_a_store_may_hold_many_and_is_closed_by_its_owner() -> None:
    async with MemoryStore() as store:
        agent: Agent[Any] = Agent(name="a", model=ScriptedModel(["1", "2"]))
        for name in ("x", "y"):
            async with Conversation(agent, store=store, conversation_id=name) as conversation:
                await conversation.asend_message("Hi")
                await conversation.arun()
        assert await store.ids() == ["x", "y"]
        again = Conversation(agent, store=store, conversation_id="x")
        assert again.items[-1] == AssistantMessage("1")
        await again.close()
        assert await store.ids() == ["x", "y"]


async def test_a_sync_program_uses_the_same_store(tmp_path: Path) -> None:
    def program() -> str:
        with opened(tmp_path / "chat.db", "Hello!") as conversation:
            conversation.send_message("Hi")
            return conversation.run()

    assert await anyio.to_thread.run_sync(program) == "finished"


# A store that fails


class Failing(MemoryStore):
    """In memory, but waited for; fails when it is told to."""

    __slots__ = ("failing",)

    def __init__(self) -> None:
        super().__init__()
        self.failing = False

    def open(self, conversation_id: str) -> MemoryLog:
        return _FailingLog(self, conversation_id)


class _FailingLog(MemoryLog):
    __slots__ = ()

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        await anyio.sleep(0)
        return self.append_sync(events, after=after)

    def append_sync(self, events: Sequence[Event], *, after: int | None = None) -> int:
        store = self._store
        assert isinstance(store, Failing)
        if store.failing:
            raise StoreError("the disk is full")
        return super().append_sync(events, after=after)

    async def post(self, events: Sequence[Posted]) -> int:
        await anyio.sleep(0)
        return self.post_sync(events)

    def post_sync(self, events: Sequence[Posted]) -> int:
        assert isinstance(self._store, Failing)
        if self._store.failing:
            raise StoreError("the disk is full")
        return super().post_sync(events)


async def test_a_message_that_could_not_be_kept_was_not_said() -> None:
    store = Failing()
    conversation = opened(store, "Hello!")
    store.failing = True
    with pytest.raises(StoreError, match="full"):
        conversation.send_message("Hi")
    assert conversation.items == []
    store.failing = False
    await conversation.asend_message("Hi")
    assert await conversation.arun() == "finished"


async def test_a_run_whose_store_fails_ends_with_that_error_and_nothing_is_lost_when_it_is_mended() -> None:
    store = Failing()

    async def answer(request: Any) -> str:
        store.failing = True
        return "Hello!"

    conversation = opened(store, answer, "Going on.")
    conversation.send_message("Hi")
    with pytest.raises(StoreError, match="full"):
        await conversation.arun()
    assert conversation.status == "error"
    assert conversation.items == [UserMessage("Hi"), AssistantMessage("Hello!")]
    store.failing = False
    conversation.send_message("More")
    assert await conversation.arun() == "finished"
    assert opened(store).items == conversation.items


async def test_what_a_failing_store_owes_is_written_when_the_conversation_is_closed() -> None:
    store = Failing()

    async def answer(request: Any) -> str:
        store.failing = True
        return "Hello!"

    conversation = opened(store, answer)
    conversation.send_message("Hi")
    with pytest.raises(StoreError, match="full"):
        await conversation.arun()
    store.failing = False
    await conversation.close()
    assert opened(store).items == conversation.items


async def test_a_tool_whose_start_cannot_be_recorded_does_not_start() -> None:
    store = Failing()
    started: list[int] = []

    @function_tool
    async def launch() -> str:
        """Launch."""
        started.append(1)
        return "launched"

    def fill(event: Event) -> None:
        if isinstance(event, ItemAdded) and isinstance(event.item, ToolCall):
            store.failing = True

    conversation = opened(store, call("launch"), "never", tools=[launch], callbacks=[fill])
    conversation.send_message("Hi")
    with pytest.raises(StoreError):
        await conversation.arun()
    assert started == []
    assert outcomes(conversation.items) == ["not_started"]


async def test_hooks_are_told_of_the_end_though_the_store_fails() -> None:
    store = Failing()
    told: list[str] = []

    class Hooks(RunHooks[Any]):
        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            store.failing = True

        async def on_settled(self, context: Any, agent: Any, report: Any) -> None:
            told.append("settled")

    conversation = opened(store, "Hello!", hooks=Hooks())
    await conversation.asend_message("Hi")
    with pytest.raises(StoreError, match="full"):
        await conversation.arun()
    assert told == ["settled"]


# Two writers


async def test_two_that_take_turns_on_one_conversation_go_on_where_the_other_has_ended(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "chat.db", "I see both.") as one:
        await one.asend_message("from one")
        async with opened(tmp_path / "chat.db", "yes") as other:
            await other.asend_message("from the other")
            assert await other.arun() == "finished"
            await one.asend_message("more")
            assert await one.arun() == "finished"
            said = ["from one", "from the other", "yes", "more", "I see both."]
            assert [
                getattr(item, "content", None) or getattr(item, "text", None) for item in one.items
            ] == said
            await other.refresh()
            assert other.items == one.items


# A program that is killed


PROGRAM = """
import os, sys, time
from pathlib import Path
from quiesce.agents import Agent, Conversation, function_tool
from quiesce.testing import ScriptedModel, call

path, marker = sys.argv[1], Path(sys.argv[2])

@function_tool
def launch(what: str) -> str:
    "Launch it."
    with marker.open("a") as file:
        file.write(what + "\\n")
    time.sleep(60)
    return "launched"

@function_tool
async def look() -> str:
    "Look."
    return "nothing to see"

@function_tool(needs_approval=True)
async def pay() -> str:
    "Pay."
    return "paid"

turns = [call("look", "look-1"), [call("launch", "launch-1", what="rocket"), call("pay", "pay-1")]]
agent = Agent(name="a", model=ScriptedModel(turns), tools=[launch, look, pay])
with Conversation(agent, store=path, conversation_id="c") as conversation:
    conversation.send_message("Go.")
    conversation.run()
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The store of a program that was killed in the middle of a tool."""
    program, path, marker = tmp_path / "program.py", tmp_path / "chat.db", tmp_path / "marker"
    program.write_text(textwrap.dedent(PROGRAM))
    process = subprocess.Popen([sys.executable, str(program), str(path), str(marker)])
    try:
        ends = time.monotonic() + 30
        while not marker.exists() and time.monotonic() < ends and process.poll() is None:
            time.sleep(0.01)
        assert marker.exists()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return path


@pytest.mark.worlds("asyncio")
async def test_after_a_kill_in_a_tool_its_outcome_is_unknown_and_it_is_not_repeated(killed: Path) -> None:
    launched: list[str] = []

    @function_tool
    def launch(what: str) -> str:
        """Launch it."""
        launched.append(what)
        return "launched"

    async with opened(killed, "I cannot tell.", tools=[launch, pay]) as conversation:
        assert conversation.status == "paused"
        assert [one.call_id for one in conversation.pending_approvals] == ["pay-1"]
        conversation.reject()
        assert await conversation.arun() == "finished"
        assert outcomes(conversation.items) == ["finished", "unknown", "rejected"]
        asked(conversation)
        items = conversation.items
    assert launched == []
    async with opened(killed) as conversation:
        assert conversation.items == items
        assert conversation.status == "finished"


# What a log comes to


def calls(*ids: str) -> list[Event]:
    return [ItemAdded(item=ToolCall(one, "t")) for one in ids]


def test_a_log_that_ends_in_a_run_is_owed_its_end() -> None:
    cut = [
        ItemAdded(item=UserMessage("a")),
        RunStarted(run_id="r"),
        *calls("x", "y"),
        ToolStarted(call_id="x"),
    ]
    found = restore(recover(cut))
    assert found.status == "paused"
    assert outcomes(found.history.items) == ["unknown", "not_started"]
    assert [type(event) for event in found.unwritten] == [ItemAdded, ItemAdded, RunEnded, StatusChanged]
    whole = restore(recover([*cut, *found.unwritten]))
    assert whole.history.items == found.history.items
    assert whole.unwritten == []


def test_every_prefix_of_a_log_is_a_conversation_that_can_go_on() -> None:
    agent: Agent[Any] = Agent(
        name="a",
        model=ScriptedModel([[call("add", a=1, b=2), call("pay", to="Ann")], "Done.", "More."]),
        tools=[add, pay],
    )
    conversation = Conversation(agent)

    async def live() -> None:
        conversation.send_message("a")
        await conversation.arun()
        conversation.approve()
        await conversation.arun()
        conversation.send_message("b")
        await conversation.arun()

    anyio.run(live)
    events = conversation.events()
    assert any(isinstance(event, ApprovalDecided) for event in events)
    assert any(isinstance(event, MessageQueued) for event in events)
    for length in range(len(events) + 1):
        found = restore(recover(events[:length])).history
        if not found.calls:
            assert_valid(found.items)
        else:
            assert_valid([*found.items, *(r.result or ToolResult(r.call.call_id, "") for r in found.calls)])
    assert restore(recover(events)).history.items == conversation.items


class StuckModel(SlowModel):
    """Says one word, tells when that was taken, and is stuck."""

    def __init__(self) -> None:
        super().__init__("one two", pause=0.01)
        self.was_heard = anyio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                self._pause = 60.0
                yield event
                self.was_heard.set()


async def test_partial_text_is_kept_on_disk_too(tmp_path: Path) -> None:
    model = StuckModel()
    async with Conversation(
        Agent(name="a", model=model), store=tmp_path / "chat.db", conversation_id="c"
    ) as conversation:
        await conversation.asend_message("count")
        async with running(conversation):
            await model.was_heard.wait()
            await conversation.interrupt()
    async with opened(tmp_path / "chat.db") as conversation:
        assert AssistantMessage("one", interrupted=True) in conversation.items
        assert conversation.usage.unreported == 1


class Slow(MemoryStore):
    """In memory, but an append of certain events can be caught before or after it took place, and cancelled there."""

    __slots__ = ("catches", "caught", "when")

    def __init__(self, catches: type[Any], when: str) -> None:
        super().__init__()
        self.catches = catches
        self.when = when
        self.caught = anyio.Event()

    def open(self, conversation_id: str) -> MemoryLog:
        return _SlowLog(self, conversation_id)


class _SlowLog(MemoryLog):
    __slots__ = ()

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        store = self._store
        assert isinstance(store, Slow)
        caught = not store.caught.is_set() and any(
            isinstance(getattr(event, "item", event), store.catches) for event in events
        )
        if caught and store.when == "before":
            store.caught.set()
            await anyio.sleep_forever()
        last = self.append_sync(events, after=after)
        if caught:
            store.caught.set()
            await anyio.sleep_forever()
        return last

    async def post(self, events: Sequence[Posted]) -> int:
        store = self._store
        assert isinstance(store, Slow)
        caught = not store.caught.is_set() and store.catches is UserMessage
        if caught and store.when == "before":
            store.caught.set()
            await anyio.sleep_forever()
        last = self.post_sync(events)
        if caught:
            store.caught.set()
            await anyio.sleep_forever()
        return last


@pytest.mark.parametrize("when", ["before", "after"])
async def test_cancelled_while_it_is_being_said_a_message_was_said_or_not_and_everybody_knows(
    when: str,
) -> None:
    store = Slow(UserMessage, when)
    store.caught.set()  # not yet
    told: list[Event] = []
    conversation = opened(store, call("pay", to="Ann"), "Never mind.", tools=[pay], callbacks=[told.append])
    await conversation.asend_message("Pay Ann")
    assert await conversation.arun() == "waiting_for_approval"
    store.caught = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.asend_message, "No, wait")
        await store.caught.wait()
        group.cancel_scope.cancel()
    assert (UserMessage("No, wait") in conversation.items) is (when == "after")
    conversation.send_message("Well")
    assert opened(store).items == conversation.items
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert len(told) == len(conversation.events())
    assert await conversation.arun() == "finished"
    given_up = [e for e in told if isinstance(e, ItemAdded) and isinstance(e.item, ToolResult)]
    assert len(given_up) == 1
    asked(conversation)


async def test_cancelled_on_the_way_to_the_disk_a_message_is_in_memory_as_on_disk(tmp_path: Path) -> None:
    async with opened(tmp_path / "chat.db") as conversation:
        for number in range(5):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await conversation.asend_message(str(number))
        kept = conversation.items
        assert len(await anyio.to_thread.run_sync(conversation.events)) == len(kept)
    async with opened(tmp_path / "chat.db") as conversation:
        assert conversation.items == kept


async def test_a_stop_before_the_first_step_is_on_disk_and_told(tmp_path: Path) -> None:
    for name, awaits in (("awaited.db", True), ("closed.db", False)):
        told: list[Event] = []
        async with opened(tmp_path / name, "never", callbacks=[told.append]) as conversation:
            await conversation.asend_message("Hi")
            coming = conversation.arun()
            conversation.interrupt()
            if awaits:
                assert await coming == "paused"
                assert isinstance(told[-1], StatusChanged)
        if not awaits:
            assert await coming == "paused"
        assert [type(event) for event in told] == [MessageQueued, StatusChanged]
        async with opened(tmp_path / name) as conversation:
            assert conversation.status == "paused"


async def test_what_no_guardrail_has_passed_before_a_stop_is_checked_after_a_restart(tmp_path: Path) -> None:
    reached = anyio.Event()

    async def check(context: Any, agent: Any, said: Any) -> GuardrailFunctionOutput:
        if not reached.is_set():
            reached.set()
            await anyio.sleep_forever()
        return GuardrailFunctionOutput(None, "secret" in str(said))

    model = ScriptedModel(["never"])
    agent: Agent[Any] = Agent(
        name="a", model=model, input_guardrails=[InputGuardrail(check, run_in_parallel=False)]
    )
    async with Conversation(agent, store=tmp_path / "chat.db", conversation_id="c") as conversation:
        await conversation.asend_message("the secret")
        async with running(conversation):
            await reached.wait()
            await conversation.interrupt()
    async with Conversation(agent, store=tmp_path / "chat.db", conversation_id="c") as conversation:
        with pytest.raises(InputGuardrailTripwireTriggered):
            await conversation.arun()
    assert model.requests == []


async def test_stopped_in_the_hook_of_a_handoff_the_live_and_the_reopened_one_go_on_with_the_same_agent(
    tmp_path: Path,
) -> None:
    parked = Parked()
    expert: Agent[Any] = Agent(name="expert", model=ScriptedModel(["Here."]))
    front: Agent[Any] = Agent(
        name="front", model=ScriptedModel([call("transfer_to_expert")]), handoffs=[expert]
    )
    hooks: RunHooks[Any] = RunHooks()
    setattr(hooks, "on_handoff", parked.park)  # noqa: B010 - that is any function
    async with Conversation(
        front, store=tmp_path / "chat.db", conversation_id="c", hooks=hooks
    ) as conversation:
        await conversation.asend_message("Hi")
        async with running(conversation):
            await parked.reached.wait()
            await conversation.interrupt()
        assert conversation.agent is expert
    async with Conversation(front, store=tmp_path / "chat.db", conversation_id="c") as conversation:
        assert conversation.agent is expert
        assert await conversation.arun() == "finished"


@pytest.mark.parametrize("catches", [ToolCall, ToolStarted, ToolResult, UserMessage])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_stopped_in_the_middle_of_a_write_nothing_is_lost_and_nothing_is_there_twice(
    catches: type[Any], when: str
) -> None:
    store = Slow(catches, when)
    store.caught.set()  # not yet
    told: list[Event] = []
    both = [call("add", a=1, b=2), call("add", a=2, b=2)]
    conversation = opened(store, both, "Four.", *[both, "Four."], tools=[add], callbacks=[told.append])
    conversation.send_message("Hi")
    store.caught = anyio.Event()
    async with running(conversation):
        await store.caught.wait()
        await conversation.interrupt()
    assert_valid(conversation.items)
    assert opened(store).items == conversation.items
    assert sorted(event.seq for event in told) == list(range(1, len(told) + 1))
    assert len(told) == len(conversation.events())
    assert await conversation.arun() == "finished"
    assert opened(store).items == conversation.items
    asked(conversation)
