"""Items of the conversation, from the protocol's form to that of the history.

The server reports an item several times, more or less completely. `Items` keeps what only one of those events
has (which item comes before it, the output of a call), for the last items only: a session may last for hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec

from quiesce.realtime.words import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    InputImage,
    InputText,
    ItemStatus,
    RealtimeItem,
    RealtimeToolCallItem,
    SystemMessageItem,
    UserMessageItem,
    forget_oldest,
)

if TYPE_CHECKING:
    from .server_events import Item, Part

PLACES = 1024
"""For how many items the one before is remembered, and for how many calls their final status."""

OPEN_CALLS = 256
ANSWERED_CALLS = 16
"""How many calls are remembered as a whole: without an output, and with one, which may be long."""


class Items:
    """What is known about the items of one connection."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}  # from an item to the one before it
        # By call_id: calls without an output, the last calls with one, and the final status of more of those.
        self._open: dict[str, RealtimeToolCallItem] = {}
        self._answered: dict[str, RealtimeToolCallItem] = {}
        self._ended: dict[str, ItemStatus] = {}

    def before(self, item_id: str | None) -> str | None:
        """Return the item before this one."""
        return self._before.get(item_id) if item_id is not None else None

    def follows(self, item_id: str | None, previous_item_id: str | None) -> None:
        """Remember which item is before this one."""
        if item_id is not None and previous_item_id:
            self._before[item_id] = previous_item_id
            forget_oldest(self._before, PLACES)

    def delete(self, item_id: str) -> None:
        """Forget a deleted item."""
        self._before.pop(item_id, None)
        for calls in (self._open, self._answered):
            for call_id in [call_id for call_id, call in calls.items() if call.item_id == item_id]:
                del calls[call_id]

    def as_history(self, item: Item, status: ItemStatus) -> RealtimeItem | None:
        """Return the item as in the history; None if the history has no such kind.

        `status` is used if the item has none of its own.
        """
        if item.type == "message" and item.id is not None:
            return self._message(item, item.id, _STATUSES.get(item.status, status))
        if item.type == "function_call" and item.call_id is not None:
            return self._call(item, item.call_id)
        if item.type == "function_call_output" and item.call_id is not None and item.output is not None:
            return self.answered(item.call_id, item.output)
        return None

    def _message(self, item: Item, item_id: str, status: ItemStatus) -> RealtimeItem | None:
        before = self.before(item_id)
        parts = item.content or []
        if item.role == "assistant":
            speech = [part for part in map(_assistant_part, parts) if part is not None]
            return AssistantMessageItem(item_id, speech, status, before)
        content = [part for part in map(_user_part, parts) if part is not None]
        if item.role == "user":
            return UserMessageItem(item_id, content, before)
        if item.role == "system":
            return SystemMessageItem(
                item_id, [part for part in content if isinstance(part, InputText)], before
            )
        return None

    def _call(self, item: Item, call_id: str) -> RealtimeToolCallItem:
        known = self._answered.get(call_id) or self._open.get(call_id)
        # In the history a call is in progress until it has its output. For the server it is complete before
        # that.
        status: ItemStatus = "incomplete" if item.status == "incomplete" else "in_progress"
        call = RealtimeToolCallItem(
            item.id or call_id,
            call_id,
            item.name or (known.name if known is not None else ""),
            item.arguments or (known.arguments if known is not None else ""),
            self._ended.get(call_id, status),
            known.output if known is not None else None,
            self.before(item.id),
        )
        if call_id in self._answered:
            self._answered[call_id] = call
        elif call_id not in self._ended:
            self._open[call_id] = call
            forget_oldest(self._open, OPEN_CALLS)
        return call

    def answered(
        self,
        call_id: str,
        output: str,
        status: ItemStatus = "completed",
        call: RealtimeToolCallItem | None = None,
    ) -> RealtimeToolCallItem | None:
        """Note the output of a call, and return the call; None if it is unknown and `call` was not given."""
        # The first output counts; the server may repeat the item in later events.
        if call_id in self._answered:
            return self._answered[call_id]
        known = self._open.pop(call_id, None) or call
        if known is None:
            return None
        answered = self._answered[call_id] = msgspec.structs.replace(known, output=output, status=status)
        self._ended[call_id] = status
        forget_oldest(self._answered, ANSWERED_CALLS)
        forget_oldest(self._ended, PLACES)
        return answered


_STATUSES: dict[str | None, ItemStatus] = {each: each for each in get_args(ItemStatus)}


def _assistant_part(part: Part) -> AssistantText | AssistantAudio | None:
    if part.type in ("output_audio", "audio"):
        return AssistantAudio(part.audio, part.transcript)
    return AssistantText(part.text) if part.type in ("output_text", "text") else None


def _user_part(part: Part) -> InputText | InputAudio | InputImage | None:
    if part.type == "input_audio":
        return InputAudio(part.audio, part.transcript)
    if part.type == "input_image":
        return InputImage(part.image_url, part.detail)
    return InputText(part.text) if part.type in ("input_text", "text") else None
