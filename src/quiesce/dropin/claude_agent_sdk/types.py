"""`claude_agent_sdk.types`, for type checkers too."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "claude_agent_sdk.types")

from claude_agent_sdk.types import *
