"""As `acp.stdio` of agent-client-protocol, without the streams themselves: `quiesce.wire.stdio()` has those."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .connection import spawn_agent_process as spawn_agent_process
    from .connection import spawn_client_process as spawn_client_process

offer()
