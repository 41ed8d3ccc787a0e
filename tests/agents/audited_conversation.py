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
from quiesce.agents.store import Event, recover
from quiesce.agents.store.memory import MemoryLog
from quiesce.models import AssistantMessage
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
        assert_valid(conversation.items)
        writer = conversation._writer
        found = restore(recover([*writer.read(), *writer._unwritten])).history
        kept = found.items + found.queued()
        assert kept == conversation.items, f"in the store: {kept}; in memory: {conversation.items}"
        if conversation.agent.output_guardrails:
            texts = [item.text for item in conversation.items if isinstance(item, AssistantMessage)]
            assert texts in ([], ["I dig.", "Done."]), f"kept before its guardrails have passed: {texts}"


def audited(*, in_a_group: bool = False) -> Callable[[F], F]:
    """Take a function into the list."""

    def take(function: F) -> F:
        SCENARIOS.append(
            Audited(
                word="Conversation",
                function=function,
                worlds=WORLDS,
                ignore={"unawaited Conversation._arun*": STARTED_LATE} if in_a_group else {},
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


class _WaitingLog(MemoryLog):
    __slots__ = ()

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        await pause(0.1)
        return self.append_sync(events, after=after)


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


@audited(in_a_group=True)
async def conversation_interrupted_in_a_tool() -> None:
    conversation = begin()
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.arun)
        await pause(1.0)
        ledger.report(await conversation.interrupt())
    await conversation.arun()


@audited(in_a_group=True)
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


@audited(in_a_group=True)
async def conversation_closed_while_it_runs() -> None:
    async with anyio.create_task_group() as group, begin() as conversation:
        group.start_soon(conversation.arun)
        await pause(0.3)
