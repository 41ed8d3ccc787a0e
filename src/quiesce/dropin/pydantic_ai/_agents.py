"""Agents whose runs have ended when they are over, and which any task may enter and exit."""

from __future__ import annotations

from pydantic_ai import Agent as _Agent
from pydantic_ai.agent import WrapperAgent as _WrapperAgent
from pydantic_ai.output import OutputDataT
from pydantic_ai.tools import AgentDepsT

from quiesce.dropin.handing import replaces

from ._entered import Entered
from ._runs import (
    contained_iter,
    contained_run,
    contained_run_stream,
    contained_run_stream_events,
    contained_run_sync,
)


@replaces(_Agent)
class Agent(Entered, _Agent[AgentDepsT, OutputDataT]):
    """The SDK's `Agent`; what its runs start ends with them, and what entering it starts ends with its exit."""

    # Under a name of their own first: mypy would look for the one signature that the SDK's overloads have.
    _contained_run = contained_run(_Agent[AgentDepsT, OutputDataT].run)
    _contained_run_sync = contained_run_sync(
        _Agent[AgentDepsT, OutputDataT].run, _Agent[AgentDepsT, OutputDataT].run_sync
    )
    _contained_run_stream = contained_run_stream(_Agent[AgentDepsT, OutputDataT].run_stream)
    _contained_run_stream_events = contained_run_stream_events(
        _Agent[AgentDepsT, OutputDataT].run_stream_events
    )
    _contained_iter = contained_iter(_Agent[AgentDepsT, OutputDataT].iter)

    run = _contained_run
    run_sync = _contained_run_sync
    run_stream = _contained_run_stream
    run_stream_events = _contained_run_stream_events
    iter = _contained_iter


@replaces(_WrapperAgent)
class WrapperAgent(_WrapperAgent[AgentDepsT, OutputDataT]):
    """The SDK's `WrapperAgent`: what its runs start ends with them. It is entered by entering what it wraps."""

    _contained_run = contained_run(_WrapperAgent[AgentDepsT, OutputDataT].run)
    _contained_run_sync = contained_run_sync(
        _WrapperAgent[AgentDepsT, OutputDataT].run, _WrapperAgent[AgentDepsT, OutputDataT].run_sync
    )
    _contained_run_stream = contained_run_stream(_WrapperAgent[AgentDepsT, OutputDataT].run_stream)
    _contained_run_stream_events = contained_run_stream_events(
        _WrapperAgent[AgentDepsT, OutputDataT].run_stream_events
    )

    run = _contained_run
    run_sync = _contained_run_sync
    run_stream = _contained_run_stream
    run_stream_events = _contained_run_stream_events
