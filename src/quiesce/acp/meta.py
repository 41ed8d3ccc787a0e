"""As `acp.meta` of agent-client-protocol: the names of all methods, and the version of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .protocol import AGENT_METHODS as AGENT_METHODS
    from .protocol import CLIENT_METHODS as CLIENT_METHODS
    from .protocol import PROTOCOL_VERSION as PROTOCOL_VERSION

offer()
