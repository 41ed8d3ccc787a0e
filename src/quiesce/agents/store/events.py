"""The events of a conversation, and how they are written as JSON.

An event of a kind that this version does not know is kept as `UnknownEvent`: what a newer version has written is
neither lost nor guessed at. What keeps events is in `contract`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias, get_args

import msgspec

from quiesce import Reason, StopReport
from quiesce._safe.nested import decoder_of, load_json
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
    """A run began. If no `RunEnded` follows, it still runs, or the program ended in the middle of it.

    `turns`: how many turns of the model were taken before it, by runs that it continues since these were lost.
    """

    run_id: str
    agent: str = ""
    turns: int = 0


class RunEnded(_Event, frozen=True, gc=False, tag="run_ended"):
    """A run ended: how, and why.

    - `status` is `"finished"`, `"paused"`, `"interrupted"`, `"waiting_for_approval"` or `"error"`.
    - `lost`: the program ended in the middle of the run. This was written afterwards, by recovery.
    - `report`: what its stop did, as `StopReport.to_dict()` has it; None if nothing had to be stopped.
    """

    run_id: str
    status: str
    reason: str = ""
    lost: bool = False
    report: dict[str, Any] | None = None

    @property
    def stop_report(self) -> StopReport:
        """What the stop of this run did. If nothing had to be stopped, the report says that it ended."""
        if self.report is not None:
            return StopReport.from_dict(self.report)
        return StopReport(f"run {self.run_id}", None, 0.0, (), 1)


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


class StopRequested(_Event, frozen=True, gc=False, tag="stop_requested"):
    """Somebody who does not hold the lease wants this run to stop; its holder does that when it finds this.

    - `run_id`: this run, and no later one.
    - `pause`: after the current step, instead of now.
    - `grace`: the seconds of each step of the stop, by their names in `Grace`; None for those of the run.
    """

    request_id: str
    run_id: str
    pause: bool = False
    kind: str = "user"
    message: str = ""
    grace: dict[str, float] | None = None

    @property
    def reason(self) -> Reason:
        """Why the run is to stop."""
        return Reason.from_dict({"kind": self.kind, "message": self.message})


class Snapshot(_Event, frozen=True, gc=False, tag="snapshot"):
    """What all events before this one add up to: a reader can begin here.

    It has only the items that the snapshot before it lacks: the transcript is that of the earlier snapshot, cut
    to its first `kept` items, and then `items`. It is written between two runs, when no call and no message waits.
    """

    items: list[Item]
    kept: int = 0
    status: str = ""
    usage: Usage = msgspec.field(default_factory=Usage)


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
    | StopRequested
    | UsageAdded
)
Event: TypeAlias = ItemAdded | MessageQueued | Snapshot | _Plain | UnknownEvent

#: What may be written to a conversation by anyone, whoever runs it.
Posted: TypeAlias = MessageQueued | ApprovalDecided | StopRequested


# Their JSON
#
# An item may be of a kind that only a newer version knows, and msgspec cannot decode a union with "anything
# else" in one step. So the events that contain items are read with the items left as JSON.


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


class _RawSnapshot(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="event", tag="snapshot"
):
    items: msgspec.Raw
    kept: int = 0
    status: str = ""
    usage: Usage = msgspec.field(default_factory=Usage)


_KnownItem: TypeAlias = UserMessage | Note | AssistantMessage | Reasoning | ToolCall | ToolResult
_ITEM_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(_KnownItem))
_encoder = msgspec.json.Encoder()
_decode_items = decoder_of(list[_KnownItem])
_decode_raw_items = decoder_of(list[msgspec.Raw])
_decode = decoder_of(_Plain | _RawItemAdded | _RawMessageQueued | _RawSnapshot)
_TAGS = frozenset(
    str(kind.__struct_config__.tag) for kind in get_args(ItemAdded | MessageQueued | Snapshot | _Plain)
)


def encode_event(event: Event) -> str:
    """Return one event as JSON, without its number and time."""
    try:
        return _encoder.encode(_with_raw_item(event)).decode()
    except UnicodeEncodeError:
        # A lone surrogate, as file names can contain. UTF-8 cannot express it, but a JSON escape can.
        plain = msgspec.to_builtins(event.data if isinstance(event, UnknownEvent) else stamp(event, 0, 0.0))
        if isinstance(event, (ItemAdded, MessageQueued)):
            plain["item"] = _plain_item(event.item)
        elif isinstance(event, Snapshot):
            plain["items"] = [_plain_item(item) for item in event.items]
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
    if type(found) is _RawSnapshot:
        items, kept, status, usage = _read_items(found.items), found.kept, found.status, found.usage
        return Snapshot(items=items, kept=kept, status=status, usage=usage, seq=seq, time=time)
    stamped: Event = stamp(found, seq, time)
    return stamped


def _read_items(raw: msgspec.Raw) -> list[Item]:
    try:
        # In one step: ten times faster than one by one, and only a newer version's items need more.
        known: list[Item] = _decode_items(raw)
    except msgspec.ValidationError:
        return [decode_item(bytes(item)) for item in _decode_raw_items(raw)]
    return known


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


def check_posted(events: Sequence[Event]) -> None:
    """Raise TypeError for anything but what may be posted."""
    check_events(events)
    for event in events:
        if not isinstance(event, (MessageQueued, ApprovalDecided, StopRequested)):
            raise TypeError(
                f"{type(event).__name__} cannot be posted: take the lease of the conversation, and append it there; "
                "only MessageQueued, ApprovalDecided and StopRequested are posted"
            )


def _with_raw_item(event: Event) -> object:
    if isinstance(event, UnknownEvent):
        return event.data
    if isinstance(event, ItemAdded):
        raw = msgspec.Raw(encode_item(event.item))
        return _RawItemAdded(item=raw, run_id=event.run_id, message_id=event.message_id, back=event.back)
    if isinstance(event, MessageQueued):
        return _RawMessageQueued(message_id=event.message_id, item=msgspec.Raw(encode_item(event.item)))
    if isinstance(event, Snapshot):
        items = msgspec.Raw(b"[" + b",".join(map(encode_item, event.items)) + b"]")
        return _RawSnapshot(items=items, kept=event.kept, status=event.status, usage=event.usage)
    # An event that was read from one log and goes to another must not take its number along.
    return stamp(event, 0, 0.0) if event.seq else event


def _decode_lone_surrogates(plain: Any, seq: int, time: float) -> Event:
    """Return what `decode_event` does, for text with lone surrogates, which msgspec refuses to decode."""
    kind = plain.get("event") if isinstance(plain, dict) else None
    if kind not in _TAGS:
        if not isinstance(kind, str):
            raise ValueError("an event is a JSON object whose member 'event' is a string")
        return UnknownEvent(data=plain, seq=seq, time=time)
    if kind == "snapshot":
        usage = msgspec.convert(plain.get("usage", {}), Usage)
        items, kept = [_item_of(item) for item in plain["items"]], msgspec.convert(plain.get("kept", 0), int)
        status = str(plain.get("status", ""))
        return Snapshot(items=items, kept=kept, status=status, usage=usage, seq=seq, time=time)
    if "item" not in plain:
        return stamp(msgspec.convert(plain, _Plain), seq, time)
    item, message_id = _item_of(plain["item"]), str(plain.get("message_id", ""))
    if kind == "message_queued":
        return MessageQueued(item=item, message_id=message_id, seq=seq, time=time)
    run_id, back = str(plain.get("run_id", "")), msgspec.convert(plain.get("back", 0), int)
    return ItemAdded(item=item, run_id=run_id, message_id=message_id, back=back, seq=seq, time=time)


def _plain_item(item: Item) -> Any:
    return item.data if isinstance(item, UnknownItem) else msgspec.to_builtins(item)


def _item_of(plain: Any) -> Item:
    try:
        known: Item = msgspec.convert(plain, _KnownItem)
    except msgspec.ValidationError:
        if (
            not isinstance(plain, dict)
            or not isinstance(plain.get("type"), str)
            or plain["type"] in _ITEM_TAGS
        ):
            raise
        return UnknownItem(plain)
    return known
