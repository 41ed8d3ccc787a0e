"""The Agent Client Protocol: typed messages, and both ends of a connection that always settles.

The names are those of the package agent-client-protocol (`acp`), so that a program that uses it only has to
change its imports. `quiesce.acp.schema` has all message types, `quiesce.acp.helpers` the functions that make
the common ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce import __version__ as __version__
from quiesce._extras import require
from quiesce._lazy import offer

require("msgspec", "acp", "quiesce.acp")

if TYPE_CHECKING:
    from .connection import AgentSideConnection as AgentSideConnection
    from .connection import ClientSideConnection as ClientSideConnection
    from .connection import StreamDirection as StreamDirection
    from .connection import StreamEvent as StreamEvent
    from .connection import connect_to_agent as connect_to_agent
    from .connection import default_environment as default_environment
    from .connection import run_agent as run_agent
    from .connection import spawn_agent_process as spawn_agent_process
    from .connection import spawn_client_process as spawn_client_process
    from .exceptions import RequestError as RequestError
    from .helpers import *  # noqa: F403
    from .protocol import AGENT_METHODS as AGENT_METHODS
    from .protocol import CLIENT_METHODS as CLIENT_METHODS
    from .protocol import PROTOCOL_VERSION as PROTOCOL_VERSION
    from .protocol import Agent as Agent
    from .protocol import Client as Client
    from .protocol import from_dict as from_dict
    from .protocol import to_dict as to_dict
    from .schema import *  # noqa: F403
    from .served import ServedAgent as ServedAgent
    from .served import serve_agent as serve_agent

offer()
