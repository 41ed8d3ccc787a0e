"""One CLI from its start to its end: control requests, messages by turn, `query` and the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .client import ClaudeSDKClient
    from .queries import Query, query

offer()
