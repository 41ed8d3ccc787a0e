"""What happened in a conversation, one event after the other, and the two protocols that keep it.

Invariants
- A log is append-only: what was said or done is added to, never changed. To take an item back is an event too.
- `append` is all or nothing, and what it has acknowledged (it returned) is there for good, as far as the store reaches: a
  `MemoryStore` as long as the process lives, a `SQLiteStore` through crashes and power cuts.
- Events of a log are numbered 1, 2, 3, ... without gaps. A log knows the number up to which it has read or written; if somebody
  else has written since, `append` refuses with `StoreConflict` and writes nothing. `read` catches up.
- An event of a kind that this version does not know is kept as `UnknownEvent`: nothing that a newer version has written is lost,
  and nothing of it is guessed at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

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
    """A store cannot do what it was asked to; the message says which file, and what to do. Nothing was half written."""


class StoreConflict(StoreError):
    """Somebody else has written to this conversation since it was read here."""


class StoreClosed(StoreError):
    """The store, or this log of it, was closed."""


# Events


class _Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, tag_field="event"):
    """`seq` and `time` (seconds since 1970) are the log's: it sets them in what it reads, and ignores them in what it is given."""

    seq: int = 0
    time: float = 0.0


class ItemAdded(_Event, frozen=True, gc=False, tag="item"):
    """An item came to the transcript. `message_id`: it is this queued message, which so leaves the queue.

    `back`: it stands before the last so many items. Text that waited for its guardrails comes later than the tool calls behind it.
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
    """The user said something which is not in the transcript yet, because a run was under way."""

    message_id: str
    item: Item


class RunStarted(_Event, frozen=True, gc=False, tag="run_started"):
    """A run began. If no `RunEnded` follows, the program ended in the middle of it."""

    run_id: str
    agent: str = ""


class RunEnded(_Event, frozen=True, gc=False, tag="run_ended"):
    """A run is over: how (`"finished"`, `"paused"`, `"interrupted"`, `"waiting_for_approval"`, `"error"`), and why."""

    run_id: str
    status: str
    reason: str = ""


class ToolStarted(_Event, frozen=True, gc=False, tag="tool_started"):
    """A tool is about to start: from here on its outcome is unknown until there is a result."""

    call_id: str
    name: str = ""


class ApprovalRequested(_Event, frozen=True, gc=False, tag="approval_requested"):
    """A tool call waits for somebody's decision."""

    call_id: str


class ApprovalDecided(_Event, frozen=True, gc=False, tag="approval_decided"):
    """Somebody has decided."""

    call_id: str
    approved: bool
    message: str = ""


class StatusChanged(_Event, frozen=True, gc=False, tag="status"):
    """The conversation is now in this state."""

    status: str
    reason: str = ""


class UsageAdded(_Event, frozen=True, gc=False, tag="usage"):
    """A request to a model has cost this."""

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


# What is written of them


class _ItemOnTheWire(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="event", tag="item"
):
    # An item may be of a kind that only a newer version knows, and a union with that cannot be decoded in one step.
    item: msgspec.Raw
    run_id: str = ""
    message_id: str = ""
    back: int = 0


class _QueuedOnTheWire(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="event", tag="message_queued"
):
    message_id: str
    item: msgspec.Raw


_ITEM_KINDS = (UserMessage, Note, AssistantMessage, Reasoning, ToolCall, ToolResult)
_KnownItem: TypeAlias = UserMessage | Note | AssistantMessage | Reasoning | ToolCall | ToolResult
_ITEM_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in _ITEM_KINDS)
_encoder = msgspec.json.Encoder()
_decode = decoder_of(_Plain | _ItemOnTheWire | _QueuedOnTheWire)
_TAGS = frozenset(
    str(kind.__struct_config__.tag)
    for kind in (
        *(ItemAdded, ItemPopped, ItemsCleared, MessageQueued, RunStarted, RunEnded, ToolStarted),
        *(ApprovalRequested, ApprovalDecided, StatusChanged, UsageAdded),
    )
)


def encode_event(event: Event) -> str:
    """One event as JSON, without its number and time."""
    try:
        return _encoder.encode(_on_the_wire(event)).decode()
    except UnicodeEncodeError:
        # Half a character, as file names can have. UTF-8 has no place for it, but an escape of JSON has.
        plain = msgspec.to_builtins(event.data if isinstance(event, UnknownEvent) else event)
        if isinstance(event, (ItemAdded, MessageQueued)) and isinstance(event.item, UnknownItem):
            plain["item"] = event.item.data
        return json.dumps(plain)


