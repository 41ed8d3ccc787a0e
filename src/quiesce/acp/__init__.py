"""The Agent Client Protocol: typed messages, and both ends of a connection, which always ends.

The names are those of the package agent-client-protocol (`acp`), so that a program which uses that changes its imports. `quiesce.acp.schema` has
all message types, `quiesce.acp.helpers` the functions that make the common ones.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from ._served import ServedAgent as ServedAgent
    from ._served import serve_agent as serve_agent

__all__ = [
    "AGENT_METHODS",
    "CLIENT_METHODS",
    "PROTOCOL_VERSION",
    "Agent",
    "AgentSideConnection",
    "Client",
    "ClientSideConnection",
    "RequestError",
    "ServedAgent",
    "StreamDirection",
    "StreamEvent",
    "connect_to_agent",
    "default_environment",
    "from_dict",
    "run_agent",
    "serve_agent",
    "spawn_agent_process",
    "spawn_client_process",
    "to_dict",
]
__all__ += _helpers.__all__
__all__ += _schema.__all__

_SERVED = ("ServedAgent", "serve_agent")  # loaded when they are used, with the whole agent runtime


def __getattr__(name: str) -> object:
    if name not in _SERVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}._served"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_SERVED})
