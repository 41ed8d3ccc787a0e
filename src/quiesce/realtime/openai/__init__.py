"""The OpenAI Realtime protocol over a WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .websocket_model import OpenAIRealtimeWebSocketModel

offer()
