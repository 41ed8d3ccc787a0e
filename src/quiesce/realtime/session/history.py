"""The conversation so far, as the server reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from quiesce.realtime.words import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    RealtimeToolCallItem,
    UserMessageItem,
)

if TYPE_CHECKING:
    from collections.abc import Container

    from quiesce.realtime.words import ItemStatus, RealtimeItem


_ENDED = ("completed", "incomplete")
_SPEECH = (InputAudio, AssistantAudio)


class History:
    """The items of a session, each once, in the order of the conversation."""

    def __init__(self) -> None:
        self.items: list[RealtimeItem] = []

    def find(self, item_id: str) -> int | None:
        """Return the place of an item. The search goes backwards, because the last items change most."""
        for place in range(len(self.items) - 1, -1, -1):
            if self.items[place].item_id == item_id:
                return place
        return None

    def put(self, item: RealtimeItem) -> bool:
        """Add an item, or update a known one. Return True if it is new."""
        place = self.find(item.item_id)
        if place is not None:
            self.items[place] = _merge(self.items[place], item)
            return False
        before = self.find(item.previous_item_id) if item.previous_item_id is not None else None
        self.items.insert(len(self.items) if before is None else before + 1, item)
        return True

    def delete(self, item_id: str) -> bool:
        """Delete an item. Return True if there was one."""
        place = self.find(item_id)
        if place is None:
            return False
        del self.items[place]
        return True

    def set_transcript(self, item_id: str, transcript: str) -> bool:
        """Set the transcript of the user's speech. Return True if something changed."""
        place = self.find(item_id)
        if place is None:
            return self.put(UserMessageItem(item_id, [InputAudio(transcript=transcript)]))
        item = self.items[place]
        if not isinstance(item, UserMessageItem):
            return False
        content = [
            msgspec.structs.replace(part, transcript=transcript) if isinstance(part, InputAudio) else part
            for part in item.content
        ]
        # The server may report the transcript before the item has any content.
        if not any(isinstance(part, InputAudio) for part in content):
            content.append(InputAudio(transcript=transcript))
        self.items[place] = msgspec.structs.replace(item, content=content)
        return True

    def add_words(self, item_id: str, delta: str, *, is_written: bool = False) -> None:
        """Add words of the model to an item; `is_written`: they are text, and not speech."""
        place = self.find(item_id)
        item = self.items[place] if place is not None else None
        if place is None or not isinstance(item, AssistantMessageItem) or item.status in _ENDED:
            return  # an item that has ended has all its words, or those that were heard
        last: AssistantText | AssistantAudio | None = item.content[-1] if item.content else None
        kept = item.content[:-1]
        if is_written and isinstance(last, AssistantText):
            last = msgspec.structs.replace(last, text=(last.text or "") + delta)
        elif not is_written and isinstance(last, AssistantAudio):
            last = msgspec.structs.replace(last, transcript=(last.transcript or "") + delta)
        else:
            kept, last = (
                item.content,
                AssistantText(delta) if is_written else AssistantAudio(transcript=delta),
            )
        self.items[place] = msgspec.structs.replace(item, content=[*kept, last])

    def set_output(self, call_id: str, output: str, status: ItemStatus = "completed") -> bool:
        """Set the output of a tool call. Return True if something changed."""
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if isinstance(item, RealtimeToolCallItem) and item.call_id == call_id:
                answered = msgspec.structs.replace(item, output=output, status=status)
                self.items[place] = answered
                return answered != item  # the model may have reported it already
        return False

    def set_provisional_output(self, call_id: str, text: str) -> bool:
        """Set a text as the output of a running tool call. Return True if something changed."""
        is_open = any(
            isinstance(item, RealtimeToolCallItem)
            and item.call_id == call_id
            and item.status == "in_progress"
            for item in self.items
        )
        return is_open and self.set_output(call_id, text, "in_progress")

    def unknown_calls(self) -> list[str]:
        """Return the ids of running calls with a provisional output."""
        return [
            item.call_id
            for item in self.items
            if isinstance(item, RealtimeToolCallItem)
            and item.status == "in_progress"
            and item.output
            and item.call_id
        ]

    def end_incomplete(self, running: Container[str | None]) -> bool:
        """Mark open items as incomplete, but not running calls. Return True if there were any."""
        changed = False
        for place, item in enumerate(self.items):
            is_open = isinstance(item, AssistantMessageItem) or (
                isinstance(item, RealtimeToolCallItem) and item.output is None and item.call_id not in running
            )
            if is_open and item.status == "in_progress":  # type: ignore[union-attr]
                self.items[place] = msgspec.structs.replace(item, status="incomplete")
                changed = True
        return changed


def _merge(old: RealtimeItem, new: RealtimeItem) -> RealtimeItem:
    """Return the new item, with what only the old one has: an update may leave out what was sent before."""
    if isinstance(old, RealtimeToolCallItem) and isinstance(new, RealtimeToolCallItem):
        return msgspec.structs.replace(
            new,
            output=new.output if new.output is not None else old.output,
            status=new.status if new.output is not None or old.output is None else old.status,
            previous_item_id=new.previous_item_id or old.previous_item_id,
        )
    if type(old) is not type(new):
        return new
    if isinstance(new, UserMessageItem | AssistantMessageItem):
        content = _with_transcripts(old, new) or old.content  # type: ignore[union-attr]
        new = msgspec.structs.replace(new, content=content)
    return msgspec.structs.replace(new, previous_item_id=new.previous_item_id or old.previous_item_id)


def _with_transcripts(old: Any, new: Any) -> list[Any]:
    """Return the content of the new message, with the old transcripts of speech that has none."""
    known = {place: part.transcript for place, part in enumerate(old.content) if isinstance(part, _SPEECH)}
    return [
        msgspec.structs.replace(part, transcript=known[place])
        if isinstance(part, _SPEECH) and part.transcript is None and place in known
        else part
        for place, part in enumerate(new.content)
    ]
