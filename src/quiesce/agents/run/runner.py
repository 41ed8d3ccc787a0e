"""Runs: how an engine is started, stopped, drained and settled, always in the same way.

`Execution` is that way. The engine's main task and the input guardrails stand side by side in a scope. However that ends (a final output, an
error of any of them, a cancel of the caller, a stop of the scope from anywhere), first everything is drained, then the transcript is
completed, then it is saved and the hooks are told: these two however often the caller is cancelled meanwhile. Only then the caller
has control back. All of it has to fit into the run's `Grace`: a session or a hook that hangs has what the drain has left of it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from quiesce import ChildCancelled, Reason, Scope, ScopeClosed, shielded
from quiesce import run as run_program
from quiesce.agents.agent import (
    Agent,
    AgentsException,
    Callbacks,
    RunConfig,
    RunContextWrapper,
    RunErrorDetails,
    RunHooks,
    ToolContext,
    UserError,
    check_max_turns,
    check_run_config,
    check_run_hooks,
    check_session,
)
from quiesce.agents.store import StoreError
from quiesce.kernel.inner import (
    DEFAULT_GRACE,
    GuardedCall,
    Site,
    is_aftermath,
    is_cancel,
    site_of,
    stop_asked_for,
)
from quiesce.models import AssistantMessage, Item, ToolResult
from quiesce.models.inner import as_items

from .engine import DEFAULT_MAX_TURNS, Engine
from .journal import SessionJournal
from .result import RunResult, RunState
from .stopping import children_left
from .streaming import RunResultStreaming

if TYPE_CHECKING:
    from quiesce.agents.store import Session

_DEFAULT_CONFIG = RunConfig()
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Execution:
    """One engine, run to its end."""

    __slots__ = ("_blocked", "_said", "asked", "engine", "late_failure", "reason", "scope")

    always_announces = False  # also a run that came to its end

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.scope: Scope | None = None
        self.asked: Reason | None = (
            None  # a stop that was asked for, perhaps before there was anything to stop
        )
        self.reason: Reason | None = None  # why it was stopped, if it was
        self.late_failure: BaseException | None = None  # of saving its end, or of a hook
        self._said: list[Item] | None = None  # what it has added, with what no guardrail has passed
        self._blocked: list[Item] = []  # the latter

    async def run(self) -> None:
        """Until everything is settled. Raises what failed, or the caller's own cancellation.

        If the scope was stopped by somebody, it returns, and `reason` says why.
        """
        engine = self.engine
        why = stop_asked_for()
        if why is not None:
            raise ScopeClosed(
                f"cannot start a run of {engine.agent.name!r}: what it would be a part of is being stopped ({why}); "
                "one that is part of a clean-up: await shielded(Runner.run, agent, input)"
            )
        call = GuardedCall.begin(
            f"run of {engine.agent.name}",
            engine.drive,
            engine.guards(),
            None,
            engine.config.grace,
            _users_site(),
        )
        self.scope = engine.scope = call.face()
        self._opened(self.scope)
        if self.asked is not None:
            self.scope.cancel(self.asked)
        failure = await call.failure()
        self.reason = call._core.reason
        if failure is not None:
            if self.reason is None:
                self.reason = Reason("cancelled", "the run was cancelled")
            elif self.reason.kind != "error" and _is_of_the_stop(failure):
                failure = None  # somebody has stopped the scope: that is no error of the run's
        stopped = failure is not None or self.reason is not None
        if stopped:
            engine.over = True
            engine.count_cut_request()
            keeps = failure is None or engine.keeps_approvals
            if not keeps:
                engine.pending_approvals = []
            engine.transcript.settle(self.reason, engine.pending_approvals, children_left(self.scope))
            self._said = list(engine.transcript.new)
            self._blocked = engine.transcript.withdraw()
            if self._blocked and not isinstance(failure, AgentsException):
                self._report_blocked()
        if (
            self.always_announces
            or (stopped and engine.journal is not None)
            or engine.callbacks.run is not None
        ):
            await self._announce(failure)
        if failure is not None:
            if isinstance(failure, AgentsException):
                failure.run_data = self.details(failure.run_data)
            try:
                raise failure
            finally:
                del failure

    def _opened(self, scope: Scope) -> None:
        """From here on it can be stopped by its scope."""

    async def _announce(self, failure: BaseException | None) -> None:
        """Save what a stop has added, and tell the hooks; not cut by further cancels."""
        try:
            if self.reason is None:  # it came to its end: nobody waits for a stop
                await shielded(self._save_and_tell)
            else:
                await shielded(self._save_and_tell, within=self._seconds_to_settle(), scope=self.scope)
        except BaseException as error:
            self.late_failure = error.__cause__ if is_cancel(error) else error
            self._note_loss(error)
            if failure is None or is_cancel(error):
                raise  # a cancel is its caller's own, and comes before what has failed
            if isinstance(failure, StoreError) and isinstance(error, StoreError):
                return  # the store has failed, and goes on to: that is told once
            failure.add_note(f"after the run was settled: {error!r}")

    def _seconds_to_settle(self) -> float:
        """How much of the run's grace is left, but for the seconds in which what is cancelled then has to react.

        At least a fifth of the grace: a tool that does not end, and uses all of it up, must not cost the history.
        """
        assert self.scope is not None
        core = self.scope._opened()
        grace, now = core.grace, core.backend.now()
        end = core.ends[-1] if core.started is not None else math.inf
        if math.isinf(end):  # there was nothing to drain
            end = (core.started or now) + grace.total
        total = DEFAULT_GRACE.total if math.isinf(grace.total) else grace.total
        return max(end - now - grace.terminate, total / 5)

    def _note_loss(self, error: BaseException) -> None:
        """What could not be saved or told belongs into the report."""
        loss = error.__cause__ if is_cancel(error) else error
        if isinstance(loss, Exception) and self.scope is not None:
            core = self.scope._opened()
            core.notes = [*core.notes, f"after the run was settled: {loss!r}"]
            core.report()

    async def _save_and_tell(self) -> None:
        engine = self.engine
        try:
            if engine.journal is not None:
                await engine.journal.add(engine.transcript.take_unsaved(), engine.transcript.take_late())
        finally:  # whatever fails, the next one is told
            await self._tell_hooks()

    async def _tell_hooks(self) -> None:
        engine, reason = self.engine, self.reason
        if engine.callbacks.run is None:
            return
        try:
            if reason is not None and reason.kind != "error":
                await engine.callbacks.cancel(engine.context, engine.agent, reason)
        finally:
            assert self.scope is not None
            assert self.scope.report is not None
            await engine.callbacks.settled(engine.context, engine.agent, self.scope.report)

    def _report_blocked(self) -> None:
        """Nothing that is raised could tell what was not kept: the report does."""
        note = not_kept(self._blocked)
        if note is not None and self.scope is not None:
            core = self.scope._opened()
            core.notes = [*core.notes, note]
            core.report()

    def details(self, of_tool: RunErrorDetails | None = None) -> RunErrorDetails:
        """How far it came; `of_tool`: how far a sub-agent came whose error this is."""
        engine, transcript = self.engine, self.engine.transcript
        report = self.scope.report if self.scope is not None else None
        said = self._said if self._said is not None else transcript.new
        blocked = [*(of_tool.blocked if of_tool is not None else ()), *self._blocked]
        return RunErrorDetails(
            transcript.given, said, engine.usage, engine.agent, report, blocked, transcript.new
        )


def not_kept(blocked: Sequence[Item]) -> str | None:
    """What a report says of text that no guardrail has passed; None if there is none."""
    texts = [item.text for item in blocked if isinstance(item, AssistantMessage)]
    texts += [item.output for item in blocked if isinstance(item, ToolResult) and item.outcome == "finished"]
    return f"not kept, since no guardrail has passed it: {' '.join(texts)!r}" if texts else None


def _users_site() -> Site:
    """Where the user's code waits for the run."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_HERE) and frame.f_back is not None:
        frame = frame.f_back
    return site_of(frame)


