"""The model of a server that speaks the OpenAI Realtime wire, over a WebSocket."""

from __future__ import annotations

import inspect
import os
import ssl as ssl_module
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio

from quiesce._extras import require
from quiesce._safe.printed import logger
from quiesce._safe.secrets import without_secrets
from quiesce.agents import UserError
from quiesce.realtime.words import (
    RealtimeLimits,
    RealtimeModel,
    RealtimeModelErrorEvent,
    RealtimeModelListener,
    RealtimePlaybackTracker,
)
from quiesce.wire import ConnectionEnded

from .protocol import DEFAULT_MODEL, Protocol

if TYPE_CHECKING:
    from quiesce.realtime.words import (
        RealtimeModelConfig,
        RealtimeModelEvent,
        RealtimeModelSendEvent,
        RealtimeSessionModelSettings,
    )

    from .connection import Connection


_SEND_BUFFER = (
    256 * 1024
)  # bytes that the system keeps: what is behind them is ours to count, and a ping is not behind much
_URL = "wss://api.openai.com/v1/realtime"


class OpenAIRealtimeWebSocketModel(RealtimeModel):
    """Connects a session to OpenAI's Realtime API, or to a server that speaks the same (`model_config={"url": ...}`). Needs `quiesce[websocket]`."""

    def __init__(self, *, ssl: ssl_module.SSLContext | None = None) -> None:
        require("websockets", "websocket", "OpenAIRealtimeWebSocketModel")
        import_module(".connection", __package__)  # now, not when the event loop has to wait for it
        self._ssl = ssl
        self._listeners: list[RealtimeModelListener] = []
        self._connection: Connection | None = None
        self._is_connecting = False

    def add_listener(self, listener: RealtimeModelListener) -> None:
        """Tell this one too."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        """Tell it nothing more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def _tell(self, event: RealtimeModelEvent) -> None:
        for listener in tuple(self._listeners):
            try:
                await listener.on_event(event)
            except Exception as error:  # one that fails must not cost the others what comes behind
                logger.exception("a listener of a realtime model failed at %s", event.type)
                for other in self._listeners:
                    if other is not listener:
                        await other.on_event(RealtimeModelErrorEvent(error))

    def _tell_ended(self) -> None:
        for listener in tuple(self._listeners):
            try:
                listener.on_connection_ended()
            except Exception:
                logger.exception("a listener of a realtime model failed at the end of the connection")

    async def connect(self, options: RealtimeModelConfig) -> None:
        """Connect, and say what the session is to be like."""
        from quiesce.wire import connect_websocket

        from .connection import Connection

        if self._connection is not None or self._is_connecting:
            raise UserError("this model is connected already: it serves one session at a time")
        self._is_connecting = True
        try:
            limits = options.get("limits") or RealtimeLimits()
            settings = options.get("initial_model_settings") or {}
            url = options.get("url") or _url(settings, options.get("call_id"))
            with anyio.move_on_after(limits.connect) as limit:  # the key too may take its time
                headers = options.get("headers")
                if headers is None:
                    headers = await _headers(options)
                transport = connect_websocket(
                    url,
                    headers=headers,
                    ssl=self._ssl if url.startswith("wss:") else None,
                    within=limits.connect,
                    send_buffer=_SEND_BUFFER,
                )
                tracker = options.get("playback_tracker") or RealtimePlaybackTracker()
                connection = Connection(Protocol(tracker), limits, self._tell, self._tell_ended)
                await connection.open(transport, settings, is_joined=options.get("call_id") is not None)
                self._connection = connection
            if limit.cancelled_caught:
                raise ConnectionError(
                    f"cannot connect to {without_secrets(url)}: it took longer than {limits.connect:g} s"
                )
        finally:
            self._is_connecting = False

    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        """Tell the server."""
        if self._connection is None:
            raise ConnectionEnded("nothing can be sent: the model is not connected")
        await self._connection.send(event)

    async def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _url(settings: RealtimeSessionModelSettings, call_id: str | None) -> str:
    if call_id is not None:
        return f"{_URL}?call_id={quote(call_id)}"
    return f"{_URL}?model={quote(settings.get('model_name') or DEFAULT_MODEL)}"


async def _headers(options: RealtimeModelConfig) -> dict[str, str]:
    given = options.get("api_key")
    key = given() if callable(given) else given
    if inspect.isawaitable(key):
        key = await key
    key = key or os.environ.get("OPENAI_API_KEY")
    if key:
        return {"Authorization": f"Bearer {key}"}
    if "url" in options:
        return {}  # a server of one's own may want none
    raise UserError(
        'there is no API key: set OPENAI_API_KEY, or pass model_config={"api_key": ...} (or "url" and "headers" of another server)'
    )
