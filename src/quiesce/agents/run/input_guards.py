"""The input guardrails of a run: some pass before its first turn, others run in parallel with it.

Nothing that has an effect happens before all of them have passed: the engine waits for them (`wait_passed`)
before it calls a tool, records an answer or takes one for the final output.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio

from quiesce import guarded
from quiesce.agents.agent import (
    Agent,
    InputGuardrail,
    InputGuardrailResult,
    InputGuardrailTripwireTriggered,
)
from quiesce.models import Item

from .settings import RunSettings
from .transcript import Transcript


class InputGuards:
    """The checks of one input by the guardrails of one agent: what they have said, and which have not
    returned.

    A run has them only if there are guardrails. Their results are added to `results`.
    """

    __slots__ = (
        "_agent",
        "_all_returned",
        "_before_turn",
        "_failure",
        "_results",
        "_settings",
        "_to_check",
        "_transcript",
        "unfinished",
    )

    def __init__(
        self,
        settings: RunSettings,
        transcript: Transcript,
        agent: Agent[Any],
        to_check: str | list[Item],
        results: list[InputGuardrailResult],
    ) -> None:
        self._settings = settings
        self._transcript = transcript
        self._agent = agent
        self._to_check = to_check
        self._results = results
        self._before_turn: Sequence[InputGuardrail] = ()
        #: How many that run in parallel with the first turn have not returned.
        self.unfinished = 0
        # The first failure, if the model's turn is to finish before it is raised.
        self._failure: Exception | None = None
        self._all_returned: anyio.Event | None = None

    # Before the first turn, and in parallel with it

    def begin(self, guardrails: Sequence[InputGuardrail]) -> Sequence[Callable[[], Awaitable[None]]]:
        """Begin the run; returns those that run in parallel with the first turn, for `guarded`."""
        self._before_turn = [guardrail for guardrail in guardrails if not guardrail.run_in_parallel]
        cancels_model = self._settings.config.cancel_model_on_guardrail_failure
        parallel = [_ParallelCheck(self, one, cancels_model) for one in guardrails if one.run_in_parallel]
        if parallel:
            self.unfinished = len(parallel)
            self._transcript.expect_input_guards()
        return parallel

    async def check_before_turn(self) -> None:
        """Run those that have to pass before the first turn."""
        if self._before_turn:
            await self._check_all(self._before_turn)

    async def check_messages(
        self, agent: Agent[Any], said: list[Item], guardrails: Sequence[InputGuardrail]
    ) -> None:
        """Run all guardrails on what the user has said while the run went on; the model waits for them."""
        self._agent, self._to_check = agent, said
        await self._check_all(guardrails)

    async def _check_all(self, guardrails: Sequence[InputGuardrail]) -> None:
        await guarded(*[partial(self.check, guardrail) for guardrail in guardrails])

    async def check(self, guardrail: InputGuardrail) -> None:
        """Run one of them."""
        result = await guardrail.run(self._settings.context, self._agent, self._to_check)
        self._results.append(result)
        if result.output.tripwire_triggered:
            raise InputGuardrailTripwireTriggered(result)

    def fail_later(self, guardrail: InputGuardrail, failure: Exception) -> None:
        """One of those that run in parallel has failed, and the model's turn may not be cancelled.

        `wait_passed` raises it when the turn is complete.
        """
        if self._failure is None:
            self._failure = failure
        else:
            self._failure.add_note(f"{guardrail.get_name()} also failed: {failure!r}")

    def count_return(self) -> None:
        """One of those that run in parallel has returned."""
        self.unfinished -= 1
        if not self.unfinished:
            if self._failure is None:
                self._transcript.pass_input()
            if self._all_returned is not None:
                self._all_returned.set()

    # Waiting for them

    async def wait_passed(self) -> None:
        """Wait for those that run in parallel with the first turn; raise the first failure."""
        while self.unfinished:
            self._all_returned = anyio.Event()
            await self._all_returned.wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    async def raise_rather_than(self, error: Exception) -> None:
        """Raise what a guardrail has raised, if it has, with a note about `error` of the model's turn."""
        if self._failure is not None and self._failure is not error:
            self._failure.add_note(f"the model's turn also failed: {error!r}")
            await self.wait_passed()


class _ParallelCheck:
    """One guardrail that runs in parallel with the first turn, under a name of its own."""

    def __init__(self, guards: InputGuards, guardrail: InputGuardrail, cancels_model: bool) -> None:
        self._guards = guards
        self._guardrail = guardrail
        self._cancels_model = cancels_model
        self.__qualname__ = f"guardrail {guardrail.get_name()}"  # what reports call it

    async def __call__(self) -> None:
        try:
            await self._guards.check(self._guardrail)
        except Exception as failure:
            if self._cancels_model:
                raise
            self._guards.fail_later(self._guardrail, failure)
        self._guards.count_return()