def _is_of_the_stop(failure: BaseException) -> bool:
    return not is_cancel(failure) and (isinstance(failure, ChildCancelled) or is_aftermath(failure))


def make_engine(
    agent: Agent[Any],
    said: str | Item | Iterable[Item] | RunState,
    context: Any,
    max_turns: int | None,
    hooks: RunHooks[Any] | None,
    config: RunConfig | None,
    journal: SessionJournal | None,
) -> Engine:
    """An engine for what a user has passed; an error that explains, where that makes no sense."""
    if not isinstance(agent, Agent):
        raise TypeError(f"the first argument of a run is an Agent, not {type(agent).__name__}")
    check_max_turns(max_turns)
    check_run_config(config, RunConfig)
    check_run_hooks(hooks)
    if isinstance(said, RunState):
        _refuse_other_than_before(said._engine, context, max_turns, journal)
        return _continued(said, hooks, config)
    wrapper: RunContextWrapper[Any] = RunContextWrapper(context)
    engine = Engine(
        agent,
        as_items(said),
        context=wrapper,
        config=config or _DEFAULT_CONFIG,
        callbacks=Callbacks(hooks),
        max_turns=max_turns,
        journal=journal,
    )
    if isinstance(said, str):
        engine.guardrail_input = said
    return engine


