"""agent-client-protocol, where what is stopped has ended: `from quiesce.dropin.acp import run_agent`.

Everything is the SDK's, except what starts and ends connections and processes: `run_agent`,
`connect_to_agent`, `spawn_agent_process`, `spawn_client_process`, `spawn_stdio_connection`,
`spawn_stdio_transport`, and in `core` the connections themselves.

- `close()` of a connection waits for the handlers that run, and answers their requests. From any task.
- A call that is cancelled is cancelled at the other side, too.
- A connection has a `report`: what its end has stopped, and what is left.

The modules whose names begin with an underscore are ours; all other names are left to the SDK.
"""

from __future__ import annotations

from quiesce.dropin.handing import Release, hand_through

hand_through(__name__, "acp", Release("agent-client-protocol", at_least="0.10", below="0.13"))

from ._processes import spawn_agent_process as spawn_agent_process
from ._processes import spawn_client_process as spawn_client_process
from ._processes import spawn_stdio_connection as spawn_stdio_connection
from ._processes import spawn_stdio_transport as spawn_stdio_transport
from ._sides import connect_to_agent as connect_to_agent
from ._sides import run_agent as run_agent
from acp import *  # type: ignore[assignment, unused-ignore]
from ._processes import spawn_agent_process as spawn_agent_process
from ._processes import spawn_client_process as spawn_client_process
from ._processes import spawn_stdio_connection as spawn_stdio_connection
from ._processes import spawn_stdio_transport as spawn_stdio_transport
from ._sides import connect_to_agent as connect_to_agent
from ._sides import run_agent as run_agent
