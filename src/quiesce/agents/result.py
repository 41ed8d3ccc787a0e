"""As `agents.result` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .run import RunResult as RunResult
    from .run import RunResultStreaming as RunResultStreaming

offer()
