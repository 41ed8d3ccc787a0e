"""The model behind a server with the OpenAI Realtime protocol, over a WebSocket."""

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
    ListenedModel,
    RealtimeLimits,
    RealtimeModelErrorEvent,
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


# Bytes in the buffer of the system. With a small one, nearly all unsent bytes are ours to count, and a ping
# does not wait behind many others.
_SEND_BUFFER = 256 * 1024
_URL = "wss://api.openai.com/v1/realtime"


class OpenAIRealtimeWebSocketModel(ListenedModel):
    """Connects a session to OpenAI's Realtime API, or to a compatible server (`model_config={"url": ...}`).

    Needs `quiesce[websocket]`.
    """

    def __init__(self, *, ssl: ssl_module.SSLContext | None = None) -> None:
        super().__init__()
        require("websockets", "websocket", "OpenAIRealtimeWebSocketModel")
        # Now: an import in `connect` would block the event loop.
        import_module(".connection", __package__)
        self._ssl = ssl
        self._connection: Connection | None = None
        self._is_connecting = False

    async def _tell(self, event: RealtimeModelEvent) -> None:
        for listener in tuple(self._listeners):
            try:
                await listener.on_event(event)
            except Exception as error:  # the other listeners must still get their events
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
        """Connect, and send the settings of the session."""
        from quiesce.wire import connect_websocket

        from .connection import Connection

        if self._connection is not None or self._is_connecting:
            raise UserError("this model is connected already: it serves one session at a time")
        self._is_connecting = True
        try:
            limits = options.get("limits") or RealtimeLimits()
            settings = options.get("initial_model_settings") or {}
            url = options.get("url") or _url(settings, options.get("call_id"))
            with anyio.move_on_after(limits.connect) as limit:  # a function for the key may be slow, too
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
        """Send something to the server."""
        if self._connection is None:
            raise ConnectionEnded("nothing can be sent: the model is not connected")
        await self._connection.send(event)

    async def close(self) -> None:
        """Close the connection."""
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
        return {}  # another server may need no key
    raise UserError(
        'there is no API key: set OPENAI_API_KEY, or pass model_config={"api_key": ...} '
        '(or "url" and "headers" of another server)'
    )
