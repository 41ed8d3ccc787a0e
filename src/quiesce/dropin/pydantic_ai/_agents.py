"""Agents whose runs have ended when they are over, and which any task may enter and exit."""

from __future__ import annotations

from pydantic_ai import Agent as _Agent
from pydantic_ai.agent import WrapperAgent as _WrapperAgent
from pydantic_ai.output import OutputDataT
from pydantic_ai.tools import AgentDepsT

from quiesce.dropin.handing import replaces

from ._entered import Entered
from ._methods import (
    contained_iter,
    contained_run,
    contained_run_stream,
    contained_run_stream_events,
    contained_run_sync,
    declared,
)


@replaces(_Agent)
class Agent(Entered, _Agent[AgentDepsT, OutputDataT]):
    """The SDK's `Agent`; what its runs start ends with them, and what entering it starts ends with its exit."""

    _theirs = _Agent

    _contained_run = contained_run(_Agent[AgentDepsT, OutputDataT].run)
    _contained_run_sync = contained_run_sync(
        _Agent[AgentDepsT, OutputDataT].run, _Agent[AgentDepsT, OutputDataT].run_sync
    )
    _contained_run_stream = contained_run_stream(_Agent[AgentDepsT, OutputDataT].run_stream)
    _contained_run_stream_events = contained_run_stream_events(
        _Agent[AgentDepsT, OutputDataT].run_stream_events
    )
    _contained_iter = contained_iter(_Agent[AgentDepsT, OutputDataT].iter)

    @declared(_contained_run)
    def run(self) -> None: ...

    @declared(_contained_run_sync)
    def run_sync(self) -> None: ...

    @declared(_contained_run_stream)
    def run_stream(self) -> None: ...

    @declared(_contained_run_stream_events)
    def run_stream_events(self) -> None: ...

    @declared(_contained_iter)
    def iter(self) -> None: ...


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

    @declared(_contained_run)
    def run(self) -> None: ...

    @declared(_contained_run_sync)
    def run_sync(self) -> None: ...

    @declared(_contained_run_stream)
    def run_stream(self) -> None: ...

    @declared(_contained_run_stream_events)
    def run_stream_events(self) -> None: ...
