"""What a run is given at its start. Nothing of it changes while the run goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from quiesce.agents.agent import Agent, Callbacks, RunConfig, RunContextWrapper, RunHooks
from quiesce.agents.tracing import trace
from quiesce.models import Item

from .events import StreamEvent
from .journal import Journal

DEFAULT_MAX_TURNS = 10
_NO_SPAN: AbstractContextManager[object] = nullcontext()


@dataclass(slots=True)
class RunSettings:
    """The settings of one run, of `Runner`, of an agent that is used as a tool, or of a conversation."""

    context: RunContextWrapper[Any]
    config: RunConfig
    hooks: RunHooks[Any] | None = None
    max_turns: int | None = DEFAULT_MAX_TURNS
    #: Writes down what happens, as it happens.
    journal: Journal | None = None
    #: Takes each event of the run; the run waits for it.
    emit: Callable[[StreamEvent], Awaitable[None]] | None = None
    #: Returns what the user has said since its last call.
    take_messages: Callable[[], list[Item]] | None = None
    #: Calls that still wait for an approval when the run is stopped go on waiting, for the next run.
    keeps_approvals: bool = False

    def callbacks(self, agent: Agent[Any]) -> Callbacks | None:
        """What calls the hooks of the run and those of the agent; None if there are none."""
        return Callbacks(self.hooks) if self.hooks is not None or agent.hooks is not None else None


def span_of(config: RunConfig | None) -> AbstractContextManager[object]:
    """The span of a run; none, unless its configuration names one."""
    if config is None or config.workflow_name is None or config.tracing_disabled:
        return _NO_SPAN
    return trace(config.workflow_name, config.trace_id, config.group_id, config.trace_metadata)
