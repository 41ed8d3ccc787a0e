"""The conversation so far, as the server tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    from quiesce.realtime.openai import Status
    from quiesce.realtime.words import RealtimeItem


_ENDED = ("completed", "incomplete")


class History:
    """The items of a session, each once, in the order of the conversation."""

    def __init__(self) -> None:
        self.items: list[RealtimeItem] = []

    def find(self, item_id: str) -> int | None:
        """Where an item is; the last ones are looked at first, for those change."""
        for place in range(len(self.items) - 1, -1, -1):
            if self.items[place].item_id == item_id:
                return place
        return None

    def put(self, item: RealtimeItem) -> bool:
        """Add an item, or take this in place of what was known of it. True if it is new."""
        place = self.find(item.item_id)
        if place is not None:
            self.items[place] = _keeping(self.items[place], item)
            return False
        before = self.find(item.previous_item_id) if item.previous_item_id is not None else None
        self.items.insert(len(self.items) if before is None else before + 1, item)
        return True

    def delete(self, item_id: str) -> bool:
        """Forget an item. True if there was one."""
        place = self.find(item_id)
        if place is None:
            return False
        del self.items[place]
        return True

    def heard(self, item_id: str, transcript: str) -> bool:
        """What the user has said is known as text now. True if that was something new."""
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
        if not any(isinstance(part, InputAudio) for part in content):
            content.append(InputAudio(transcript=transcript))
        self.items[place] = msgspec.structs.replace(item, content=content)
        return True

    def said(self, item_id: str, delta: str, *, is_written: bool = False) -> None:
        """The model goes on with an item, in these words; `is_written`: it does not speak them. Whoever looks sees what was said so far."""
        place = self.find(item_id)
        item = self.items[place] if place is not None else None
        if place is None or not isinstance(item, AssistantMessageItem) or item.status in _ENDED:
            return  # one that has ended has all its words, or those that were heard
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

    def answered(self, call_id: str, output: str, status: Status = "completed") -> bool:
        """A tool call has its output. True if that was something new."""
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if isinstance(item, RealtimeToolCallItem) and item.call_id == call_id:
                answered = msgspec.structs.replace(item, output=output, status=status)
                self.items[place] = answered
                return answered != item  # the model may have told it already
        return False

    def unknown(self, call_id: str, text: str) -> bool:
        """A tool call is at work: this is its output so far. True if that was something new."""
        is_open = any(
            isinstance(item, RealtimeToolCallItem)
            and item.call_id == call_id
            and item.status == "in_progress"
            for item in self.items
        )
        return is_open and self.answered(call_id, text, "in_progress")

    def unknown_calls(self) -> list[str]:
        """Ids of the calls whose output says that they are at work."""
        return [
            item.call_id
            for item in self.items
            if isinstance(item, RealtimeToolCallItem)
            and item.status == "in_progress"
            and item.output
            and item.call_id
        ]

    def cut_off(self, at_work: Container[str | None]) -> bool:
        """Nothing more comes of what is not complete; of the calls, those that are not at work. True if there was any."""
        changed = False
        for place, item in enumerate(self.items):
            is_open = isinstance(item, AssistantMessageItem) or (
                isinstance(item, RealtimeToolCallItem) and item.output is None and item.call_id not in at_work
            )
            if is_open and item.status == "in_progress":  # type: ignore[union-attr]
                self.items[place] = msgspec.structs.replace(item, status="incomplete")
                changed = True
        return changed


def _keeping(old: RealtimeItem, new: RealtimeItem) -> RealtimeItem:
    """The new one, with what only the old one knew: an update may leave out what was told before."""
    if isinstance(old, RealtimeToolCallItem) and isinstance(new, RealtimeToolCallItem):
        return msgspec.structs.replace(
            new,
            output=new.output if new.output is not None else old.output,
            status=new.status if new.output is not None or old.output is None else old.status,
            previous_item_id=new.previous_item_id or old.previous_item_id,
        )
    if type(old) is not type(new):
        return new
    if isinstance(old, UserMessageItem) and isinstance(new, UserMessageItem):
        said = {
            place: part.transcript for place, part in enumerate(old.content) if isinstance(part, InputAudio)
        }
        content = [
            msgspec.structs.replace(part, transcript=said[place])
            if isinstance(part, InputAudio) and part.transcript is None and place in said
            else part
            for place, part in enumerate(new.content)
        ]
        new = msgspec.structs.replace(new, content=content or old.content)
    elif isinstance(old, AssistantMessageItem) and isinstance(new, AssistantMessageItem):
        told = {place: part for place, part in enumerate(old.content) if isinstance(part, AssistantAudio)}
        parts = [
            msgspec.structs.replace(part, transcript=told[place].transcript)
            if isinstance(part, AssistantAudio) and part.transcript is None and place in told
            else part
            for place, part in enumerate(new.content)
        ]
        new = msgspec.structs.replace(new, content=parts or old.content)
    return msgspec.structs.replace(new, previous_item_id=new.previous_item_id or old.previous_item_id)
