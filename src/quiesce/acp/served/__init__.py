"""A quiesce agent served over ACP: sessions, turns, permissions and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .commands import Ran, run_here, run_in_terminal
    from .files import ClientRefused, Files, OutsideOfSession, lines_of
    from .permissions import ask_client, check_approved, note_asked
    from .served_agent import ServedAgent, serve_agent
    from .session import Session, current_session
    from .tool_calls import Arguments, code_block, shown_as

offer()
