"""The turns of one run: the model answers, its tools run, and so on until there is a final answer.

`Engine.drive` is the main task of the run. It is cancelled once, like every child of a scope; whatever it was
doing, `settle` then completes what it had begun. It does not know who consumes its events or keeps its items
(`RunSettings.emit`, `.journal`): a plain run, a streamed one and a conversation use the same engine.

Order inside a turn:

- Nothing that has an effect happens before the input guardrails have passed: the first turn's tools and its
  final output wait for them.
- The tool calls of an answer are in the journal before the first of its tools starts, and so is everything
  else in it that waits for no guardrail.
- The final output is given to no one before the output guardrails have passed it. Until then no text of their
  agent is in the journal. Text that a stop or a guardrail has kept from passing never gets there. What an
  answer cost is there at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from quiesce import Reason, guarded
from quiesce.agents.agent import (
    Agent,
    Handoff,
    HandoffInputData,
    InputGuardrail,
    InputGuardrailResult,
    MaxTurnsExceeded,
    ModelResponse,
    OutputGuardrail,
    OutputGuardrailResult,
    OutputGuardrailTripwireTriggered,
    UserError,
    call_function,
    filtered,
)
from quiesce.kernel.inner import Child
from quiesce.models import Item, Model, ModelRequest
from quiesce.models.inner import as_items

from .events import AgentUpdatedStreamEvent, RunItemStreamEvent
from .input_guards import InputGuards
from .model_requests import ModelRequests, check_not_stopped
from .settings import RunSettings
from .tool_turn import Approvals, ToolServers, ToolTurn
from .transcript import Transcript


class Engine:
    """Whose turn it is in a run, how many turns were taken, and the final answer.

    `input` is what this run adds to the journal at its start, `to_check` what its input guardrails look at
    (None: nothing), `decisions` what was decided about the calls that its transcript begins with, and `always` what
    was decided about all calls of some tools.
    """

    __slots__ = (
        "_guards",
        "_has_begun",
        "_input_passed",
        "_servers",
        "_started_agent",
        "_stops_after_turn",
        "_takes_first_turn",
        "_to_check",
        "_turn_began_at",
        "_used_tools",
        "agent",
        "approvals",
        "final_output",
        "input",
        "input_guardrail_results",
        "is_complete",
        "output_guardrail_results",
        "requests",
        "settings",
        "transcript",
        "turn",
    )

    def __init__(
        self,
        agent: Agent[Any],
        settings: RunSettings,
        transcript: Transcript,
        *,
        input: list[Item] | None = None,  # noqa: A002 - what the results of a run call it
        to_check: str | list[Item] | None = None,
        decisions: Mapping[str, tuple[bool, str]] | None = None,
        always: Mapping[str, tuple[bool, str]] | None = None,
    ) -> None:
        self.agent = agent
        self.settings = settings
        self.transcript = transcript
        self.input = input or []
        self.input_guardrail_results: list[InputGuardrailResult] = []
        self.approvals = Approvals(settings, decisions, always)
        self.requests = ModelRequests(settings.context.usage)
        self.output_guardrail_results: list[OutputGuardrailResult] = []
        self.turn = 0
        self.is_complete = False
        self.final_output: Any = None
        self._has_begun = False
        # Until the input has passed, also where there are no guardrails, the next run of a conversation has
        # to check it.
        self._to_check = to_check
        self._input_passed = False
        self._guards: InputGuards | None = None  # if there are any
        # The last agent whose start the hooks were told of.
        self._started_agent: Agent[Any] | None = None
        self._servers: ToolServers | None = None
        self._stops_after_turn = False
        self._takes_first_turn = False
        self._turn_began_at = 0  # among the new items of the transcript
        # The agents that have used a tool: their `tool_choice` applies no more.
        self._used_tools: tuple[Agent[Any], ...] = ()

    def continued(
        self,
        settings: RunSettings,
        decisions: Mapping[str, tuple[bool, str]],
        always: Mapping[str, tuple[bool, str]],
    ) -> Engine:
        """An engine that goes on where this one waits for approvals."""
        self.transcript.reopen()
        following = Engine(
            self.agent,
            settings,
            self.transcript,
            input=self.input,
            decisions={**self.approvals.decisions, **decisions},
            always={**self.approvals.always, **always},
        )
        following.input_guardrail_results = self.input_guardrail_results
        following.requests = self.requests
        following.turn = self.turn
        following._has_begun = True
        following._started_agent = self._started_agent
        following._turn_began_at = self._turn_began_at
        following._used_tools = self._used_tools
        return following

    @property
    def unchecked_input(self) -> Sequence[Item]:
        """What no input guardrail has passed yet."""
        return as_items(self._to_check) if self._to_check is not None and not self._input_passed else ()

    # Stopping

    @property
    def stops_after_turn(self) -> bool:
        """Whether it was told to stop after the current turn."""
        return self._stops_after_turn

    def stop_after_turn(self) -> None:
        """Stop when the current turn and its tools are done, and before the first turn at once."""
        self._stops_after_turn = True

    def announce_first_turn(self) -> None:
        """From here on, the first turn counts as the current one."""
        self._takes_first_turn = True

    def settle(self, reason: Reason | None, left: Sequence[Child], *, keep_pending: bool) -> None:
        """The run was stopped: complete its transcript, and count what the request under way has cost.

        `left` is what still runs of the run. With `keep_pending`, calls that wait for an approval go on
        waiting.
        """
        self.requests.count_interrupted()
        if not keep_pending:
            self.approvals.drop()
        self.transcript.settle(reason, self.approvals.pending, left)

    # The turns

    def guards(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """The guardrails that run in parallel with the first turn, to be given to `guarded`."""
        guardrails = self._input_guardrails()
        if self._has_begun or self._to_check is None or not guardrails:
            return ()
        self._guards = self._make_guards(self._to_check)
        return self._guards.begin(guardrails)

    def _input_guardrails(self) -> list[InputGuardrail]:
        return [*self.agent.input_guardrails, *self.settings.config.input_guardrails]

    def _make_guards(self, to_check: str | list[Item]) -> InputGuards:
        return InputGuards(self.settings, self.transcript, self.agent, to_check, self.input_guardrail_results)

    async def drive(self) -> None:
        """Take turns until there is a final output, a call waits for approval, or the run is to stop."""
        try:
            await self._begin()
            if self.transcript.calls and not await self._run_tools():  # an earlier run left them pending
                return
            # A streamed run has announced its first turn with an event. A stop after that event is one after
            # the first turn, and not before it.
            while not self._stops_after_turn or (self._takes_first_turn and not self.turn):
                take_messages, max_turns = self.settings.take_messages, self.settings.max_turns
                if take_messages is not None and (said := take_messages()):
                    await self._hear(said)
                elif self.is_complete:
                    return
                if max_turns is not None and self.turn >= max_turns:
                    raise MaxTurnsExceeded(
                        f"the model has taken {max_turns} turns without a final answer: "
                        "raise max_turns, or look at why it goes on"
                    )
                self.turn += 1
                if not await self._take_turn():
                    return
        except Exception as error:
            if self._guards is not None:
                await self._guards.raise_rather_than(error)
            raise
        finally:
            if self._servers is not None:
                await self._servers.close()

    async def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        journal = self.settings.journal
        # The input is recorded before a guardrail looks at it: what the user said was said, even if it is
        # refused.
        if journal is not None:
            self.transcript.begin_after(await journal.load())
            await journal.add(self.input)
        if self._guards is not None:
            await self._guards.check_before_turn()

    async def _hear(self, said: list[Item]) -> None:
        """The user has said more: the next answer is to that, if the guardrails pass it."""
        self.is_complete = False
        self.final_output = None
        self.transcript.hear(said)
        self._to_check, self._input_passed = said, False
        await self._save()
        if guardrails := self._input_guardrails():
            if self._guards is None:
                self._guards = self._make_guards(said)
            await self._guards.check_messages(self.agent, said, guardrails)

    async def _take_turn(self) -> bool:
        """One answer of the model, and the tools that it asks for; False if a call waits for approval."""
        agent, settings, transcript = self.agent, self.settings, self.transcript
        context = settings.context
        if self._started_agent is not agent:
            self._started_agent = agent
            if (callbacks := settings.callbacks(agent)) is not None:
                context.turn_input = transcript.items
                await callbacks.agent_start(context, agent)
        instructions = agent.instructions
        if instructions is not None and not isinstance(instructions, str):
            instructions = await agent.get_system_prompt(context)
        # For each turn anew: a tool may be enabled, or offered by its server, in one turn and not in the
        # next.
        turn = await self._prepare_tools(agent)
        output_type = agent.answer_type
        model_settings = agent.model_settings.resolve(settings.config.model_settings)
        if model_settings.tool_choice is not None and self._has_used_tools(agent) and agent.reset_tool_choice:
            model_settings = replace(model_settings, tool_choice=None)
        items = transcript.items
        if settings.config.call_model_input_filter is not None:
            sent = await filtered(
                settings.config.call_model_input_filter, items, instructions, agent, context.context
            )
            items, instructions = sent.input, sent.instructions
        request = ModelRequest(
            items,
            instructions,
            turn.specs,
            output_type.spec if output_type is not None else None,
            model_settings,
        )
        callbacks = settings.callbacks(agent)
        if callbacks is not None:
            await callbacks.llm_start(context, agent, instructions, list(request.items))
        self._turn_began_at = len(transcript.new)
        transcript.expect_output_guards(bool(agent.output_guardrails or settings.config.output_guardrails))
        response = await self.requests.ask(self._model(agent), request, transcript, settings.emit)
        if self._guards is not None and self._guards.unfinished:
            # Saves what the answer cost. The answer itself waits for the guardrails.
            await self._save()
        if callbacks is not None:
            said = ModelResponse(
                list(self.requests.answers[-1][1]), response.usage, response.response_id, response.finish
            )
            await callbacks.llm_end(context, agent, said)
        if self._guards is not None:
            await self._guards.wait_passed()
        self._input_passed = True
        await self._save()
        if transcript.calls:
            return await self._run_tools(turn)
        text = transcript.last_text()
        await self._conclude(
            agent,
            output_type.decode(text, quotes=transcript.may_be_quoted) if output_type is not None else text,
        )
        return True

    def _has_used_tools(self, agent: Agent[Any]) -> bool:
        return any(one is agent for one in self._used_tools)

    def _model(self, agent: Agent[Any]) -> Model:
        model = agent.model if self.settings.config.model is None else self.settings.config.model
        if model is None:
            raise UserError(
                f"agent {agent.name!r} has no model: give it one, Agent(model=...), or the run, RunConfig(model=...)"
            )
        return model

    async def _save(self) -> None:
        # A task that ignored its cancel for longer than the grace comes here after the run was settled.
        if self.transcript.is_settled:
            check_not_stopped()
        if self.settings.journal is not None:
            await self.settings.journal.add(self.transcript.take_unsaved(), self.transcript.take_late())

    # Tools

    def _prepare_tools(self, agent: Agent[Any]) -> Awaitable[ToolTurn]:
        if self._servers is None and agent.mcp_servers:
            self._servers = ToolServers()
        return ToolTurn.prepare(agent, self.settings, self.approvals, self._servers)

    async def _run_tools(self, turn: ToolTurn | None = None) -> bool:
        """Call the tools that the model has asked for; False if a call waits for approval."""
        check_not_stopped()
        agent, transcript = self.agent, self.transcript
        if turn is None:
            turn = await self._prepare_tools(agent)
        try:
            await turn.run(transcript.calls)
        except BaseException:
            if self.settings.keeps_approvals:
                self.approvals.keep_unasked(transcript.calls, turn.tools)
            raise
        if self.approvals.pending:
            return False
        if not self._used_tools or self._used_tools[-1] is not agent:
            self._used_tools += (agent,)
        final = await turn.final_output()
        transcript.close_turn()
        if final is not None and self._output_guardrails(agent):
            for held in final[0]:
                transcript.hold(held)
        await self._save()
        if turn.chosen is not None:
            await self._hand_over(agent, turn, turn.chosen)
        elif final is not None:
            await self._conclude(agent, final[1])
        return True

    async def _hand_over(self, source: Agent[Any], turn: ToolTurn, chosen: Handoff) -> None:
        target, settings = chosen.agent, self.settings
        self.agent = target  # at once, as the history says so already
        if (callbacks := settings.callbacks(target)) is not None:
            await callbacks.handoff(settings.context, source, target)
        if chosen.on_handoff is not None:
            await call_function(chosen.on_handoff, settings.context, *turn.handoff_input)
        if chosen.input_filter is not None:
            parts = self.transcript.parts(self._turn_began_at)
            shown: Any = chosen.input_filter(HandoffInputData(*parts, settings.context))
            self.transcript.show(as_items(await shown if inspect.isawaitable(shown) else shown))
        if settings.emit is not None:
            if turn.takeover is not None:
                await settings.emit(RunItemStreamEvent("handoff_occured", turn.takeover))
            await settings.emit(AgentUpdatedStreamEvent(target))

    # The final answer

    def _output_guardrails(self, agent: Agent[Any]) -> list[OutputGuardrail]:
        return [*agent.output_guardrails, *self.settings.config.output_guardrails]

    async def _conclude(self, agent: Agent[Any], output: Any) -> None:
        """Check the final answer; it is the run's when the output guardrails have passed it."""
        guardrails = self._output_guardrails(agent)
        if guardrails:
            await guarded(
                *[partial(self._check_output, guardrail, agent, output) for guardrail in guardrails]
            )
        if self.transcript.awaits_output_guards:
            self.transcript.pass_output()
            await self._save()
        if (callbacks := self.settings.callbacks(agent)) is not None:
            await callbacks.agent_end(self.settings.context, agent, output)
        self.final_output = output
        self.is_complete = True

    async def _check_output(self, guardrail: OutputGuardrail, agent: Agent[Any], output: Any) -> None:
        result = await guardrail.run(self.settings.context, agent, output)
        self.output_guardrail_results.append(result)
        if result.output.tripwire_triggered:
            raise OutputGuardrailTripwireTriggered(result)
