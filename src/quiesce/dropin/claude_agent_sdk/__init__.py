"""claude-agent-sdk, where what is stopped has ended: `from quiesce.dropin.claude_agent_sdk import query`.

Everything is the SDK's, except `query`, `ClaudeSDKClient` and `create_sdk_mcp_server`, which have the same arguments.

- The CLI ends with its whole process tree, and so do the hooks, permission callbacks and tools that it has
  called in this process: however the query or the client ends, and if this program is killed.
- A stop in the middle of a turn stops the agent at once. The SDK lets it work on for five seconds.
- `query()` can be broken out of. What it returns has `close()` and a `report`, and so has a client.

For asyncio. The modules whose names begin with an underscore are ours; all other names are left to the SDK.
"""

from __future__ import annotations

from quiesce.dropin.handing import Release, hand_through

hand_through(__name__, "claude_agent_sdk", Release("claude-agent-sdk", at_least="0.2.111", below="0.3"))

from ._callbacks import create_sdk_mcp_server as create_sdk_mcp_server
from ._queries import MessageStream as MessageStream
from .client import ClaudeSDKClient as ClaudeSDKClient
from .query import query as query  # now, so that a later import of the module does not take this name
from claude_agent_sdk import *  # type: ignore[assignment, unused-ignore]
from ._callbacks import create_sdk_mcp_server as create_sdk_mcp_server
from .client import ClaudeSDKClient as ClaudeSDKClient
from .query import query as query
