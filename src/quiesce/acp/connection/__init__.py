"""Both ends of an ACP connection, and functions to open one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent_side import AgentSideConnection
    from .client_side import ClientSideConnection
    from .endpoints import (
        connect_to_agent,
        default_environment,
        run_agent,
        spawn_agent_process,
        spawn_client_process,
    )
    from .observers import StreamDirection, StreamEvent

offer()
