"""What the packages above may use of `quiesce.agents` besides its public words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent import (
        C,
        NeedsApproval,
        OutputType,
        TimedOutCall,
        ToolServer,
        TruncatedOutput,
        call_function,
        failure_text,
        function_name,
        invoke_in_time,
        is_enabled,
        needs_approval,
        output_text,
    )
    from .conversation import close_ignoring_leftovers, has_queued_messages
    from .mcp import MCPServer
    from .run import REJECTED
    from .store import Event

offer()
