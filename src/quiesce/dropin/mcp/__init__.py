"""The MCP SDK, whose connections any task may close: `from quiesce.dropin.mcp import ClientSession, stdio_client`.

Everything is the SDK's, except what connects a client: the transports (`stdio_client`, and in `client` those
over HTTP), `ClientSession`, `ClientSessionGroup`, and `Client` where the SDK has it. All have the same
arguments as the SDK's, and are entered in the same way. They may be entered in one task and exited in another,
in any order; each has `close()`, which waits until everything of it has ended, and a `report` of that.

Servers are the SDK's own.
"""

from __future__ import annotations

from quiesce.dropin.handing import Release, hand_through

hand_through(__name__, "mcp", Release("mcp", at_least="1.24", below="3"))

from ._sessions import ClientSession as ClientSession
from ._groups import ClientSessionGroup as ClientSessionGroup
from ._transports import stdio_client as stdio_client

try:
    from ._clients import Client as Client
except ImportError:  # mcp 1.x has none
    pass
from mcp import *  # type: ignore[assignment, unused-ignore]
from ._sessions import ClientSession as ClientSession
from ._groups import ClientSessionGroup as ClientSessionGroup
from ._transports import stdio_client as stdio_client

try:
    from ._clients import Client as Client
except ImportError:
    pass