def _refuse_other_than_before(
    engine: Engine, context: Any, max_turns: int | None, journal: SessionJournal | None
) -> None:
    """A run that goes on has what it began with; to pass the same again is no error."""
    other = []
    if context is not None and context is not engine.context.context:
        other.append("context")
    if max_turns not in (DEFAULT_MAX_TURNS, engine.max_turns):
        other.append("max_turns")
    if journal is not None and not journal.tells_the_same(engine.journal):
        other.append("session")
    if other:
        raise UserError(
            f"a RunState goes on with what its run began with, and was given another {' and '.join(other)}: "
            "leave that out here, and pass it to the first run"
        )


def _continued(state: RunState, hooks: RunHooks[Any] | None, config: RunConfig | None) -> Engine:
    engine = state._engine
    if state.interruptions:
        waiting = ", ".join(call.name for call in state.interruptions)
        raise UserError(f"nobody has decided on {waiting} yet: approve() or reject() each of `interruptions`")
    return engine.continued(state._decisions, hooks, config)


async def run_as_tool(
    agent: Agent[Any],
    said: str,
    context: ToolContext[Any],
    max_turns: int | None,
    hooks: RunHooks[Any] | None,
    run_config: RunConfig | None,
) -> RunResult:
    """A run that belongs to a tool call: it stops with that, and its usage is the caller's."""
    engine = make_engine(agent, said, context.context, max_turns, hooks, run_config, None)
    execution = Execution(engine)
    try:
        await execution.run()
    finally:
        context.usage.add(engine.usage)
    return RunResult(engine, execution.scope)


class Runner:
    """Runs agents.

    ```python
    result = await Runner.run(agent, "Hello")

    result = Runner.run_sync(agent, "Hello")                # in a program that is not async

    async with Runner.run_streamed(agent, "Hello") as result:
        async for event in result.stream_events():
            ...
    ```
    """

    @staticmethod
    async def run(
        starting_agent: Agent[Any],
        input: str | Item | Iterable[Item] | RunState,  # noqa: A002 - the name that users know
        *,
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        session: Session | None = None,
    ) -> RunResult:
        """Run until there is a final output; returns when everything that the run has started has ended.

        Raises what a guardrail, a tool or the model has raised, as itself, when all the others have been stopped and drained. If
        you are cancelled, so is the run: it is drained, the session is complete, and then your cancellation goes on.
        """
        check_session(session)
        journal = SessionJournal(session) if session is not None else None
        engine = make_engine(starting_agent, input, context, max_turns, hooks, run_config, journal)
        execution = Execution(engine)
        await execution.run()
        return RunResult(engine, execution.scope)

    @staticmethod
    def run_sync(
        starting_agent: Agent[Any],
        input: str | Item | Iterable[Item] | RunState,  # noqa: A002 - the name that users know
        *,
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        session: Session | None = None,
        backend: Literal["asyncio", "trio"] = "asyncio",
    ) -> RunResult:
        """The same for programs that are not async: runs an event loop of its own, as `quiesce.run` does, until all is settled.

        Ctrl-C stops it gracefully, a second one faster, a third one now. Inside a running event loop it refuses: await `Runner.run` there.
        """

        async def main() -> RunResult:
            return await Runner.run(
                starting_agent,
                input,
                context=context,
                max_turns=max_turns,
                hooks=hooks,
                run_config=run_config,
                session=session,
            )

        check_run_config(run_config, RunConfig)
        grace = run_config.grace if run_config is not None else None
        return run_program(main, backend=backend, grace=grace)

    @staticmethod
    def run_streamed(
        starting_agent: Agent[Any],
        input: str | Item | Iterable[Item] | RunState,  # noqa: A002 - the name that users know
        *,
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        session: Session | None = None,
    ) -> RunResultStreaming:
        """A run whose events are streamed. Nothing happens before the first event is asked for.

        See `RunResultStreaming` for how it is stopped.
        """
        check_session(session)
        journal = SessionJournal(session) if session is not None else None
        engine = make_engine(starting_agent, input, context, max_turns, hooks, run_config, journal)
        return RunResultStreaming(engine, Execution(engine))
