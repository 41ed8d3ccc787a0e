"""What comes out of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from quiesce.agents.agent import ModelResponse, RunContextWrapper, UserError, has, refuse

if TYPE_CHECKING:
    from quiesce import StopReport
    from quiesce.agents.agent import Agent, InputGuardrailResult, OutputGuardrailResult
    from quiesce.models import Item, ResponseDone, ToolCall, Usage

    from .agent_run import AgentRun
    from .engine import Engine

T = TypeVar("T")


class RunOutcome:
    """What the results of all kinds of runs say."""

    __slots__ = ("_run",)

    def __init__(self, run: AgentRun) -> None:
        self._run = run

    @property
    def _engine(self) -> Engine:
        return self._run.engine

    @property
    def input(self) -> list[Item]:
        """What the run began with."""
        return self._engine.input

    @property
    def new_items(self) -> list[Item]:
        """What it has added: messages, tool calls, and a result for each of these.

        Text that waits for a guardrail is left out.
        """
        return self._engine.transcript.kept(self._engine.transcript.new)

    @property
    def final_output(self) -> Any:
        """The final answer: text, or the `output_type` of the agent that gave it. None if there is none."""
        return self._engine.final_output

    @property
    def last_agent(self) -> Agent[Any]:
        """The agent whose turn it was last."""
        return self._engine.agent

    @property
    def usage(self) -> Usage:
        """What it has cost, including requests that were stopped."""
        return self._engine.requests.usage

    @property
    def context_wrapper(self) -> RunContextWrapper[Any]:
        """The context that tools and guardrails were given."""
        return self._engine.settings.context

    @property
    def responses(self) -> list[ResponseDone]:
        """The end of each answer of a model: its cost, and its id."""
        return [done for done, _ in self._engine.requests.answers]

    @property
    def raw_responses(self) -> list[ModelResponse]:
        """Each answer of a model: what it said, without text that waits for a guardrail, and what it has cost."""
        kept = {id(item) for item in self.new_items}
        return [
            ModelResponse(
                [item for item in said if id(item) in kept], done.usage, done.response_id, done.finish
            )
            for done, said in self._engine.requests.answers
        ]

    @property
    def input_guardrail_results(self) -> list[InputGuardrailResult]:
        """What the input guardrails have said."""
        return self._engine.input_guardrail_results

    @property
    def output_guardrail_results(self) -> list[OutputGuardrailResult]:
        """What the output guardrails have said."""
        return self._engine.output_guardrail_results

    @property
    def last_response_id(self) -> str | None:
        """The id of the last answer of a model, if its provider gave it one."""
        return self.responses[-1].response_id if self.responses else None

    @property
    def interruptions(self) -> list[ToolApprovalItem]:
        """The tool calls that wait for an approval: see `to_state`."""
        return _waiting(self._engine)

    @property
    def report(self) -> StopReport | None:
        """What became of the run's tasks, and what is left over; None while it runs."""
        return self._run.scope.report if self._run.scope is not None else None

    def to_input_list(self) -> list[Item]:
        """Everything said and done so far, as valid input for the next run."""
        if self._engine.approvals.pending:
            raise UserError("some tool calls wait for approval: decide on them with to_state()")
        return self._engine.transcript.given + self.new_items

    def final_output_as(self, kind: type[T]) -> T:
        """The final output, checked to be of that type."""
        if not isinstance(self.final_output, kind):
            raise TypeError(f"the final output is {type(self.final_output).__name__}, not {kind.__name__}")
        return self.final_output

    def to_state(self) -> RunState:
        """The run as it stands, to be continued with `Runner.run(agent, state)`."""
        return RunState(self._engine)


class RunResult(RunOutcome):
    """What `Runner.run` returns.

    ```python
    result = await Runner.run(agent, "Hello")
    print(result.final_output, result.usage.total_tokens)
    result = await Runner.run(agent, result.to_input_list() + [UserMessage("Go on")])
    ```
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<RunResult of {self.last_agent.name!r}: {self.final_output!r}>"


@dataclass(frozen=True, slots=True)
class ToolApprovalItem:
    """A tool call that waits for an approval, and the agent whose call it is."""

    raw_item: ToolCall
    agent: Agent[Any]
    type: ClassVar[str] = "tool_approval_item"

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self.raw_item.call_id

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.raw_item.name

    tool_name = name

    @property
    def arguments(self) -> str:
        """The arguments of the call, as JSON."""
        return self.raw_item.arguments


def _waiting(engine: Engine) -> list[ToolApprovalItem]:
    return [ToolApprovalItem(record.call, engine.agent) for record in engine.approvals.pending]


@dataclass(slots=True)
class RunState:
    """A run that waits for approvals. Decide on each of `interruptions`, then go on:

    ```python
    state = result.to_state()
    for call in state.interruptions:
        state.approve(call)
    result = await Runner.run(agent, state)
    ```
    """

    _engine: Engine
    _decisions: dict[str, tuple[bool, str]] = field(default_factory=dict)
    _always: dict[str, tuple[bool, str]] = field(default_factory=dict)

    @property
    def interruptions(self) -> list[ToolApprovalItem]:
        """The calls that you have not decided on."""
        return [
            one
            for one in _waiting(self._engine)
            if one.call_id not in self._decisions and one.name not in self._always
        ]

    def get_interruptions(self) -> list[ToolApprovalItem]:
        """The same, as OpenAI's Agents SDK has it."""
        return self.interruptions

    def approve(self, call: ToolApprovalItem | ToolCall, always_approve: bool = False) -> None:
        """Let it run. With `always_approve`, so do all calls of this tool that you have not decided on, now and later
        in this run."""
        self._decide(call, (True, ""), always_approve)

    def reject(
        self,
        call: ToolApprovalItem | ToolCall,
        message: str = "",
        *,
        always_reject: bool = False,
        rejection_message: str | None = None,
    ) -> None:
        """Do not let it run; the model is told so, or what `message` says.

        `always_reject` is the opposite of `always_approve`, and `rejection_message` the SDK's name for `message`.
        """
        self._decide(
            call, (False, message if rejection_message is None else rejection_message), always_reject
        )

    def _decide(self, call: ToolApprovalItem | ToolCall, decision: tuple[bool, str], always: bool) -> None:
        if not has(call, "call_id"):
            refuse("what is approved or rejected", "a ToolCall", call, "pass one of `interruptions`")
        if all(record.call.call_id != call.call_id for record in self._engine.approvals.pending):
            raise UserError(f"tool call {call.call_id!r} does not wait for approval")
        self._decisions[call.call_id] = decision
        if always:
            self._always[call.name] = decision
