"""The tool calls of one turn.

Each call is a child task of its own, with a token of its own: `current_token()` and `context.token` in the tool. It stays cancelled for
that call whatever runs next. One that raises stops its siblings, and they are drained before its error goes on.

A call's way: approval, input guardrails, hook, the record that it starts, the tool (bounded by its timeout), output guardrails, hook.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce import ChildCancelled, Handle, Scope, ScopeClosed, TokenCancelled, current_token
from quiesce.agents.agent import (
    Agent,
    FunctionTool,
    Handoff,
    Rejected,
    TimedOutCall,
    ToolContext,
    ToolInputGuardrailData,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailData,
    ToolOutputGuardrailTripwireTriggered,
    UserError,
    as_handoff,
    check_tools,
    failure_text,
    invoke_in_time,
    is_enabled,
    needs_approval,
    output_text,
)
from quiesce.kernel.inner import current_node, spawner_of
from quiesce.models import ToolOutcome, ToolResult, ToolSpec

from .events import RunItemStreamEvent
from .transcript import CallRecord

if TYPE_CHECKING:
    from .engine import Engine

REJECTED = "This call was not approved, and was not made."


class ToolTurn:
    """What one agent may use in one turn, and what it has used."""

    __slots__ = ("agent", "chosen", "engine", "first_output", "handoffs", "specs", "takeover", "tools")

    def __init__(self, engine: Engine, agent: Agent[Any], tools: Sequence[FunctionTool]) -> None:
        self.engine = engine
        self.agent = agent
        self.tools = {tool.name: tool for tool in tools}
        self.handoffs = {h.tool_name: h for h in map(as_handoff, agent.handoffs)} if agent.handoffs else {}
        if len(self.tools) < len(tools) or self.handoffs.keys() & self.tools.keys():
            names = [tool.name for tool in tools] + list(self.handoffs)
            twice = sorted({name for name in names if names.count(name) > 1})
            raise UserError(f"agent {agent.name!r} has several tools named {', '.join(map(repr, twice))}")
        self.specs: list[ToolSpec] = [tool.spec for tool in tools] + [h.spec for h in self.handoffs.values()]
        self.chosen: Handoff | None = None
        self.takeover: ToolResult | None = None  # what the model is told of that
        self.first_output: tuple[int, Any] | None = None  # the first, in order, that has returned

    @classmethod
    async def prepare(cls, engine: Engine, agent: Agent[Any]) -> Self:
        """Find out which tools are there now."""
        if not all(
            isinstance(tool, FunctionTool) for tool in agent.tools
        ):  # put there after the agent was made
            check_tools(f"agent {agent.name!r}", agent.tools)
        tools = [
            tool
            for tool in agent.tools
            if tool.is_enabled is True or await is_enabled(tool, engine.context, agent)
        ]
        for server in agent.mcp_servers:
            tools += await engine.tools_of(server)
        return cls(engine, agent, tools)

    async def run(self, records: Sequence[CallRecord]) -> None:
        """Call them all at once; those that somebody must approve first stand in `engine.pending_approvals`."""
        engine = self.engine
        engine.pending_approvals = []
        ready: list[tuple[CallRecord, FunctionTool]] = []
        for record in records:
            name = record.call.name
            if record.result is not None:  # from before an approval
                if name in self.handoffs and record.result.outcome == "finished":
                    self.chosen, self.takeover = self.handoffs[name], record.result
            elif name in self.handoffs:
                await self._choose(record, self.handoffs[name])
            elif name not in self.tools:
                there = ", ".join(self.tools) or "none"
                await self._answer(
                    record, f"There is no tool named {name!r}. The tools are: {there}.", "failed"
                )
            elif await self._may_run(record, self.tools[name]):
                ready.append((record, self.tools[name]))
        if ready:
            await self._call_all(ready)

    async def _choose(self, record: CallRecord, handoff: Handoff) -> None:
        if self.chosen is not None:
            await self._answer(
                record, "Another agent takes over already: this handoff was ignored.", "rejected"
            )
            return
        self.chosen = handoff
        self.takeover = record.finish(f"The agent {handoff.agent.name} takes over.")
        if self.engine.emit is not None:
            await self.engine.emit(RunItemStreamEvent("handoff_requested", record.call))

    async def _answer(self, record: CallRecord, text: str, outcome: ToolOutcome) -> None:
        """A result without a call."""
        result = record.finish(text, outcome)
        if self.engine.emit is not None:
            await self.engine.emit(RunItemStreamEvent("tool_output", result))

    # Approval

    async def _may_run(self, record: CallRecord, tool: FunctionTool) -> bool:
        if tool.needs_approval is False:
            return True
        engine, call = self.engine, record.call
        context = self._context_of(record, tool)
        if not await needs_approval(tool, context):
            return True
        decision = engine.approvals.pop(call.call_id, None)
        if decision is None and engine.journal is not None:
            await engine.journal.approval_requested(call)
        if decision is None and engine.config.approve is not None:
            if engine.keeps_approvals:  # stopped while it waits for the answer, it waits on
                engine.pending_approvals.append(record)
            said = engine.config.approve(context, tool)
            answer = await said if inspect.isawaitable(said) else said
            decision = bool(answer), answer.message if isinstance(answer, Rejected) else ""
            if engine.keeps_approvals:
                engine.pending_approvals.remove(record)
        if decision is None:
            engine.pending_approvals.append(record)
            if engine.emit is not None:
                await engine.emit(RunItemStreamEvent("tool_approval_requested", call))
            return False
        approved, message = decision
        if not approved:
            await self._answer(record, message or REJECTED, "rejected")
        return approved

    # Calling

    def _context_of(self, record: CallRecord, tool: FunctionTool) -> ToolContext[Any]:
        run, call = self.engine.context, record.call
        return ToolContext(run.context, run.usage, tool.name, call.call_id, call.arguments, self.agent)

    async def _call_all(self, ready: list[tuple[CallRecord, FunctionTool]]) -> None:
        limit = self.engine.config.max_tool_concurrency
        slots = anyio.Semaphore(limit) if limit is not None and limit < len(ready) else None
        handles: list[Handle] = []
        try:
            async with Scope("tools") as scope:
                spawn = spawner_of(scope)
                for record, tool in ready:
                    record.handle = spawn(self._call, record, tool, slots, name=tool.name)
                    handles.append(record.handle)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None
        for (record, tool), handle in zip(ready, handles, strict=True):
            if record.result is None:
                # A tool that heeds its token may be faster than our own cancel: its result is made when the run settles.
                current_token().raise_if_cancelled()
                # A cancel came out of it that nobody here has sent: that is an error like others.
                cancelled = ChildCancelled(tool.name, handle.reason)
                if tool.failure_error_function is None:
                    raise cancelled
                context = record.context or self._context_of(record, tool)
                await self._answer(record, await failure_text(tool, context, cancelled), "failed")

    async def _call(self, record: CallRecord, tool: FunctionTool, slots: anyio.Semaphore | None) -> None:
        if slots is None:
            await self._call_now(record, tool)
        else:
            async with slots:
                await self._call_now(record, tool)

    async def _call_now(self, record: CallRecord, tool: FunctionTool) -> None:
        engine, agent = self.engine, self.agent
        context = self._context_of(record, tool)
        if tool.tool_input_guardrails and not await self._input_passes(record, tool, context):
            return
        if current_token().cancelled:  # while it waited for its turn: its result is made when the run settles
            return
        listening = engine.callbacks.any(agent)
        if listening:
            await engine.callbacks.tool_start(context, agent, tool)
        if engine.journal is not None and tool.side_effects:
            await engine.journal.tool_starting(record.call)
        if current_token().cancelled:
            return
        record.start(context)
        try:
            value = await self._invoke(record, tool, context)
        except Exception as error:
            if current_token().cancelled:
                if record.result is not None or isinstance(error, TokenCancelled):
                    return  # it was given up, or was stopped and says so: its result is made when the run settles
                node = current_node.get()
                if node is not None and node._is_cleaning_up():
                    raise  # its clean-up failed: the report says so, and to the model the call was interrupted
                if isinstance(error, ScopeClosed):
                    return  # it would have started something new
            if tool.failure_error_function is None:
                raise
            record.finish(await failure_text(tool, context, error), "failed")
        else:
            if record.result is None:
                if tool.tool_output_guardrails:
                    value = await self._checked_output(record, tool, context, value)
                record.finish(value if type(value) is str else output_text(value))
                if agent.tool_use_behavior == "stop_on_first_tool":
                    place = engine.transcript.calls.index(record)
                    if self.first_output is None or place < self.first_output[0]:
                        self.first_output = place, value
            elif current_token().cancelled:
                return  # too late: it was given up, and the transcript says so
        assert record.result is not None
        if listening:
            await engine.callbacks.tool_end(context, agent, tool, record.result.output)
        if engine.emit is not None:
            await engine.emit(RunItemStreamEvent("tool_output", record.result))

    async def _invoke(self, record: CallRecord, tool: FunctionTool, context: ToolContext[Any]) -> Any:
        value = await invoke_in_time(tool, context, record.call.arguments, self.engine.scope)
        if type(value) is TimedOutCall:
            if value.outcome == "not_started":
                record.started_at = None
            record.finish(value.text, value.outcome)
            return None
        return value

    # Guardrails

    async def _input_passes(self, record: CallRecord, tool: FunctionTool, context: ToolContext[Any]) -> bool:
        data = ToolInputGuardrailData(context, self.agent)
        for guardrail in tool.tool_input_guardrails:
            said = await guardrail.run(data)
            if said.behavior == "raise_exception":
                raise ToolInputGuardrailTripwireTriggered(guardrail, said)
            if said.behavior == "reject_content":
                await self._answer(record, said.message, "rejected")
                return False
        return True

    async def _checked_output(
        self, record: CallRecord, tool: FunctionTool, context: ToolContext[Any], value: Any
    ) -> Any:
        data = ToolOutputGuardrailData(context, self.agent, value)
        for guardrail in tool.tool_output_guardrails:
            said = await guardrail.run(data)
            if said.behavior == "raise_exception":
                raise ToolOutputGuardrailTripwireTriggered(guardrail, said)
            if said.behavior == "reject_content":
                return said.message
        return value


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that came first, with a note for each other one."""
    first, *others = group.exceptions
    for other in others:
        first.add_note(f"another tool of the same turn also failed: {other!r}")
    return first
