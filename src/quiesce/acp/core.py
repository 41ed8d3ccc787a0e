"""As `acp.core` of agent-client-protocol, where older programs import from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .connection import AgentSideConnection as AgentSideConnection
    from .connection import ClientSideConnection as ClientSideConnection
    from .connection import connect_to_agent as connect_to_agent
    from .connection import run_agent as run_agent
    from .exceptions import RequestError as RequestError
    from .protocol import Agent as Agent
    from .protocol import Client as Client

offer()
