"""One run: turns of a model with tools between them, and how it is stopped and settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from quiesce.agents.agent import CallModelData as CallModelData
    from quiesce.agents.agent import ModelInputData as ModelInputData
    from quiesce.agents.agent import RunConfig as RunConfig

    from .agent_run import AgentRun, not_kept
    from .engine import Engine
    from .events import (
        AgentUpdatedStreamEvent,
        DecodedStreamEvent,
        RawResponseEvent,
        RemoteAgent,
        RunItemStreamEvent,
        StreamEvent,
        UnknownStreamEvent,
    )
    from .result import RunResult, RunState, ToolApprovalItem
    from .runner import Runner
    from .settings import DEFAULT_MAX_TURNS, RunSettings, span_of
    from .stopping import (
        Stopping,
        state_lock,
        stop_scope,
        token_or_reason,
        wait_again,
        wait_again_sync,
    )
    from .stream_event_data import decode_stream_event, encode_stream_event
    from .streaming import RunResultStreaming
    from .tool_turn import REJECTED
    from .transcript import CallRecord, Transcript

offer()
