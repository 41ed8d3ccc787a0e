"""The tool calls of a session, each a task beside the conversation.

A call's way: approval, the tool's input guardrails, the tool (bounded by its timeout), its output guardrails, its output to the model. Every call
is answered once, however it ends: with what it returned, with what is said of its failure, or with why it was not made. Only the end of the
session leaves it unanswered, for then nobody would hear it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio

from quiesce import ChildCancelled, ScopeClosed
from quiesce.agents import (
    ToolContext,
    ToolInputGuardrailData,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailData,
    ToolOutputGuardrailTripwireTriggered,
    UserError,
)
from quiesce.agents.inner import (
    REJECTED,
    TimedOutCall,
    failure_text,
    invoke_in_time,
    needs_approval,
    output_text,
)
from quiesce.kernel.inner import CANCELLED, when_ended
from quiesce.models import ModelBehaviorError
from quiesce.realtime.words import (
    RealtimeHandoffEvent,
    RealtimeModelSendToolOutput,
    RealtimeToolApprovalRequired,
    RealtimeToolEnd,
    RealtimeToolStart,
)

if TYPE_CHECKING:
    from quiesce import Handle
    from quiesce.agents import Agent, FunctionTool
    from quiesce.realtime.words import RealtimeHandoff, RealtimeModelToolCallEvent

    from .active_agent import ActiveAgent
    from .session_task import SessionTask

FAILED = "The tool has failed, and there is no output."
NOT_BEGUN = "The call was not run: the connection was lost before it could begin."
UNKNOWN = (
    "The connection was lost while this call was at work. Its outcome is unknown so far. Do not repeat it."
)
WAITS = "This call waits for approval, and has not begun."
AT_WORK = 1024  # calls; beyond that nothing more is read from the model


@dataclass(slots=True, eq=False)
class Call:
    """One call, until it is answered."""

    event: RealtimeModelToolCallEvent
    cast: ActiveAgent
    answered: bool = False
    decision: tuple[bool, str | None] | None = None  # approved or not, and what the model is told
    decided: anyio.Event | None = None  # set while somebody has to decide
    parked: anyio.Event = field(default_factory=anyio.Event)  # it has ended, or waits for a decision

    @property
    def identity(self) -> object:
        """What the tool is known by that it is a call of; None if there is no such tool."""
        tool = self.cast.tools.get(self.event.name)
        return None if tool is None else self.cast.identity(tool)


class ToolCalls:
    """All calls that are not answered yet."""

    def __init__(self, life: SessionTask) -> None:
        self._life = life
        self._calls: dict[str, Call] = {}
        # By the identity of a tool: one of that name of another agent is another.
        self._always: dict[object, tuple[bool, str | None]] = {}
        self._fewer: anyio.Event | None = None  # somebody waits until there are

    def came(self, event: RealtimeModelToolCallEvent) -> Call | None:
        """The model wants a tool to be called."""
        life = self._life
        if event.call_id in self._calls:
            return None  # told twice
        call = Call(event, life.cast_of(event.response_id))
        try:
            handle = life.work.spawn(self._run, call, name=event.name[:80])
        except ScopeClosed:
            return None
        if not handle.done:  # an eager one may be over
            self._calls[event.call_id] = call
        when_ended(handle, partial(self._ended, call, handle))
        return call

    async def wait_for_fewer(self) -> None:
        """Wait while as many are at work as may be."""
        while len(self._calls) >= AT_WORK:
            self._fewer = anyio.Event()
            await self._fewer.wait()
            if self._life.is_cut_off:
                return

    def _tell_of_fewer(self) -> None:
        if self._fewer is not None:
            self._fewer.set()
            self._fewer = None

    # Approval

    def decide(self, call_id: str, approved: bool, always: bool, message: str | None) -> None:
        """Somebody has decided on a call that waits for it."""
        call = self._calls.get(call_id)
        if call is None or call.decided is None:
            waiting = [known for known, other in self._calls.items() if other.decided is not None]
            raise UserError(
                f"no tool call {call_id!r} waits for approval"
                + (f"; these do: {', '.join(waiting)}" if waiting else ": it was decided, or has ended")
            )
        meant = [call]
        if always:
            identity = call.identity
            self._always[identity] = (approved, message)
            meant = [other for other in self._calls.values() if other.identity == identity]
        for each in meant:
            if each.decided is not None:
                each.decision = (approved, message)
                each.decided.set()
                each.decided = None  # nobody decides it a second time

    async def _is_approved(self, call: Call, tool: FunctionTool, context: ToolContext[Any]) -> bool:
        if tool.needs_approval is False or not await needs_approval(tool, context):
            return True
        decision = self._always.get(call.identity)
        if decision is None:
            life, event = self._life, call.event
            call.decided = decided = anyio.Event()
            life.add(
                RealtimeToolApprovalRequired(call.cast.agent, tool, event.call_id, event.arguments, life.info)
            )
            call.parked.set()
            await decided.wait()
            decision = call.decision
        assert decision is not None
        approved, message = decision
        if not approved:
            await self._answer(call, message or REJECTED)
        return approved

    # Calling

    async def _run(self, call: Call) -> None:
        name, cast_ = call.event.name, call.cast
        if (handoff := cast_.handoffs.get(name)) is not None:
            await self._hand_over(call, handoff)
        elif (tool := cast_.tools.get(name)) is not None:
            await self._call(call, tool)
        else:
            there = ", ".join([*cast_.tools, *cast_.handoffs]) or "none"
            self._life.failed(
                ModelBehaviorError(
                    f"the model wants a tool {name!r:.100}, which agent {cast_.agent.name!r} does not have"
                )
            )
            await self._answer(call, f"There is no tool named {name!r:.100}. The tools are: {there}.")

    async def _call(self, call: Call, tool: FunctionTool) -> None:
        life, event, agent = self._life, call.event, call.cast.agent
        # A tool knows its agent by its name; that it is one that speaks makes no difference to it.
        known_as = cast("Agent[Any]", agent)
        context = ToolContext(
            life.context.context, life.context.usage, tool.name, event.call_id, event.arguments, known_as
        )
        try:
            if not await self._is_approved(call, tool, context):
                return
            for guardrail in tool.tool_input_guardrails:
                said = await guardrail.run(ToolInputGuardrailData(context, known_as))
                if said.behavior == "raise_exception":
                    raise ToolInputGuardrailTripwireTriggered(guardrail, said)
                if said.behavior == "reject_content":
                    await self._answer(call, said.message)
                    return
            life.add(RealtimeToolStart(agent, tool, event.arguments, life.info, event.call_id))
            output = await self._output(tool, context)
            for output_guardrail in tool.tool_output_guardrails:
                said = await output_guardrail.run(ToolOutputGuardrailData(context, known_as, output))
                if said.behavior == "raise_exception":
                    raise ToolOutputGuardrailTripwireTriggered(output_guardrail, said)
                if said.behavior == "reject_content":
                    output = said.message
        except Exception as error:
            if life.closing:
                raise
            life.failed(error)
            await self._answer(call, FAILED)
            return
        await self._answer(call, output if type(output) is str else output_text(output))
        life.add(RealtimeToolEnd(agent, tool, event.arguments, output, life.info, event.call_id))

    async def _output(self, tool: FunctionTool, context: ToolContext[Any]) -> Any:
        try:
            value = await invoke_in_time(tool, context, context.tool_arguments, self._life.work)
        except Exception as error:
            if tool.failure_error_function is None or self._life.closing:
                raise
            return await failure_text(tool, context, error)
        return value.text if type(value) is TimedOutCall else value

    async def _hand_over(self, call: Call, handoff: RealtimeHandoff) -> None:
        life, before = self._life, call.cast.agent
        try:
            agent = await handoff.invoke(life.context, call.event.arguments)
            if life.closing:
                return  # it would not be cancelled; nothing must be connected for it now
            await life.take_over(await life.casting.cast(agent))
        except Exception as error:
            if life.closing:
                raise
            life.failed(error)
            await self._answer(call, f"The handoff failed: {error}")
            return
        life.add(RealtimeHandoffEvent(before, agent, life.info))
        await self._answer(call, f"The agent {agent.name} takes over.")

    async def _answer(self, call: Call, output: str) -> None:
        life = self._life
        if life.closing or call.answered:
            return
        call.answered = True
        try:
            await life.send(RealtimeModelSendToolOutput(call.event, output, start_response=True))
        except UserError:  # the model cannot be told that: it is told that there is no output
            call.answered = False
            raise
        life.tool_answered(call.event.call_id, output)

    def _ended(self, call: Call, handle: Handle) -> None:
        """However it has ended: perhaps by a cancel of its own, of which its model hears nothing."""
        call.parked.set()
        if self._calls.get(call.event.call_id) is call:
            del self._calls[call.event.call_id]
        self._tell_of_fewer()
        life = self._life
        if call.answered or life.closing:
            return
        if handle.state == CANCELLED:
            life.failed(ChildCancelled(call.event.name, handle.reason))
        try:
            life.work.spawn(self._answer, call, FAILED, name=f"answer of {call.event.name[:80]}")
        except ScopeClosed:
            pass  # nobody would hear it

    def at_work(self) -> dict[str, str]:
        """Ids of the calls that have not ended, each with what is to be said of it so far."""
        return {call_id: UNKNOWN if call.decided is None else WAITS for call_id, call in self._calls.items()}

    def responses(self) -> set[str | None]:
        """The responses that the calls are of."""
        return {call.event.response_id for call in self._calls.values()}

    def let_go(self) -> None:
        """The connection is lost: nothing waits for them any more, as if all were parked."""
        for call in self._calls.values():
            call.parked.set()
        self._tell_of_fewer()

    def clear(self) -> None:
        """The session has ended."""
        self._calls.clear()
        self._always.clear()
