"""`claude_agent_sdk.query`, with a function whose messages can be broken out of."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "claude_agent_sdk.query")

from ._queries import query as query
from claude_agent_sdk.query import *  # type: ignore[assignment, unused-ignore]
from ._queries import query as query
