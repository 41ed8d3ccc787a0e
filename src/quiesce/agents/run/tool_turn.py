"""The tool calls of one turn: which of them may run, and how they are made.

Each call is a child task of its own, with a token of its own: `current_token()` and `context.token` in the
tool. Once cancelled, it stays cancelled for that call whatever runs next. A call that raises stops the other
calls of its turn, and they are drained before its error is raised.

The way of a call: approval, input guardrails, hook, the record that it starts, the tool (bounded by its
timeout), output guardrails, hook.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

import anyio

from quiesce import ChildCancelled, Handle, Scope, ScopeClosed, TokenCancelled, current_scope, current_token
from quiesce.agents.agent import (
    Agent,
    FunctionTool,
    FunctionToolResult,
    Handoff,
    InvalidToolArguments,
    Rejected,
    TimedOutCall,
    ToolContext,
    ToolInputGuardrailData,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailData,
    ToolOutputGuardrailTripwireTriggered,
    ToolServer,
    UserError,
    as_handoff,
    check_tools,
    failure_text,
    final_of,
    invoke_in_time,
    is_enabled,
    needs_approval,
    output_text,
)
from quiesce.kernel.inner import is_cleaning_up, spawner_of
from quiesce.models import ToolOutcome, ToolResult, ToolSpec

from .events import RunItemStreamEvent
from .settings import RunSettings
from .transcript import CallRecord

_NOTHING_DECIDED: Mapping[str, tuple[bool, str]] = {}

REJECTED = "This call was not approved, and was not made."


class Approvals:
    """Which tool calls of a run were decided on, and which wait for a decision.

    If a tool needs approval, its call is decided by the user who resumes an earlier run (`decisions`: by the
    id of the call, whether it is approved, and what the model is told if not; `always`: the same by the name of the
    tool, for all its calls), by the function `RunConfig(approve=...)`, or not at all: then the call waits, and the
    run ends.
    """

    __slots__ = ("_decided_before", "_settings", "always", "decisions", "pending", "unasked")

    def __init__(
        self,
        settings: RunSettings,
        decisions: Mapping[str, tuple[bool, str]] | None,
        always: Mapping[str, tuple[bool, str]] | None = None,
    ) -> None:
        self._settings = settings
        self.always = always if always is not None else _NOTHING_DECIDED
        self.decisions = dict(decisions) if decisions else {}
        self._decided_before: Collection[str] = ()  # calls that were decided when the turn began
        self.pending: list[CallRecord] = []
        self.unasked: list[
            CallRecord
        ] = []  # those of `pending` that a stop came before anyone was asked about

    def begin_turn(self) -> None:
        """No call of this turn waits yet."""
        self.pending = []
        self._decided_before = frozenset(self.decisions)

    async def decide(
        self, record: CallRecord, tool: FunctionTool, context: ToolContext[Any]
    ) -> tuple[bool, str] | None:
        """Whether the call may run, and what the model is told if not; None if it has to wait."""
        if not await needs_approval(tool, context):
            return True, ""
        settings, call = self._settings, record.call
        decision = self.decisions.pop(call.call_id, None) or self.always.get(tool.name)
        if decision is not None:
            return decision
        if settings.journal is not None:
            await settings.journal.approval_requested(call)
        approve = settings.config.approve
        if approve is None:
            self.pending.append(record)
            if settings.emit is not None:
                await settings.emit(RunItemStreamEvent("tool_approval_requested", call))
            return None
        if (
            settings.keeps_approvals
        ):  # a run that is stopped while it waits for the answer leaves the call waiting
            self.pending.append(record)
        answer: Any = approve(context, tool)
        if inspect.isawaitable(answer):
            answer = await answer
        if settings.keeps_approvals:
            self.pending.remove(record)
        return bool(answer), answer.message if isinstance(answer, Rejected) else ""

    def keep_unasked(self, calls: Sequence[CallRecord], tools: Mapping[str, FunctionTool]) -> None:
        """A turn was stopped: calls that no one was asked about yet wait too.

        Calls are decided one after the other. Say the user presses Esc while question 2 of 4 is open. Then 2
        is pending; 3 and 4 have to be asked about after the run is resumed, and not to be given up.
        """
        asks = self._settings.config.approve is not None
        last_asked = calls.index(self.pending[-1]) if self.pending else len(calls)
        for place, record in enumerate(calls):
            tool, call_id = tools.get(record.call.name), record.call.call_id
            if tool is None or tool.needs_approval is False or record in self.pending:
                continue
            if record.result is not None or record.started_at is not None:
                continue
            decided_but_not_reached = call_id in self.decisions
            behind_open_question = asks and place > last_asked
            needs_fresh_approval = (
                not asks and tool.needs_approval is True and call_id not in self._decided_before
            )
            if decided_but_not_reached or behind_open_question or needs_fresh_approval:
                self.unasked.append(record)
        self.pending += self.unasked

    def drop(self) -> None:
        """The run has failed: nothing waits any more."""
        self.pending = []


class ToolServers:
    """The MCP servers that a run uses.

    The first run that needs one connects it, and the last one closes it.
    """

    __slots__ = ("_connections", "_in_use")

    def __init__(self) -> None:
        self._connections = AsyncExitStack()
        self._in_use: list[ToolServer] = []

    async def tools_of(self, server: ToolServer) -> list[FunctionTool]:
        """What the server offers now."""
        if server not in self._in_use:
            await self._connections.enter_async_context(server.use())
            self._in_use.append(server)
        return await server.list_tools()

    async def close(self) -> None:
        """This run needs them no longer."""
        await self._connections.aclose()


class ToolTurn:
    """What one agent may use in one turn, and what it has used.

    After `run`, `chosen` is the handoff that the model asked for, `handoff_input` what it said with that, and
    `takeover` what it was told about it.
    """

    __slots__ = (
        "_agent",
        "_approvals",
        "_handoffs",
        "_outputs",
        "_records",
        "_settings",
        "chosen",
        "handoff_input",
        "specs",
        "takeover",
        "tools",
    )

    def __init__(
        self,
        agent: Agent[Any],
        tools: Sequence[FunctionTool],
        handoffs: Sequence[Handoff],
        settings: RunSettings,
        approvals: Approvals,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._approvals = approvals
        self._records: Sequence[CallRecord] = ()
        self.tools = {tool.name: tool for tool in tools}
        self._handoffs = {handoff.tool_name: handoff for handoff in handoffs} if handoffs else {}
        if len(self.tools) < len(tools) or self._handoffs.keys() & self.tools.keys():
            names = [tool.name for tool in tools] + list(self._handoffs)
            twice = sorted({name for name in names if names.count(name) > 1})
            raise UserError(f"agent {agent.name!r} has several tools named {', '.join(map(repr, twice))}")
        self.specs: list[ToolSpec] = [tool.spec for tool in tools] + [h.spec for h in self._handoffs.values()]
        self.chosen: Handoff | None = None
        self.takeover: ToolResult | None = None
        self.handoff_input: tuple[Any, ...] = ()
        # What its tools have returned, as it was returned; None if that cannot be the final output.
        self._outputs: list[tuple[CallRecord, FunctionTool, Any]] | None = (
            None if agent.tool_use_behavior == "run_llm_again" else []
        )

    @classmethod
    async def prepare(
        cls, agent: Agent[Any], settings: RunSettings, approvals: Approvals, servers: ToolServers | None
    ) -> Self:
        """Find out which tools the agent has now: its own that are enabled, and those of its MCP servers."""
        tools: list[FunctionTool] = []
        if agent.tools:
            if not all(
                isinstance(tool, FunctionTool) for tool in agent.tools
            ):  # added after the agent was made
                check_tools(f"agent {agent.name!r}", agent.tools)
            tools = [
                tool
                for tool in agent.tools
                if tool.is_enabled is True or await is_enabled(tool, settings.context, agent)
            ]
        if servers is not None:
            for server in agent.mcp_servers:
                tools += await servers.tools_of(server)
        handoffs: Sequence[Handoff] = ()
        if agent.handoffs:
            handoffs = [
                handoff
                for handoff in map(as_handoff, agent.handoffs)
                if handoff.is_enabled is True or await is_enabled(handoff, settings.context, agent)
            ]
        return cls(agent, tools, handoffs, settings, approvals)

    async def final_output(self) -> tuple[list[ToolResult], Any] | None:
        """The final output that the tools have made, and the results that say the same; None if there is none."""
        if self._outputs is None or self.chosen is not None:  # a handoff comes first: the next agent answers
            return None
        outputs = sorted(self._outputs, key=lambda output: self._records.index(output[0]))
        results = [FunctionToolResult(tool, value, _result(record)) for record, tool, value in outputs]
        final = await final_of(self._agent.tool_use_behavior, self._settings.context, results)
        return None if final is None else ([result.run_item for result in final[0]], final[1])

    async def run(self, records: Sequence[CallRecord]) -> None:
        """Make all calls that may be made, at once.

        Those that need an approval first are in `Approvals.pending`.
        """
        self._records = records
        self._approvals.begin_turn()
        ready: list[tuple[CallRecord, FunctionTool]] = []
        owner: Scope | None = None
        for record in records:
            name = record.call.name
            if record.result is not None:  # the call was made before another one of its turn was approved
                if name in self._handoffs and record.result.outcome == "finished":
                    self.chosen, self.takeover = self._handoffs[name], record.result
                    self.handoff_input = self.chosen.read_input(record.call.arguments)
            elif name in self._handoffs:
                await self._choose(record, self._handoffs[name])
            elif name not in self.tools:
                known = ", ".join(self.tools) or "none"
                text = f"There is no tool named {name!r}. The tools are: {known}."
                await self._answer(record, text, "failed")
            elif (tool := self.tools[name]).needs_approval is False or await self._is_approved(record, tool):
                ready.append((record, tool))
                if tool.timeout is not None:
                    # What does not end within its timeout stays owned by the run. The scope of this turn's
                    # calls, which is opened below, would wait for it.
                    owner = current_scope()
        if ready:
            await self._call_all(ready, owner)

    async def _choose(self, record: CallRecord, handoff: Handoff) -> None:
        if self.chosen is not None:
            text = "Another agent takes over already: this handoff was ignored."
            await self._answer(record, text, "rejected")
            return
        try:
            self.handoff_input = handoff.read_input(record.call.arguments)
        except InvalidToolArguments as error:
            await self._answer(record, str(error), "failed")
            return
        self.chosen = handoff
        self.takeover = record.finish(f"The agent {handoff.agent.name} takes over.")
        if self._settings.emit is not None:
            await self._settings.emit(RunItemStreamEvent("handoff_requested", record.call))

    async def _is_approved(self, record: CallRecord, tool: FunctionTool) -> bool:
        decision = await self._approvals.decide(record, tool, self._context_of(record, tool))
        if decision is None:
            return False
        approved, message = decision
        if not approved:
            await self._answer(record, message or REJECTED, "rejected")
        return approved

    async def _answer(self, record: CallRecord, text: str, outcome: ToolOutcome) -> None:
        """Give a call a result without making it."""
        result = record.finish(text, outcome)
        if self._settings.emit is not None:
            await self._settings.emit(RunItemStreamEvent("tool_output", result))

    # Calling

    def _context_of(self, record: CallRecord, tool: FunctionTool) -> ToolContext[Any]:
        run, call = self._settings.context, record.call
        return ToolContext(run.context, run.usage, tool.name, call.call_id, call.arguments, self._agent)

    async def _call_all(self, ready: list[tuple[CallRecord, FunctionTool]], owner: Scope | None) -> None:
        limit = self._settings.config.max_tool_concurrency
        call: Callable[..., Awaitable[None]] = self._call
        if limit is not None and limit < len(ready):
            call = partial(self._call_in_slot, anyio.Semaphore(limit))
        tasks: list[Handle] = []
        try:
            async with Scope("tools") as scope:
                spawn = spawner_of(scope)
                for record, tool in ready:
                    task = spawn(call, record, tool, owner, name=tool.name)
                    record.runs_in(task)
                    tasks.append(task)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None
        for (record, tool), task in zip(ready, tasks, strict=True):
            if record.result is None:
                # A tool that looks at its token may be faster than our own cancel. Then the run is being
                # stopped, and the call gets its result when the run settles.
                current_token().raise_if_cancelled()
                # A cancel came out of the tool that the run has not sent: that is an error like any other.
                cancelled = ChildCancelled(tool.name, task.reason)
                if tool.failure_error_function is None:
                    raise cancelled
                context = record.context or self._context_of(record, tool)
                await self._answer(record, await failure_text(tool, context, cancelled), "failed")

    async def _call_in_slot(
        self, slots: anyio.Semaphore, record: CallRecord, tool: FunctionTool, owner: Scope | None
    ) -> None:
        async with slots:
            await self._call(record, tool, owner)

    async def _call(self, record: CallRecord, tool: FunctionTool, owner: Scope | None) -> None:
        """Make one call, in a task of its own.

        If the run is stopped meanwhile, the call has no result when this returns: it gets one when the run
        settles.
        """
        agent, journal, emit = self._agent, self._settings.journal, self._settings.emit
        context = self._context_of(record, tool)
        if tool.tool_input_guardrails and not await self._input_passes(record, tool, context):
            return
        # A guardrail, a hook or a journal may have swallowed the cancel, so the token is looked at before
        # each step that has an effect.
        if current_token().cancelled:
            return
        callbacks = self._settings.callbacks(agent)
        if callbacks is not None:
            await callbacks.tool_start(context, agent, tool)
        if journal is not None and tool.side_effects:
            await journal.tool_starting(record.call)
        if current_token().cancelled:
            return
        record.start(context)
        try:
            if tool.timeout is None:
                value = await tool.invoke(context, record.call.arguments)
            else:
                value = await invoke_in_time(tool, context, record.call.arguments, owner)
        except Exception as error:
            if current_token().cancelled:
                if record.result is not None or isinstance(error, TokenCancelled):
                    return  # it was given up, or was stopped and says so
                if is_cleaning_up():
                    raise  # the report says that the clean-up failed; to the model, the call was interrupted
                if isinstance(error, ScopeClosed):
                    return  # it was about to start something new
            if tool.failure_error_function is None:
                raise
            record.finish(await failure_text(tool, context, error), "failed")
        else:
            if type(value) is TimedOutCall:
                if value.outcome == "not_started":
                    record.forget_start()
                record.finish(value.text, value.outcome)
            if record.result is None:
                if tool.tool_output_guardrails:
                    value = await self._checked_output(tool, context, value)
                record.finish(value if type(value) is str else output_text(value))
                if self._outputs is not None:
                    self._outputs.append((record, tool, value))
            elif current_token().cancelled:
                return  # too late: it was given up, and the transcript says so
        assert record.result is not None
        if callbacks is not None:
            await callbacks.tool_end(context, agent, tool, record.result.output)
        if emit is not None:
            await emit(RunItemStreamEvent("tool_output", record.result))

    # Guardrails, and the output

    async def _input_passes(self, record: CallRecord, tool: FunctionTool, context: ToolContext[Any]) -> bool:
        data = ToolInputGuardrailData(context, self._agent)
        for guardrail in tool.tool_input_guardrails:
            verdict = await guardrail.run(data)
            if verdict.behavior == "raise_exception":
                raise ToolInputGuardrailTripwireTriggered(guardrail, verdict)
            if verdict.behavior == "reject_content":
                await self._answer(record, verdict.message, "rejected")
                return False
        return True

    async def _checked_output(self, tool: FunctionTool, context: ToolContext[Any], value: Any) -> Any:
        data = ToolOutputGuardrailData(context, self._agent, value)
        for guardrail in tool.tool_output_guardrails:
            verdict = await guardrail.run(data)
            if verdict.behavior == "raise_exception":
                raise ToolOutputGuardrailTripwireTriggered(guardrail, verdict)
            if verdict.behavior == "reject_content":
                return verdict.message
        return value


def _result(record: CallRecord) -> ToolResult:
    assert record.result is not None
    return record.result


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that came first, with a note for each other one."""
    first, *others = group.exceptions
    for other in others:
        first.add_note(f"another tool of the same turn also failed: {other!r}")
    return first
