"""The Agent Client Protocol: typed messages, and both ends of a connection, which always ends.

The names are those of the package agent-client-protocol (`acp`), so that a program which uses that changes its imports. `quiesce.acp.schema` has
all message types, `quiesce.acp.helpers` the functions that make the common ones.
"""

from __future__ import annotations

from quiesce._extras import require

require("msgspec", "acp", "quiesce.acp")

from . import helpers as _helpers  # noqa: E402
from . import schema as _schema  # noqa: E402
from ._agent_connection import AgentSideConnection  # noqa: E402
from ._client_connection import ClientSideConnection  # noqa: E402
from ._codec import from_dict, to_dict  # noqa: E402
from ._interfaces import Agent, Client  # noqa: E402
from ._meta import AGENT_METHODS, CLIENT_METHODS, PROTOCOL_VERSION  # noqa: E402
from ._observers import StreamDirection, StreamEvent  # noqa: E402
from ._run import (  # noqa: E402
    connect_to_agent,
    default_environment,
    run_agent,
    spawn_agent_process,
    spawn_client_process,
)
from .exceptions import RequestError  # noqa: E402
from .helpers import *  # noqa: E402, F403
from .schema import *  # noqa: E402, F403

__all__ = [
    "AGENT_METHODS",
    "CLIENT_METHODS",
    "PROTOCOL_VERSION",
    "Agent",
    "AgentSideConnection",
    "Client",
    "ClientSideConnection",
    "RequestError",
    "StreamDirection",
    "StreamEvent",
    "connect_to_agent",
    "default_environment",
    "from_dict",
    "run_agent",
    "spawn_agent_process",
    "spawn_client_process",
    "to_dict",
]
__all__ += _helpers.__all__
__all__ += _schema.__all__
