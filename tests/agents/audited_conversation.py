"""Conversations for the audit to stop at every point: with a tool, interrupted, closed, with a store that takes its time.

After each stop the history must be one that a provider takes, nobody may think that a run is on, and what is in the store is what the
conversation says.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import anyio

from quiesce.agents import (
    Agent,
    Conversation,
    GuardrailFunctionOutput,
    InputGuardrail,
    MemoryStore,
    OutputGuardrail,
    function_tool,
)
from quiesce.agents.conversation.restore import restore
from quiesce.agents.store import Event, Holder, ItemAdded, Posted, RunStarted, ToolStarted, recover
from quiesce.agents.store.memory import MemoryLease, MemoryLog
from quiesce.models import AssistantMessage, ToolCall, UserMessage
from quiesce.testing import ScriptedModel, call
from tests.agents.scenes import assert_valid
from tests.kernel.audited import STARTED_LATE, WORLDS, Audited, ledger, pause, tidy_up, work

F = TypeVar("F", bound=Callable[[], Any])

SCENARIOS: list[Audited] = []
_kept: list[Conversation] = []


def check() -> None:
    """After a run of a scenario."""
    ledger.check()
    for conversation in _kept:
        if conversation.status == "running":
            gc.collect()  # a coroutine that anyio was given and never started is held by a cycle of anyio's
        assert conversation.status != "running", conversation
        if not conversation._history.calls:  # those wait for an approval, and have no results yet
            assert_valid(conversation.items)
        writer = conversation._writer
        writer._resolve_all_sync()
        found = restore(recover([*writer.read(), *writer._unwritten])).history
        kept = found.items + found.queued()
        assert kept == conversation.items, f"in the store: {kept}; in memory: {conversation.items}"
        if conversation.agent.output_guardrails:
            texts = [item.text for item in conversation.items if isinstance(item, AssistantMessage)]
            assert texts in ([], ["I dig.", "Done."]), f"kept before its guardrails have passed: {texts}"


def audited(*, in_a_group: str = "") -> Callable[[F], F]:
    """Take a function into the list. `in_a_group`: what it gives to a task group, which may never start it."""

    def take(function: F) -> F:
        SCENARIOS.append(
            Audited(
                word="Conversation",
                function=function,
                worlds=WORLDS,
                ignore={f"unawaited {in_a_group}": STARTED_LATE} if in_a_group else {},
                ignore_on_trio={},
                processes=False,
                options={"check": check},
            )
        )
        return function

    return take


class WaitingStore(MemoryStore):
    """One in memory that has to be waited for, as one on disk has."""

    __slots__ = ()

    def open(self, conversation_id: str) -> MemoryLog:
        return _WaitingLog(self, conversation_id)

    async def lease(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> MemoryLease:
        await pause(0.1)
        lease = self.lease_sync(conversation_id, owner=owner, epoch=epoch)
        try:
            await pause(0.1)
        except BaseException:
            lease.release_sync()
            raise
        return lease

    async def holder(self, conversation_id: str) -> Holder | None:
        await pause(0.1)
        return self.holder_sync(conversation_id)


class _WaitingLog(MemoryLog):
    __slots__ = ()

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        await pause(0.1)
        return self.append_sync(events, after=after)

    async def post(self, events: Sequence[Posted]) -> int:
        await pause(0.1)
        last = self.post_sync(events)
        await pause(0.1)
        return last

    async def read(self, after: int = 0) -> list[Event]:
        await pause(0.1)
        return self.read_sync(after)

    async def load(self) -> list[Event]:
        await pause(0.1)
        return self.load_sync()


@function_tool
async def dig() -> str:
    """Work for a while."""
    await work()
    return "dug"


async def _think(request: Any) -> Any:
    try:
        await pause(0.5)
    except anyio.get_cancelled_exc_class():
        await tidy_up()
        raise
    return [call("dig"), call("dig")]


def begin(store: MemoryStore | None = None, **options: Any) -> Conversation:
    ledger.start()
    _kept.clear()
    turns = options.pop("turns", [_think, "Done.", "Done."])
    agent: Agent[Any] = Agent(name="digger", model=ScriptedModel(turns), tools=[dig], **options)
    conversation = Conversation(agent, store=store, conversation_id="c" if store is not None else None)
    conversation.send_message("Dig.")
    _kept.append(conversation)
    return conversation


@audited()
async def conversation_with_a_tool() -> None:
    conversation = begin()
    await conversation.arun()


@audited(in_a_group="Conversation._arun*")
async def conversation_interrupted_in_a_tool() -> None:
    conversation = begin()
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.arun)
        await pause(1.0)
        ledger.report(await conversation.interrupt())
    await conversation.arun()


@audited(in_a_group="Conversation._arun*")
async def conversation_with_a_store_interrupted() -> None:
    conversation = begin(WaitingStore())
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.arun)
        await pause(1.0)
        ledger.report(await conversation.interrupt())


@audited()
async def conversation_whose_text_waits_for_its_guardrails() -> None:
    async def looks(*_: object) -> GuardrailFunctionOutput:
        await work(0.3)
        return GuardrailFunctionOutput(None, False)

    conversation = begin(
        WaitingStore(),
        turns=[["I dig.", call("dig")], "Done."],
        input_guardrails=[InputGuardrail(looks)],
        output_guardrails=[OutputGuardrail(looks)],
    )
    await conversation.arun()


@audited(in_a_group="Conversation._arun*")
async def conversation_closed_while_it_runs() -> None:
    async with anyio.create_task_group() as group, begin() as conversation:
        group.start_soon(conversation.arun)
        await pause(0.3)


async def opened(store: MemoryStore, *turns: Any, looks_only: bool = False, **options: Any) -> Conversation:
    """A conversation that is opened without blocking, from a store that has to be waited for."""
    agent: Agent[Any] = Agent(name="digger", model=ScriptedModel(turns), tools=[dig, dig_deep], **options)
    conversation = await Conversation.open(agent, store=store, conversation_id="c")
    if not looks_only:
        _kept.append(conversation)
    return conversation


@function_tool(needs_approval=True)
async def dig_deep() -> str:
    """Work for a while, if that is allowed."""
    await work()
    return "dug deep"


@audited()
async def conversation_opened_answered_and_closed() -> None:
    ledger.start()
    _kept.clear()
    store = WaitingStore()
    async with await opened(store, _think, "Done.") as conversation:
        await conversation.asend_message("Dig.", message_id="m")
        await conversation.arun()
    assert store.holder_sync("c") is None


@audited()
async def conversation_with_an_approval_from_elsewhere() -> None:
    ledger.start()
    _kept.clear()
    store = WaitingStore()
    async with await opened(store, call("dig_deep"), "Done.") as conversation:
        await conversation.asend_message("Dig.")
        await conversation.arun()
        async with await opened(store, looks_only=True) as other:
            await other.aapprove()
            await conversation.arun()
            await other.refresh()
    assert store.holder_sync("c") is None


@audited()
async def conversation_that_was_lost_and_is_settled() -> None:
    ledger.start()
    _kept.clear()
    store = WaitingStore()
    store.open("c").append_sync(
        [
            ItemAdded(item=UserMessage("Dig.")),
            RunStarted(run_id="r"),
            ItemAdded(item=ToolCall("1", "dig")),
            ToolStarted(call_id="1", name="dig"),
        ]
    )
    async with await opened(store) as conversation:
        await conversation.settle("found dead")
    assert store.holder_sync("c") is None


@audited(in_a_group="*follow*")
async def conversation_that_is_followed_while_it_runs() -> None:
    ledger.start()
    _kept.clear()
    store = WaitingStore()
    conversation = await opened(store, _think, "Done.")
    looker = await opened(store, looks_only=True)

    async def follow() -> None:
        async for _ in looker.aevents():
            pass

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await conversation.asend_message("Dig.")
            await conversation.arun()
            await looker.refresh()
            await looker.close()
    finally:
        with anyio.CancelScope(shield=True):
            await looker.close()
            await conversation.close()
    assert store.holder_sync("c") is None
