"""As `agents.memory` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .store import Session as Session
    from .store import SQLiteSession as SQLiteSession

offer()
