"""The events of a conversation, how they are written, and the two protocols of what keeps them.

Invariants
- A log is append-only: events are added, never changed. Taking an item back is an event too.
- `append` is all or nothing. What it has acknowledged (it returned) stays as long as the store does: a
  `MemoryStore` as long as the process lives, a `SQLiteStore` through crashes and power cuts.
- Events of a log are numbered 1, 2, 3, ... without gaps. A log knows the number up to which it has read or
  written. If another writer has added events since, `append` raises `StoreConflict` and writes nothing;
  `read` catches up.
- An event of a kind that this version does not know is kept as `UnknownEvent`: what a newer version has
  written is neither lost nor guessed at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, get_args, runtime_checkable

import msgspec

from quiesce._safe.nested import decoder_of, load_json
from quiesce.agents.agent import AgentsException
from quiesce.models import (
    AssistantMessage,
    Item,
    Note,
    Reasoning,
    ToolCall,
    ToolResult,
    UnknownItem,
    Usage,
    UserMessage,
)
from quiesce.models.inner import decode_item, encode_item


class StoreError(AgentsException):
    """A store cannot read or write; the message says which file, and what to do.

    Nothing was half written.
    """


class StoreConflict(StoreError):
    """Another writer has added to this conversation since it was read here."""


class StoreClosed(StoreError):
    """The store, or this log of it, was closed."""


# Events


# Without `gc`: events are not part of reference cycles, and a process may hold hundreds of thousands.
class _Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, tag_field="event"):
    """A log sets `seq` and `time` (seconds since 1970) when it reads, and ignores them when it writes."""

    seq: int = 0
    time: float = 0.0


class ItemAdded(_Event, frozen=True, gc=False, tag="item"):
    """An item was added to the transcript.

    - `message_id`: it is this queued message, which leaves the queue.
    - `back`: it stands before the last `back` items. Text that had to wait for its guardrails is written
      later than the tool calls behind it.
    """

    item: Item
    run_id: str = ""
    message_id: str = ""
    back: int = 0


class ItemPopped(_Event, frozen=True, gc=False, tag="item_popped"):
    """The last item was taken back."""


class ItemsCleared(_Event, frozen=True, gc=False, tag="items_cleared"):
    """All items were taken back."""


class MessageQueued(_Event, frozen=True, gc=False, tag="message_queued"):
    """The user sent a message that is not in the transcript yet: it waits for the next turn of the model."""

    message_id: str
    item: Item


class RunStarted(_Event, frozen=True, gc=False, tag="run_started"):
    """A run began. If no `RunEnded` follows, the program ended in the middle of it."""

    run_id: str
    agent: str = ""


class RunEnded(_Event, frozen=True, gc=False, tag="run_ended"):
    """A run ended: how, and why.

    `status` is `"finished"`, `"paused"`, `"interrupted"`, `"waiting_for_approval"` or `"error"`.
    """

    run_id: str
    status: str
    reason: str = ""


class ToolStarted(_Event, frozen=True, gc=False, tag="tool_started"):
    """A tool is about to start: from now on its outcome is unknown until there is a result."""

    call_id: str
    name: str = ""


class ApprovalRequested(_Event, frozen=True, gc=False, tag="approval_requested"):
    """A tool call waits for a decision."""

    call_id: str


class ApprovalDecided(_Event, frozen=True, gc=False, tag="approval_decided"):
    """A tool call was approved or rejected; `message` is what the model reads about a rejection."""

    call_id: str
    approved: bool
    message: str = ""


class StatusChanged(_Event, frozen=True, gc=False, tag="status"):
    """The conversation now has this status."""

    status: str
    reason: str = ""


class UsageAdded(_Event, frozen=True, gc=False, tag="usage"):
    """Requests to a model have cost this much."""

    usage: Usage
    run_id: str = ""


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a newer version has written; `data` is all of it."""

    data: dict[str, Any]
    seq: int = 0
    time: float = 0.0