def decode_event(payload: str | bytes, seq: int = 0, time: float = 0.0) -> Event:
    """One event from JSON, with its number and time; ValueError if it is none."""
    try:
        found = _decode(payload)
    except msgspec.ValidationError:
        plain = load_json(payload)
        if not (isinstance(plain, dict) and isinstance(plain.get("event"), str)) or plain["event"] in _TAGS:
            raise
        return UnknownEvent(data=plain, seq=seq, time=time)
    except msgspec.DecodeError:
        return _decode_with_halves(load_json(payload), seq, time)
    if type(found) is _ItemOnTheWire:
        item = decode_item(bytes(found.item))
        run_id, message_id, back = found.run_id, found.message_id, found.back
        return ItemAdded(item=item, run_id=run_id, message_id=message_id, back=back, seq=seq, time=time)
    if type(found) is _QueuedOnTheWire:
        return MessageQueued(
            item=decode_item(bytes(found.item)), message_id=found.message_id, seq=seq, time=time
        )
    stamped: Event = stamp(found, seq, time)
    return stamped


def stamp(event: Event, seq: int, time: float) -> Event:
    """The same event with its number and time."""
    if isinstance(event, UnknownEvent):
        return UnknownEvent(data=event.data, seq=seq, time=time)
    return msgspec.structs.replace(event, seq=seq, time=time)


def check_events(events: Sequence[Event]) -> None:
    """TypeError for what is no event: better here than when somebody wants to read it."""
    for event in events:
        if not isinstance(event, _EVENT_TYPES):
            raise TypeError(
                f"a log holds events, not {type(event).__name__}: an item goes in as ItemAdded(item=...)"
            )


def _on_the_wire(event: Event) -> object:
    if isinstance(event, UnknownEvent):
        return event.data
    if isinstance(event, ItemAdded):
        raw = msgspec.Raw(encode_item(event.item))
        return _ItemOnTheWire(item=raw, run_id=event.run_id, message_id=event.message_id, back=event.back)
    if isinstance(event, MessageQueued):
        return _QueuedOnTheWire(message_id=event.message_id, item=msgspec.Raw(encode_item(event.item)))
    return stamp(event, 0, 0.0) if event.seq else event


def _decode_with_halves(plain: Any, seq: int, time: float) -> Event:
    """The slow way, for text that is not quite Unicode."""
    kind = plain.get("event") if isinstance(plain, dict) else None
    if kind not in _TAGS:
        if not isinstance(kind, str):
            raise ValueError("an event is a JSON object with a text as its member 'event'")
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


_EVENT_TYPES = (_Event, UnknownEvent)


# What keeps them


@runtime_checkable
class Log(Protocol):
    """The events of one conversation."""

    @property
    def conversation_id(self) -> str:
        """Which conversation."""
        ...

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """Add events, all or none; durable when it returns. Returns the number of the last event.

        `after` is the number of the event that these must follow; the last one that this log has read or written, unless given.
        If others follow it already: `StoreConflict`. A caller who is cancelled meanwhile gets the cancel when it is known that all
        are there, or none.
        """
        ...

    async def read(self, after: int = 0) -> list[Event]:
        """The events, or those after the one with this number."""
        ...

    def append_sync(self, events: Sequence[Event], *, after: int | None = None) -> int:
        """`append` for plain threads: it blocks."""
        ...

    def read_sync(self, after: int = 0) -> list[Event]:
        """`read` for plain threads: it blocks."""
        ...

    def close(self) -> None:
        """Write no more through this log; the store stays open. Never waits."""
        ...


@runtime_checkable
class Store(Protocol):
    """Keeps the logs of any number of conversations."""

    def open(self, conversation_id: str) -> Log:
        """The log of a conversation, new or not. Costs nothing: the store is touched by the first read or append."""
        ...

    async def ids(self) -> list[str]:
        """The conversations that have at least one event, in order of their ids."""
        ...

    async def delete(self, conversation_id: str) -> bool:
        """Remove a conversation with all its events; False if there was none."""
        ...

    async def close(self) -> None:
        """Finish what is being written, and let go of everything. May be called again, and by several at once."""
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
    """A conversation's id is a str with something in it."""
    if not isinstance(conversation_id, str) or not conversation_id:
        raise ValueError(f"a conversation's id is a str that is not empty, not {conversation_id!r}")
    return conversation_id


def conflict(conversation_id: str, where: str, expected: int, found: int) -> StoreConflict:
    """The error, in words."""
    what = "deleted" if found < expected else "written to"
    return StoreConflict(
        f"conversation {conversation_id!r} in {where} was {what} by somebody else: it has {found} events, and this log knows of "
        f"{expected}. Nothing was added. Two writers cannot share a conversation: read it again, or use another id"
    )
