"""`Runner`: starts runs for what users pass, and checks that first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from quiesce import run as run_program
from quiesce.agents.agent import (
    Agent,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    ToolContext,
    UserError,
    check_max_turns,
    check_run_config,
    check_run_hooks,
    check_session,
)
from quiesce.models.inner import InputItem, as_items

from .agent_run import AgentRun
from .engine import Engine
from .events import StreamEvent
from .journal import SessionJournal
from .result import RunResult, RunState
from .settings import DEFAULT_MAX_TURNS, RunSettings, span_of
from .streaming import Handover, RunResultStreaming
from .transcript import Transcript

if TYPE_CHECKING:
    from quiesce.agents.store import Session

_DEFAULT_CONFIG = RunConfig()


def make_run(
    agent: Agent[Any],
    said: str | InputItem | Iterable[InputItem] | RunState,
    context: Any,
    max_turns: int | None,
    hooks: RunHooks[Any] | None,
    config: RunConfig | None,
    journal: SessionJournal | None,
    emit: Callable[[StreamEvent], Awaitable[None]] | None = None,
) -> AgentRun:
    """A run for what a user has passed, or an error that explains what is wrong with it."""
    if not isinstance(agent, Agent):
        raise TypeError(f"the first argument of a run is an Agent, not {type(agent).__name__}")
    check_max_turns(max_turns)
    check_run_config(config, RunConfig)
    check_run_hooks(hooks)
    if isinstance(said, RunState):
        _refuse_other_than_before(said._engine, context, max_turns, journal)
        return AgentRun(_continued(said, hooks, config, emit))
    settings = RunSettings(
        RunContextWrapper(context), config or _DEFAULT_CONFIG, hooks, max_turns, journal, emit
    )
    items = as_items(said)
    to_check = said if isinstance(said, str) else items
    return AgentRun(Engine(agent, settings, Transcript([*items]), input=items, to_check=to_check))


def _refuse_other_than_before(
    engine: Engine, context: Any, max_turns: int | None, journal: SessionJournal | None
) -> None:
    """A run that goes on keeps what it began with; passing the same again is not an error."""
    before, other = engine.settings, []
    if context is not None and context is not before.context.context:
        other.append("context")
    if max_turns not in (DEFAULT_MAX_TURNS, before.max_turns):
        other.append("max_turns")
    if journal is not None and not journal.tells_the_same(before.journal):
        other.append("session")
    if other:
        raise UserError(
            f"a RunState goes on with what its run began with, and was given another {' and '.join(other)}: "
            "leave that out here, and pass it to the first run"
        )


def _continued(
    state: RunState,
    hooks: RunHooks[Any] | None,
    config: RunConfig | None,
    emit: Callable[[StreamEvent], Awaitable[None]] | None,
) -> Engine:
    if state.interruptions:
        waiting = ", ".join(call.name for call in state.interruptions)
        raise UserError(f"nobody has decided on {waiting} yet: approve() or reject() each of `interruptions`")
    before = state._engine.settings
    settings = RunSettings(
        before.context,
        config or before.config,
        hooks if hooks is not None else before.hooks,
        before.max_turns,
        before.journal,
        emit,
    )
    return state._engine.continued(settings, state._decisions, state._always)


async def run_as_tool(
    agent: Agent[Any],
    said: str,
    context: ToolContext[Any],
    max_turns: int | None,
    hooks: RunHooks[Any] | None,
    run_config: RunConfig | None,
    emit: Callable[[StreamEvent], Awaitable[None]] | None,
) -> RunResult:
    """A run that belongs to a tool call: it stops when that does, and its usage counts as the caller's."""
    run = make_run(agent, said, context.context, max_turns, hooks, run_config, None, emit)
    try:
        with span_of(run_config):
            await run.run()
    finally:
        context.usage.add(run.engine.requests.usage)
    return RunResult(run)


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
        input: str | InputItem | Iterable[InputItem] | RunState,  # noqa: A002 - the name that users know
        *,
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        session: Session | None = None,
    ) -> RunResult:
        """Run until there is a final output; returns when everything that the run has started has ended.

        Raises an error of a guardrail, a tool or the model as it is, after everything else was stopped and
        drained. If you are cancelled, so is the run: it is drained, the session is completed, and then your
        cancellation goes on.
        """
        check_session(session)
        journal = SessionJournal(session) if session is not None else None
        run = make_run(starting_agent, input, context, max_turns, hooks, run_config, journal)
        if run_config is None:  # as most often: nothing is spent on spans
            await run.run()
        else:
            with span_of(run_config):
                await run.run()
        return RunResult(run)

    @staticmethod
    def run_sync(
        starting_agent: Agent[Any],
        input: str | InputItem | Iterable[InputItem] | RunState,  # noqa: A002 - the name that users know
        *,
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        session: Session | None = None,
        backend: Literal["asyncio", "trio"] = "asyncio",
    ) -> RunResult:
        """The same for programs that are not async: runs an event loop of its own, as `quiesce.run` does.

        Returns when everything is settled. Ctrl-C stops it gracefully, a second one faster, a third one at
        once. Inside a running event loop it raises: await `Runner.run` there.
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
        input: str | InputItem | Iterable[InputItem] | RunState,  # noqa: A002 - the name that users know
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
        events = Handover()
        run = make_run(starting_agent, input, context, max_turns, hooks, run_config, journal, events.give)
        return RunResultStreaming(run, events)