_Plain: TypeAlias = (
    ItemPopped
    | ItemsCleared
    | RunStarted
    | RunEnded
    | ToolStarted
    | ApprovalRequested
    | ApprovalDecided
    | StatusChanged
    | UsageAdded
)
Event: TypeAlias = ItemAdded | MessageQueued | _Plain | UnknownEvent


# Their JSON
#
# An item may be of a kind that only a newer version knows, and msgspec cannot decode a union with "anything
# else" in one step. So the two events that contain an item are read with the item left as JSON.


class _RawItemAdded(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="event", tag="item"
):
    item: msgspec.Raw
    run_id: str = ""
    message_id: str = ""
    back: int = 0


class _RawMessageQueued(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="event", tag="message_queued"
):
    message_id: str
    item: msgspec.Raw


_KnownItem: TypeAlias = UserMessage | Note | AssistantMessage | Reasoning | ToolCall | ToolResult
_ITEM_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(_KnownItem))
_encoder = msgspec.json.Encoder()
_decode = decoder_of(_Plain | _RawItemAdded | _RawMessageQueued)
_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(ItemAdded | MessageQueued | _Plain))


def encode_event(event: Event) -> str:
    """Return one event as JSON, without its number and time."""
    try:
        return _encoder.encode(_with_raw_item(event)).decode()
    except UnicodeEncodeError:
        # A lone surrogate, as file names can contain. UTF-8 cannot express it, but a JSON escape can.
        plain = msgspec.to_builtins(event.data if isinstance(event, UnknownEvent) else event)
        if isinstance(event, (ItemAdded, MessageQueued)) and isinstance(event.item, UnknownItem):
            plain["item"] = event.item.data
        return json.dumps(plain)


def decode_event(payload: str | bytes, seq: int = 0, time: float = 0.0) -> Event:
    """Return the event that `payload` contains, with its number and time; ValueError if there is none."""
    try:
        found = _decode(payload)
    except msgspec.ValidationError:
        # A known tag with wrong fields is damage. Only an unknown tag is the event of a newer version.
        plain = load_json(payload)
        if not (isinstance(plain, dict) and isinstance(plain.get("event"), str)) or plain["event"] in _TAGS:
            raise
        return UnknownEvent(data=plain, seq=seq, time=time)
    except msgspec.DecodeError:
        return _decode_lone_surrogates(load_json(payload), seq, time)
    if type(found) is _RawItemAdded:
        item = decode_item(bytes(found.item))
        run_id, message_id, back = found.run_id, found.message_id, found.back
        return ItemAdded(item=item, run_id=run_id, message_id=message_id, back=back, seq=seq, time=time)
    if type(found) is _RawMessageQueued:
        return MessageQueued(
            item=decode_item(bytes(found.item)), message_id=found.message_id, seq=seq, time=time
        )
    stamped: Event = stamp(found, seq, time)
    return stamped


def stamp(event: Event, seq: int, time: float) -> Event:
    """Return the same event with another number and time."""
    if isinstance(event, UnknownEvent):
        return UnknownEvent(data=event.data, seq=seq, time=time)
    return msgspec.structs.replace(event, seq=seq, time=time)


def check_events(events: Sequence[Event]) -> None:
    """Raise TypeError for anything but events: better now than when the log is read."""
    for event in events:
        if not isinstance(event, (_Event, UnknownEvent)):
            raise TypeError(
                f"a log holds events, not {type(event).__name__}: an item goes in as ItemAdded(item=...)"
            )


def _with_raw_item(event: Event) -> object:
    if isinstance(event, UnknownEvent):
        return event.data
    if isinstance(event, ItemAdded):
        raw = msgspec.Raw(encode_item(event.item))
        return _RawItemAdded(item=raw, run_id=event.run_id, message_id=event.message_id, back=event.back)
    if isinstance(event, MessageQueued):
        return _RawMessageQueued(message_id=event.message_id, item=msgspec.Raw(encode_item(event.item)))
    # An event that was read from one log and goes to another must not take its number along.
    return stamp(event, 0, 0.0) if event.seq else event


