"""openai-agents, where what is stopped has ended: `from quiesce.dropin.agents import Runner`.

Everything is the SDK's, except `Runner` (`run`, `run_sync`, `run_streamed`), the MCP servers in `mcp`, and
the realtime runner and session in `realtime`. Those are subclasses of the SDK's, with the same arguments.

- A result has a `report`: what the end of the run has stopped, and what is left.
- A streamed result can be broken out of, and has `close()`.
- In a sync tool, `quiesce.current_token()` is cancelled when the run is stopped.

The modules whose names begin with an underscore are ours; all other names are left to the SDK.
"""

from __future__ import annotations

from quiesce.dropin.handing import Release, hand_through

hand_through(__name__, "agents", Release("openai-agents", at_least="0.22", below="0.25"))

from ._results import ContainedRunResult as ContainedRunResult
from ._results import ContainedRunResultStreaming as ContainedRunResultStreaming
from ._runner import Runner as Runner
from agents import *  # type: ignore[assignment, unused-ignore]
from ._runner import Runner as Runner
