"""`acp.core`, with connections whose `close()` waits for what they have started."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "acp.core")

from ._connection import Connection as Connection
from ._sides import AgentSideConnection as AgentSideConnection
from ._sides import ClientSideConnection as ClientSideConnection
from ._sides import connect_to_agent as connect_to_agent
from ._sides import run_agent as run_agent
from acp.core import *  # type: ignore[assignment, unused-ignore]
from ._connection import Connection as Connection
from ._sides import AgentSideConnection as AgentSideConnection
from ._sides import ClientSideConnection as ClientSideConnection
from ._sides import connect_to_agent as connect_to_agent
from ._sides import run_agent as run_agent
