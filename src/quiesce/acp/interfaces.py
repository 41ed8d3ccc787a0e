"""As `acp.interfaces` of agent-client-protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .protocol import Agent as Agent
    from .protocol import Client as Client

offer()
