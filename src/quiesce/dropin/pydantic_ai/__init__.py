"""pydantic-ai, where what is stopped has ended: `from quiesce.dropin.pydantic_ai import Agent`.

Everything is the SDK's, except `Agent` and `WrapperAgent` (`run`, `run_sync`, `run_stream`,
`run_stream_sync`, `run_stream_events`, `iter`, `async with agent`), and `MCPToolset` in `mcp`. Those are
subclasses of the SDK's, with the same arguments.

- A result has a `report`: what the end of the run has stopped, and what is left.
- A streamed run has `close()`, for any task.
- In a sync tool, `quiesce.current_token()` is cancelled when the run is stopped.

The modules whose names begin with an underscore are ours; all other names are left to the SDK. asyncio only.
"""

from __future__ import annotations

from quiesce.dropin.handing import Release, hand_through

hand_through(__name__, "pydantic_ai", Release("pydantic-ai-slim", at_least="2.62", below="3"))

from ._agents import Agent as Agent
from ._agents import WrapperAgent as WrapperAgent
from pydantic_ai import *  # type: ignore[assignment, unused-ignore]
from ._agents import Agent as Agent
from ._agents import WrapperAgent as WrapperAgent