def _decode_lone_surrogates(plain: Any, seq: int, time: float) -> Event:
    """Return what `decode_event` does, for text with lone surrogates, which msgspec refuses to decode."""
    kind = plain.get("event") if isinstance(plain, dict) else None
    if kind not in _TAGS:
        if not isinstance(kind, str):
            raise ValueError("an event is a JSON object whose member 'event' is a string")
        return UnknownEvent(data=plain, seq=seq, time=time)
    if "item" not in plain:
        return stamp(msgspec.convert(plain, _Plain), seq, time)
    item = plain["item"]
    try:
        known: Item = msgspec.convert(item, _KnownItem)
    except msgspec.ValidationError:
        if not isinstance(item, dict) or not isinstance(item.get("type"), str) or item["type"] in _ITEM_TAGS:
            raise
        known = UnknownItem(item)
    message_id = str(plain.get("message_id", ""))
    if kind == "message_queued":
        return MessageQueued(item=known, message_id=message_id, seq=seq, time=time)
    run_id, back = str(plain.get("run_id", "")), msgspec.convert(plain.get("back", 0), int)
    return ItemAdded(item=known, run_id=run_id, message_id=message_id, back=back, seq=seq, time=time)


# The protocols of what keeps them


@runtime_checkable
class Log(Protocol):
    """The events of one conversation."""

    @property
    def conversation_id(self) -> str:
        """Which conversation."""
        ...

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """Add events, all or none; durable when it returns. Returns the number of the last event.

        `after` is the number of the event that these must follow; by default the last one that this log has
        read or written. Raises `StoreConflict` if other events follow that one already. A caller who is
        cancelled meanwhile gets the cancel when it is known whether they were added.
        """
        ...

    async def read(self, after: int = 0) -> list[Event]:
        """Return all events, or those after number `after`."""
        ...

    def append_sync(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """`append` for plain threads: it blocks."""
        ...

    def read_sync(self, after: int = 0) -> list[Event]:
        """`read` for plain threads: it blocks."""
        ...

    def close(self) -> None:
        """Refuse further writes through this log; the store stays open. Never waits."""
        ...


@runtime_checkable
class Store(Protocol):
    """Keeps the logs of any number of conversations."""

    def open(self, conversation_id: str) -> Log:
        """Return the log of a conversation, new or existing.

        Costs nothing: the first read or append accesses the store.
        """
        ...

    async def ids(self) -> list[str]:
        """Return the ids of the conversations that have at least one event, sorted."""
        ...

    async def delete(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none."""
        ...

    async def close(self) -> None:
        """Finish pending writes, and release everything.

        May be called again, and by several callers at once.
        """
        ...

    def ids_sync(self) -> list[str]:
        """`ids` for plain threads."""
        ...

    def delete_sync(self, conversation_id: str) -> bool:
        """`delete` for plain threads."""
        ...

    def close_sync(self) -> None:
        """`close` for plain threads."""
        ...


def check_id(conversation_id: object) -> str:
    """Return the id of a conversation; ValueError unless it is a str that is not empty."""
    if not isinstance(conversation_id, str) or not conversation_id:
        raise ValueError(f"a conversation's id is a str that is not empty, not {conversation_id!r}")
    return conversation_id


def conflict(conversation_id: str, where: str, expected: int, found: int) -> StoreConflict:
    """Return the error for a log that expected another number of events in its store."""
    what = "deleted" if found < expected else "written to"
    return StoreConflict(
        f"conversation {conversation_id!r} in {where} was {what} by somebody else: it has {found} events, "
        f"and this log knows of {expected}. Nothing was added. "
        "Two writers cannot share a conversation: read it again, or use another id"
    )
