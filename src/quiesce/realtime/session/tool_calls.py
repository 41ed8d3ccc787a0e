"""The tool calls of a session. Each is a task, and the conversation goes on meanwhile.

The steps of a call: approval, the tool's input guardrails, the tool itself (within its timeout), its output
guardrails, its output to the model. Every call is answered once, in whatever way it ends: with the tool's
output, a text about its failure, or the reason why it was not made. Only when the session ends first is there
no answer, because the model could not get it.
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
from quiesce.kernel.inner import when_ended
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
    from .session_state import SessionState

FAILED = "The tool has failed, and there is no output."
NOT_BEGUN = "The call was not run: the connection was lost before it could begin."
UNKNOWN = (
    "The connection was lost while this call was running. Its outcome is unknown so far. Do not repeat it."
)
WAITS = "This call waits for approval, and has not begun."
MAX_CALLS = 1024  # beyond that nothing more is read from the model


@dataclass(slots=True, eq=False)
class Call:
    """One call, until it is answered."""

    event: RealtimeModelToolCallEvent
    agent: ActiveAgent
    answered: bool = False
    decision: tuple[bool, str | None] | None = None  # approved or not, and a message for the model
    decided: anyio.Event | None = None  # not None while it waits for approval
    parked: anyio.Event = field(default_factory=anyio.Event)  # set when it has ended, or waits for approval

    @property
    def identity(self) -> object:
        """The identity of the called tool; None if there is no such tool."""
        tool = self.agent.tools.get(self.event.name)
        return None if tool is None else self.agent.identity(tool)


class ToolCalls:
    """The calls of a session that have not ended."""

    def __init__(self, session: SessionState) -> None:
        self._session = session
        self._calls: dict[str, Call] = {}
        # By the identity of a tool: another agent may have another tool of the same name.
        self._always: dict[object, tuple[bool, str | None]] = {}
        self._fewer: anyio.Event | None = None  # not None while the model waits for a call to end

    def start(self, event: RealtimeModelToolCallEvent) -> Call | None:
        """Start a call that the model asks for."""
        if event.call_id in self._calls:
            return None  # the model sent it twice
        call = Call(event, self._session.agent_of(event.response_id))
        try:
            handle = self._session.work.spawn(self._run, call, name=event.name[:80])
        except ScopeClosed:
            return None
        if not handle.done:  # an eager task may have ended
            self._calls[event.call_id] = call
        # A callback of the handle, and not a `finally` in `_run`: a task that is cancelled before its first
        # step never enters `_run`.
        when_ended(handle, partial(self._ended, call, handle))
        return call

    async def wait_for_fewer(self) -> None:
        """Wait while there are too many calls."""
        while len(self._calls) >= MAX_CALLS:
            self._fewer = anyio.Event()
            await self._fewer.wait()
            if self._session.connection_ended:
                return

    def _wake_model(self) -> None:
        if self._fewer is not None:
            self._fewer.set()
            self._fewer = None

    # Approval

    def decide(self, call_id: str, approved: bool, always: bool, message: str | None) -> None:
        """Approve or reject a call that waits for approval."""
        call = self._calls.get(call_id)
        if call is None or call.decided is None:
            waiting = [known for known, other in self._calls.items() if other.decided is not None]
            raise UserError(
                f"no tool call {call_id!r} waits for approval"
                + (
                    f"; these do: {', '.join(waiting)}"
                    if waiting
                    else ": it was decided before, or has ended"
                )
            )
        calls = [call]
        if always:
            identity = call.identity
            self._always[identity] = (approved, message)
            calls = [other for other in self._calls.values() if other.identity == identity]
        for each in calls:
            if each.decided is not None:
                each.decision = (approved, message)
                each.decided.set()
                each.decided = None

    async def _is_approved(self, call: Call, tool: FunctionTool, context: ToolContext[Any]) -> bool:
        if tool.needs_approval is False or not await needs_approval(tool, context):
            return True
        decision = self._always.get(call.identity)
        if decision is None:
            session, event, agent = self._session, call.event, call.agent.agent
            call.decided = decided = anyio.Event()
            session.add(
                RealtimeToolApprovalRequired(agent, tool, event.call_id, event.arguments, session.info)
            )
            # With `async_tool_calls` off, the model waits for calls, but not for a person.
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
        name, active = call.event.name, call.agent
        if (handoff := active.handoffs.get(name)) is not None:
            await self._hand_over(call, handoff)
        elif (tool := active.tools.get(name)) is not None:
            await self._call(call, tool)
        else:
            available = ", ".join([*active.tools, *active.handoffs]) or "none"
            self._session.failed(
                ModelBehaviorError(
                    f"the model called the tool {name!r:.100}, which agent {active.agent.name!r} does not have"
                )
            )
            await self._answer(call, f"There is no tool named {name!r:.100}. The tools are: {available}.")

    async def _call(self, call: Call, tool: FunctionTool) -> None:
        session, event, agent = self._session, call.event, call.agent.agent
        # Tools and guardrails expect an `Agent`. A RealtimeAgent has the name, which is what they use.
        known_as = cast("Agent[Any]", agent)
        context = ToolContext(
            session.context.context,
            session.context.usage,
            tool.name,
            event.call_id,
            event.arguments,
            known_as,
        )
        try:
            if not await self._is_approved(call, tool, context):
                return
            for guardrail in tool.tool_input_guardrails:
                verdict = await guardrail.run(ToolInputGuardrailData(context, known_as))
                if verdict.behavior == "raise_exception":
                    raise ToolInputGuardrailTripwireTriggered(guardrail, verdict)
                if verdict.behavior == "reject_content":
                    await self._answer(call, verdict.message)
                    return
            session.add(RealtimeToolStart(agent, tool, event.arguments, session.info, event.call_id))
            output = await self._output(tool, context)
            for output_guardrail in tool.tool_output_guardrails:
                verdict = await output_guardrail.run(ToolOutputGuardrailData(context, known_as, output))
                if verdict.behavior == "raise_exception":
                    raise ToolOutputGuardrailTripwireTriggered(output_guardrail, verdict)
                if verdict.behavior == "reject_content":
                    output = verdict.message
        except Exception as error:
            # While closing, an error is one of a clean-up, and belongs to the report instead of an event.
            if session.closing:
                raise
            session.failed(error)
            await self._answer(call, FAILED)
            return
        await self._answer(call, output if type(output) is str else output_text(output))
        session.add(RealtimeToolEnd(agent, tool, event.arguments, output, session.info, event.call_id))

    async def _output(self, tool: FunctionTool, context: ToolContext[Any]) -> Any:
        try:
            value = await invoke_in_time(tool, context, context.tool_arguments, self._session.work)
        except Exception as error:
            if tool.failure_error_function is None or self._session.closing:
                raise
            return await failure_text(tool, context, error)
        return value.text if type(value) is TimedOutCall else value

    async def _hand_over(self, call: Call, handoff: RealtimeHandoff) -> None:
        session, before = self._session, call.agent.agent
        try:
            agent = await handoff.invoke(session.context, call.event.arguments)
            if session.closing:
                # `on_handoff` may have swallowed the cancel. No MCP server may be connected from now on.
                return
            await session.switch_to(await session.activation.activate(agent))
        except Exception as error:
            if session.closing:
                raise
            session.failed(error)
            await self._answer(call, f"The handoff failed: {error}")
            return
        session.add(RealtimeHandoffEvent(before, agent, session.info))
        await self._answer(call, f"The agent {agent.name} takes over.")

    async def _answer(self, call: Call, output: str) -> None:
        session = self._session
        if session.closing or call.answered:
            return
        # Before the await: if the call is cancelled while it sends, the output may have been sent.
        call.answered = True
        try:
            await session.send(RealtimeModelSendToolOutput(call.event, output, start_response=True))
        except UserError:  # this output cannot be sent; `_ended` then answers that the tool has failed
            call.answered = False
            raise
        session.set_output(call.event.call_id, output)

    def _ended(self, call: Call, handle: Handle) -> None:
        """Forget a call that has ended, and answer it if it did not do so itself.

        It may have been cancelled from inside, even before its first step: the model still waits for an
        answer.
        """
        call.parked.set()
        if self._calls.get(call.event.call_id) is call:
            del self._calls[call.event.call_id]
        self._wake_model()
        session = self._session
        if call.answered or session.closing:
            return
        if handle.state == "cancelled":
            session.failed(ChildCancelled(call.event.name, handle.reason))
        try:
            session.work.spawn(self._answer, call, FAILED, name=f"answer of {call.event.name[:80]}")
        except ScopeClosed:
            pass  # the session is closing

    def running(self) -> dict[str, str]:
        """Return the ids of the calls that have not ended, each with a provisional output."""
        return {call_id: UNKNOWN if call.decided is None else WAITS for call_id, call in self._calls.items()}

    def responses(self) -> set[str | None]:
        """Return the responses that made the calls."""
        return {call.event.response_id for call in self._calls.values()}

    def release(self) -> None:
        """Make the model wait for no call any more, because its connection has ended."""
        for call in self._calls.values():
            call.parked.set()
        self._wake_model()

    def clear(self) -> None:
        """Forget all calls and decisions, at the end of the session."""
        self._calls.clear()
        self._always.clear()
