"""One run: turns of a model with tools between them, and how it is stopped and settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .engine import DEFAULT_MAX_TURNS, Engine
    from .events import AgentUpdatedStreamEvent, RawResponseEvent, RunItemStreamEvent, StreamEvent
    from .result import RunResult, RunState
    from .runner import Execution, Runner, make_engine, not_kept
    from .stopping import (
        Stopping,
        children_left,
        is_dead,
        is_gone,
        leftovers_of,
        runs_inside,
        state_lock,
        stop_scope,
        wait_again,
        wait_again_sync,
    )
    from .streaming import RunResultStreaming
    from .tool_turn import REJECTED
    from .transcript import CallRecord, Transcript

offer()
