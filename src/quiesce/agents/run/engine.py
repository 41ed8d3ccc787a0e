"""One run: turns of a model, with tools between them, until there is a final answer.

`drive` is the run's main task. It is cancelled once, like every child of a scope; whatever it was doing, `transcript.settle` then
completes what it had begun. It knows nothing of who consumes its events (`emit`) or keeps its items (`journal`): a plain run, a streamed
one and a conversation are the same engine.

Order inside a turn
- Nothing that has an effect happens before the input guardrails have passed: the first turn's tools and its final output wait for them.
- The tool calls of an answer are in the journal before the first of its tools starts; and so is all else of it that waits for no guardrail.
- The final output is nobody's before the output guardrails have passed. Until then no text of their agent is in the journal, and what a
  stop or a verdict has kept from passing never will be. What an answer has cost is there at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from quiesce import Scope, TokenCancelled, guarded
from quiesce.agents.agent import (
    Agent,
    Callbacks,
    Handoff,
    InputGuardrail,
    InputGuardrailResult,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    OutputGuardrail,
    OutputGuardrailResult,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    UserError,
    call_function,
    model_deadline,
)
from quiesce.kernel.inner import stop_asked_for
from quiesce.models import (
    AssistantMessage,
    Item,
    ItemDone,
    Model,
    ModelBehaviorError,
    ModelRefusalError,
    ModelRequest,
    Reasoning,
    ResponseDone,
    TextDelta,
    Tokens,
    ToolCall,
    ToolResult,
    Usage,
)

from .answer_closing import close_answer
from .events import AgentUpdatedStreamEvent, RawResponseEvent, RunItemStreamEvent, StreamEvent
from .tool_turn import ToolTurn
from .transcript import CallRecord, Transcript

if TYPE_CHECKING:
    from quiesce.agents.agent import FunctionTool, ToolServer

    from .journal import Journal

DEFAULT_MAX_TURNS = 10
_NEWS = {
    AssistantMessage: "message_output_created",
    Reasoning: "reasoning_item_created",
    ToolCall: "tool_called",
}


class Engine:
    """The state of one run."""

    __slots__ = (
        "_all_passed",
        "_guard_failure",
        "_guards_to_pass",
        "_servers",
        "_started_agent",
        "_unspent",
        "agent",
        "approvals",
        "callbacks",
        "checks_input",
        "config",
        "context",
        "emit",
        "final_output",
        "guardrail_input",
        "has_begun",
        "inbox",
        "input_guardrail_results",
        "input_passed",
        "is_complete",
        "journal",
        "keeps_approvals",
        "max_turns",
        "new_input",
        "output_guardrail_results",
        "over",
        "pending_approvals",
        "responses",
        "scope",
        "stop_after_turn",
        "takes_a_turn",
        "transcript",
        "turn",
        "unasked",
        "usage",
    )

    def __init__(
        self,
        agent: Agent[Any],
        new_input: list[Item],
        *,
        history: list[Item] | None = None,
        context: RunContextWrapper[Any],
        config: RunConfig,
        callbacks: Callbacks,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        journal: Journal | None = None,
    ) -> None:
        self.agent = agent
        self.new_input = new_input
        self.guardrail_input: str | list[Item] = new_input
        self.transcript = Transcript((history or []) + new_input)
        self.context = context
        self.usage = context.usage
        self.config = config
        self.callbacks = callbacks
        self.max_turns = max_turns
        self.journal = journal
        self.emit: Callable[[StreamEvent], Awaitable[None]] | None = None
        self.inbox: Callable[[], list[Item]] | None = None  # gives what the user has said since, once
        self.checks_input = True  # False: there is nothing new that guardrails could look at
        self.input_passed = False  # whether they have found nothing, as far as there are any
        self.keeps_approvals = False  # whether calls that nobody has decided on outlive a stop
        self.scope: Scope | None = None  # the run's
        self.turn = 0
        self.has_begun = False
        self.over = False  # its transcript is settled: whoever comes late has nothing to add to it
        self.stop_after_turn = False
        self.takes_a_turn = False  # one at least, before it stops after a turn
        self.is_complete = False
        self.final_output: Any = None
        self.responses: list[ResponseDone] = []
        self.input_guardrail_results: list[InputGuardrailResult] = []
        self.output_guardrail_results: list[OutputGuardrailResult] = []
        self.approvals: dict[
            str, tuple[bool, str]
        ] = {}  # by call id: approved or not, and what to tell the model
        self.pending_approvals: list[CallRecord] = []
        self.unasked: list[CallRecord] = []  # of these, those that a stop has kept anybody from asking for
        self._started_agent: Agent[Any] | None = None
        self._unspent: Usage | None = None  # what is known of the request that is under way
        self._guards_to_pass = 0
        self._guard_failure: BaseException | None = None
        self._all_passed: anyio.Event | None = None
        self._servers: tuple[AsyncExitStack, list[ToolServer]] | None = None  # that this run uses

    def continued(
        self, decisions: dict[str, tuple[bool, str]], hooks: RunHooks[Any] | None, config: RunConfig | None
    ) -> Engine:
        """An engine that goes on where this one waits for approvals."""
        following = Engine(
            self.agent,
            [],
            history=self.transcript.given,
            context=self.context,
            config=config or self.config,
            callbacks=Callbacks(hooks) if hooks is not None else self.callbacks,
            max_turns=self.max_turns,
            journal=self.journal,
        )
        following.new_input = self.new_input
        following.transcript = self.transcript
        following.turn = self.turn
        following.approvals = {**self.approvals, **decisions}
        following.responses = self.responses
        following.input_guardrail_results = self.input_guardrail_results
        following.has_begun = True
        following._started_agent = self._started_agent
        return following

    # Input guardrails

    def guards(self) -> list[Callable[[], Awaitable[None]]]:
        """The guardrails that stand beside the first turn, to be given to `guarded`."""
        if self.has_begun or not self.checks_input:
            return []
        beside = [guardrail for guardrail in self._input_guardrails() if guardrail.run_in_parallel]
        self._guards_to_pass = len(beside)
        self.transcript.input_passed = not beside
        return [ParallelGuardrail(self, guardrail) for guardrail in beside]

    def _input_guardrails(self) -> list[InputGuardrail]:
        return [*self.agent.input_guardrails, *self.config.input_guardrails]

    async def _guard(self, guardrail: InputGuardrail) -> None:
        try:
            await self._check_input(guardrail)
        except Exception as failure:
            if self.config.cancel_model_on_guardrail_failure:
                raise
            # The model's turn goes on; `_guards_passed` raises this when it is over.
            if self._guard_failure is None:
                self._guard_failure = failure
            else:
                self._guard_failure.add_note(f"{guardrail.get_name()} also failed: {failure!r}")
        self._guards_to_pass -= 1
        if not self._guards_to_pass:
            if self._guard_failure is None:
                self.transcript.pass_input()
            if self._all_passed is not None:
                self._all_passed.set()

    async def _check_input(self, guardrail: InputGuardrail) -> None:
        result = await guardrail.run(self.context, self.agent, self.guardrail_input)
        self.input_guardrail_results.append(result)
        if result.output.tripwire_triggered:
            raise InputGuardrailTripwireTriggered(result)

    async def _guards_before(self) -> None:
        before = [guardrail for guardrail in self._input_guardrails() if not guardrail.run_in_parallel]
        if before:
            checks = [partial(self._check_input, guardrail) for guardrail in before]
            await guarded(*checks)

    async def _guards_passed(self) -> None:
        """Wait for those beside the first turn."""
        while self._guards_to_pass:
            self._all_passed = anyio.Event()
            await self._all_passed.wait()
        if self._guard_failure is not None:
            failure, self._guard_failure = self._guard_failure, None
            raise failure
        self.input_passed = True

    # The loop

    async def drive(self) -> None:
        """Go on until there is a final output, an approval to wait for, or a reason to stop after this turn."""
        try:
            await self._drive()
        except Exception as error:
            if self._guard_failure is not None and self._guard_failure is not error:
                self._guard_failure.add_note(f"the model's turn also failed: {error!r}")
                await self._guards_passed()
            raise
        finally:
            if self._servers is not None:
                await self._servers[0].aclose()

    async def _drive(self) -> None:
        await self._begin()
        if self.transcript.calls and not await self._run_tools():  # left pending by an earlier run
            return
        while not self.stop_after_turn or (self.takes_a_turn and not self.turn):
            if self.inbox is not None and (said := self.inbox()):
                await self._hear(said)
            elif self.is_complete:
                return
            if self.max_turns is not None and self.turn >= self.max_turns:
                raise MaxTurnsExceeded(
                    f"the model has taken {self.max_turns} turns without a final answer: "
                    "raise max_turns, or look at why it goes on"
                )
            self.turn += 1
            if not await self._take_turn():
                return

    async def _begin(self) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        if self.journal is not None:
            earlier = await self.journal.load()
            self.transcript.given = earlier + self.transcript.given
            await self.journal.add(self.new_input)
        if self.checks_input:
            await self._guards_before()

    async def _hear(self, said: list[Item]) -> None:
        """The user has said something meanwhile: the next answer is to that, if the guardrails let it pass."""
        self.is_complete = False
        self.final_output = None
        self.checks_input = True
        self.input_passed = False
        self.guardrail_input = said
        self.transcript.new += said
        await self._save()
        guardrails = self._input_guardrails()
        if guardrails:
            await guarded(*[partial(self._check_input, guardrail) for guardrail in guardrails])

    async def _take_turn(self) -> bool:
        """One answer of the model and what it asks for; False if somebody has to approve something first."""
        agent, context = self.agent, self.context
        if self._started_agent is not agent:
            self._started_agent = agent
            if self.callbacks.any(agent):
                await self.callbacks.agent_start(context, agent)
        instructions = agent.instructions
        if instructions is not None and not isinstance(instructions, str):
            instructions = await agent.get_system_prompt(context)
        turn = await ToolTurn.prepare(self, agent)
        request = ModelRequest(
            self.transcript.items,
            instructions,
            turn.specs,
            agent._output.spec if agent._output is not None else None,
            agent.model_settings.resolve(self.config.model_settings),
        )
        listening = self.callbacks.any(agent)
        if listening:
            await self.callbacks.llm_start(context, agent, request)
        self.transcript.guarded = bool(self._output_guardrails(agent))
        response = await self._ask(self._model(agent), request)
        if self._guards_to_pass:
            await self._save()  # what it has cost
        if listening:
            await self.callbacks.llm_end(context, agent, response)
        await self._guards_passed()
        await self._save()
        if not self.transcript.calls:
            await self._conclude(agent, self._decoded(agent, self._last_text()))
            return True
        return await self._run_tools(turn)

    def _model(self, agent: Agent[Any]) -> Model:
        model = agent.model if self.config.model is None else self.config.model
        if model is None:
            raise UserError(
                f"agent {agent.name!r} has no model: give it one, Agent(model=...), or the run, RunConfig(model=...)"
            )
        return model

    async def _ask(self, model: Model, request: ModelRequest) -> ResponseDone:
        """Let the model answer; what it has said so far is in the transcript, or in `partial`, at any moment."""
        check_not_stopped()
        transcript, emit = self.transcript, self.emit
        self._unspent = Usage(requests=1, unreported=1)
        done: ResponseDone | None = None
        answer = model.stream(request)
        try:
            async with model_deadline(request.settings.timeout, model.name):
                async for event in answer:
                    if self.over:
                        check_not_stopped()
                    if isinstance(event, TextDelta):
                        transcript.partial.append(event.text)
                    elif isinstance(event, ItemDone):
                        if isinstance(event.item, AssistantMessage):
                            transcript.partial.clear()
                        transcript.add(event.item)
                    elif isinstance(event, Tokens):
                        self._unspent = event.usage
                    elif isinstance(event, ResponseDone):
                        done = event
                    if emit is not None:
                        await self._tell(event)
        except BaseException as cut:
            if getattr(answer, "ag_frame", answer) is not None:  # None: what came out of it has ended it
                await close_answer(answer, cut, model.name)
            raise
        if self.over:
            check_not_stopped()
        if done is None:
            raise ModelBehaviorError(
                f"model {model.name!r} ended its answer without ResponseDone: the stream was cut",
                model=model.name,
            )
        if transcript.partial:  # a model that never said that its message is complete
            text = "".join(transcript.partial)
            transcript.partial.clear()
            transcript.add(AssistantMessage(text))
        self._unspent = None
        self.usage.add(done.usage)
        self.responses.append(done)
        if done.finish == "refusal":
            said = self._last_text() if self._may_be_quoted() else "in words that no guardrail has passed"
            raise ModelRefusalError(f"model {model.name!r} declines: {said}", model=model.name)
        return done

    async def _tell(self, event: Any) -> None:
        assert self.emit is not None
        if type(event) is ItemDone:
            news = _NEWS.get(type(event.item))
            if news is not None:
                await self.emit(RunItemStreamEvent(news, event.item))  # type: ignore[arg-type]
        else:
            await self.emit(RawResponseEvent(event))

    def count_cut_request(self) -> None:
        """A request that was stopped has cost something too: what is known of that counts."""
        if self._unspent is not None:
            self.usage.add(self._unspent)
            self._unspent = None

    async def _save(self) -> None:
        if self.over:
            check_not_stopped()
        if self.journal is not None:
            await self.journal.add(self.transcript.take_unsaved(), self.transcript.take_late())

    def _may_be_quoted(self) -> bool:
        """Whether an error may quote what was said: errors are recorded too, and told to the agent whose tool this one is."""
        return self.transcript.input_passed and not self.transcript.guarded

    def _last_text(self) -> str:
        """What the model has said in this turn."""
        for item in reversed(self.transcript.new):
            if isinstance(item, AssistantMessage):
                return item.text
            if isinstance(item, ToolResult):
                break
        return ""

    # The end

    def _output_guardrails(self, agent: Agent[Any]) -> list[OutputGuardrail]:
        return [*agent.output_guardrails, *self.config.output_guardrails]

    def _decoded(self, agent: Agent[Any], text: str) -> Any:
        return agent._output.decode(text, quotes=self._may_be_quoted()) if agent._output is not None else text

    async def _conclude(self, agent: Agent[Any], output: Any) -> None:
        """There is a final answer: check it, and it is the run's."""
        guardrails = self._output_guardrails(agent)
        if guardrails:
            await guarded(
                *[partial(self._check_output, guardrail, agent, output) for guardrail in guardrails]
            )
        if self.transcript.held:
            self.transcript.pass_output()
            await self._save()
        if self.callbacks.any(agent):
            await self.callbacks.agent_end(self.context, agent, output)
        self.final_output = output
        self.is_complete = True

    async def _check_output(self, guardrail: OutputGuardrail, agent: Agent[Any], output: Any) -> None:
        result = await guardrail.run(self.context, agent, output)
        self.output_guardrail_results.append(result)
        if result.output.tripwire_triggered:
            raise OutputGuardrailTripwireTriggered(result)

    # Tools

    async def tools_of(self, server: ToolServer) -> list[FunctionTool]:
        """What an MCP server offers. It is connected by the first run that needs it, and closed with the last one."""
        if self._servers is None:
            self._servers = AsyncExitStack(), []
        stack, in_use = self._servers
        if server not in in_use:
            await stack.enter_async_context(server.use())
            in_use.append(server)
        return await server.list_tools()

    async def _run_tools(self, turn: ToolTurn | None = None) -> bool:
        """Call what the model has asked for; False if some of it has to be approved first."""
        check_not_stopped()
        agent = self.agent
        if turn is None:
            turn = await ToolTurn.prepare(self, agent)
        decided = frozenset(self.approvals)
        try:
            await turn.run(self.transcript.calls)
        except BaseException:
            if self.keeps_approvals:
                self._keep_unasked(turn, decided)
            raise
        if self.pending_approvals:
            return False
        results = self.transcript.close_turn()
        final = turn.first_output if turn.chosen is None else None
        if final is not None and self._output_guardrails(agent):
            self.transcript.hold(results[final[0]])
        await self._save()
        if turn.chosen is not None:
            await self._hand_over(agent, turn.chosen, turn.takeover)
        elif final is not None:
            await self._conclude(agent, final[1])
        return True

    def _keep_unasked(self, turn: ToolTurn, decided: frozenset[str]) -> None:
        """The turn was stopped while approvals were asked for, one after the other: those that nobody came to wait too."""
        calls, pending, asks = self.transcript.calls, self.pending_approvals, self.config.approve is not None
        last_asked = calls.index(pending[-1]) if pending else len(calls)
        for place, record in enumerate(calls):
            tool, call_id = turn.tools.get(record.call.name), record.call.call_id
            if tool is None or tool.needs_approval is False or record.result is not None or record in pending:
                continue
            if record.started_at is None and (
                call_id in self.approvals  # decided on, and not looked at yet
                or (asks and place > last_asked)
                or (not asks and tool.needs_approval is True and call_id not in decided)
            ):
                self.unasked.append(record)
        pending += self.unasked

    async def _hand_over(self, source: Agent[Any], chosen: Handoff, told: ToolResult | None) -> None:
        target = chosen.agent
        self.agent = target  # the history says so already
        if self.callbacks.run is not None or target.hooks is not None:
            await self.callbacks.handoff(self.context, source, target)
        if chosen.on_handoff is not None:
            await call_function(chosen.on_handoff, self.context)
        if chosen.input_filter is not None:
            self.transcript.show(chosen.input_filter(self.transcript.items))
        if self.emit is not None:
            if told is not None:
                await self.emit(RunItemStreamEvent("handoff_occurred", told))
            await self.emit(AgentUpdatedStreamEvent(target))


def check_not_stopped() -> None:
    """Somebody's code may have swallowed the cancel: then nothing new starts all the same."""
    reason = stop_asked_for()
    if reason is not None:
        raise TokenCancelled(reason)


class ParallelGuardrail:
    """A guardrail beside the first turn, under its own name."""

    def __init__(self, engine: Engine, guardrail: InputGuardrail) -> None:
        self._engine = engine
        self._guardrail = guardrail
        self.__qualname__ = f"guardrail {guardrail.get_name()}"  # what reports call it

    async def __call__(self) -> None:
        await self._engine._guard(self._guardrail)
