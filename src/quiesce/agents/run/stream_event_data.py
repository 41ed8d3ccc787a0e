"""The events of a streamed run as JSON, and back.

What is sent is what was in the stream: a piece of the answer, an item, the name of an agent. Nothing else of an agent
(its instructions, its tools, its model) is sent.

An event, an event of a model or an item that only a newer version knows is kept: see `UnknownStreamEvent` and
`UnknownItem`. One of a kind that is known, but with wrong fields, is damage, and raises ValueError.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias, cast

import msgspec

from quiesce._safe.nested import decode_json, load_json
from quiesce.models import UnknownItem
from quiesce.models.inner import convert_item, model_event_data, model_event_of

from .events import (
    AgentUpdatedStreamEvent,
    DecodedStreamEvent,
    ItemEventName,
    RawResponseEvent,
    RemoteAgent,
    RunItemStreamEvent,
    StreamEvent,
    UnknownStreamEvent,
)

_Data: TypeAlias = dict[str, Any]
_encode = msgspec.json.Encoder().encode


def encode_stream_event(event: StreamEvent | DecodedStreamEvent) -> str:
    """Return an event of a streamed run as JSON, in one line. Of an agent, it has the name alone.

    ```python
    async for event in result.stream_events():
        await websocket.send_text(encode_stream_event(event))
    ```
    """
    data = _data_of(event)
    try:
        return _encode(data).decode()
    except UnicodeEncodeError:
        # A lone surrogate, as file names can contain. UTF-8 cannot express it, but a JSON escape can.
        return json.dumps(msgspec.to_builtins(data))


def decode_stream_event(text: str | bytes) -> DecodedStreamEvent:
    """Return the event that `text` holds as JSON.

    It equals the event that was encoded, except that the `new_agent` of an `AgentUpdatedStreamEvent` is a
    `RemoteAgent`, which has the agent's name. An event that only a newer version knows is an `UnknownStreamEvent`.
    Raises ValueError if the text does not hold an event.
    """
    try:
        return _event_of(_load(text))
    except ValueError as error:
        raise ValueError(
            f"this is not a stream event: {error}. Pass one text that encode_stream_event() returned"
        ) from error


def _load(text: str | bytes) -> Any:
    try:
        return decode_json(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return load_json(text)  # which accepts lone surrogates


def _data_of(event: StreamEvent | DecodedStreamEvent) -> _Data:
    if isinstance(event, RawResponseEvent):
        return {"type": event.type, "data": model_event_data(event.data)}
    if isinstance(event, RunItemStreamEvent):
        item = event.item
        return {
            "type": event.type,
            "name": event.name,
            "item": item.data if isinstance(item, UnknownItem) else item,
        }
    if isinstance(event, AgentUpdatedStreamEvent):
        return {"type": event.type, "new_agent": {"name": event.new_agent.name}}
    if isinstance(event, UnknownStreamEvent):
        return event.data
    raise TypeError(f"a streamed run has events, and {type(event).__name__} is not one of them")


def _event_of(data: Any) -> DecodedStreamEvent:
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str):
        raise ValueError("an event is a JSON object whose member 'type' is a string")
    if kind == RawResponseEvent.type:
        said = model_event_of(data.get("data"))
        return UnknownStreamEvent(data) if said is None else RawResponseEvent(said)
    if kind == RunItemStreamEvent.type:
        # A name that only a newer version knows is kept, as its item is.
        name = cast("ItemEventName", _text(data, "name"))
        return RunItemStreamEvent(name, convert_item(data.get("item")))
    if kind == AgentUpdatedStreamEvent.type:
        agent = data.get("new_agent")
        if not isinstance(agent, dict):
            raise ValueError(f"the member 'new_agent' of an event {kind!r} must be an object")
        return AgentUpdatedStreamEvent(RemoteAgent(_text(agent, "name")))
    return UnknownStreamEvent(data)


def _text(data: _Data, name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise ValueError(f"the member {name!r} must be a string")
    return value
