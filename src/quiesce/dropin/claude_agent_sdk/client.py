"""`claude_agent_sdk.client`, with a client that any task may close."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "claude_agent_sdk.client")

from ._clients import ClaudeSDKClient as ClaudeSDKClient
from claude_agent_sdk.client import *  # type: ignore[assignment, unused-ignore]
from ._clients import ClaudeSDKClient as ClaudeSDKClient
