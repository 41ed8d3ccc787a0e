"""The methods of an agent, made from the SDK's: with its arguments, for type checkers too, overloads and all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from pydantic_ai import AgentRun, AgentRunResult, _utils
from pydantic_ai.agent import AgentRunEvents
from pydantic_ai.result import StreamedRunResult

from quiesce.dropin.driven import drive

from ._runs import (
    ContainedAgentRun,
    ContainedAgentRunEvents,
    ContainedAgentRunResult,
    ContainedRun,
    ContainedStreamedRunResult,
    RunCall,
    drives_itself,
)

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")
F = TypeVar("F")


def declared(method: F) -> Callable[[Callable[..., Any]], F]:
    """`method` in place of what is decorated.

    Type checkers give a name that is only assigned the type that it has in the base class: that of the SDK's.
    """
    return lambda placeholder: method


def contained_run(
    theirs: Callable[P, Coroutine[Any, Any, AgentRunResult[T]]],
) -> Callable[P, Coroutine[Any, Any, ContainedAgentRunResult[T]]]:
    """`run` of an agent class, contained."""

    @wraps(theirs)
    async def run(agent: Any, *args: Any, **options: Any) -> Any:
        return await RunCall(theirs, "Agent.run").result(agent, *args, **named(agent, options))

    return cast(Any, run)


def contained_run_sync(
    run: Callable[P, Coroutine[Any, Any, AgentRunResult[T]]],
    theirs: Callable[P, AgentRunResult[T]],
) -> Callable[P, ContainedAgentRunResult[T]]:
    """`run_sync` of an agent class, contained."""

    @wraps(theirs)
    def run_sync(agent: Any, *args: Any, **options: Any) -> Any:
        _utils.check_no_nested_sync_run()
        call = RunCall(run, "Agent.run_sync")
        return drive(call, agent, *args, **named(agent, options), closes_generators=False)

    return cast(Any, run_sync)


def contained_run_stream(
    theirs: Callable[P, AbstractAsyncContextManager[StreamedRunResult[D, T]]],
) -> Callable[P, ContainedRun[ContainedStreamedRunResult[D, T]]]:
    """`run_stream` of an agent class, contained."""

    @wraps(theirs)
    def run_stream(agent: Any, *args: Any, **options: Any) -> Any:
        cm = theirs(agent, *args, **named(agent, options))
        return ContainedRun(cm, "Agent.run_stream", ContainedStreamedRunResult, has_driver=True)

    return cast(Any, run_stream)


def contained_run_stream_events(
    theirs: Callable[P, AbstractAsyncContextManager[AgentRunEvents[T]]],
) -> Callable[P, ContainedRun[ContainedAgentRunEvents[T]]]:
    """`run_stream_events` of an agent class, contained."""

    @wraps(theirs)
    def run_stream_events(agent: Any, *args: Any, **options: Any) -> Any:
        cm = theirs(agent, *args, **named(agent, options))
        return ContainedRun(cm, "Agent.run_stream_events", ContainedAgentRunEvents)

    return cast(Any, run_stream_events)


def contained_iter(
    theirs: Callable[P, AbstractAsyncContextManager[AgentRun[D, T]]],
) -> Callable[P, ContainedRun[ContainedAgentRun[D, T]]]:
    """`iter` of an agent class, contained, unless it is called by one of the others."""

    @wraps(theirs)
    def iterate(agent: Any, *args: Any, **options: Any) -> Any:
        if drives_itself.get():
            drives_itself.set(False)  # for the tools of the run, and the agents that they run
            return theirs(agent, *args, **{**options, "infer_name": False})
        cm = theirs(agent, *args, **named(agent, options))
        return ContainedRun(cm, "Agent.iter", ContainedAgentRun)

    return cast(Any, iterate)


def named(agent: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options without `infer_name`: an agent without a name gets that of the variable in our caller's caller."""
    if options.pop("infer_name", True) and agent.name is None:
        agent._infer_name(sys._getframe(1))  # whose caller has the variable
    return {**options, "infer_name": False}
