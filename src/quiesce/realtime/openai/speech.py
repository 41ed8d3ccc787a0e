"""The audio that came, and what of it was heard.

Invariants
- After an interruption, all audio that came and was not heard is cut from the conversation: the content that is being played to what was
  played of it, and those after it to nothing. Each is cut once. If one response is interrupted, what came of others is played on.
- No more is said to have been heard than came, and nothing is cut that was heard to its end. All that came before what is being played was;
  a content keeps its place for that, though it was cut or deleted.
- Of the words of a content that was cut, as many count as heard as were in the part of it which was: in proportion, for the wire does not
  tell when each was said.
- The last contents are remembered, `CONTENTS` of them; what came before them was heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from quiesce.realtime.words import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    RealtimeItem,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelErrorEvent,
    bytes_per_millisecond,
)

from .bounded_memory import forget_oldest
from .client_events import truncate

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from quiesce.realtime.words import RealtimeAudioFormat, RealtimeModelEvent, RealtimePlaybackTracker

    from .responses import Responses
    from .server_events import AudioDelta, ItemTruncated, TranscriptDelta

Place: TypeAlias = tuple[str, int]
"""An item, and the index of a content in it."""

CONTENTS = 128


@dataclass(slots=True, eq=False)
class Content:
    """Audio of one content."""

    response_id: str
    is_outside: bool  # of the conversation: there is nothing to cut it from
    size: int = 0
    is_complete: bool = False
    is_settled: bool = False  # heard, cut or deleted: only its place counts
    is_cut: bool = False
    heard: str | None = None  # the words of it, if the server has cut it


class Speech:
    """What the model has said on one connection."""

    def __init__(self, tracker: RealtimePlaybackTracker, restored: AbstractSet[str] = frozenset()) -> None:
        self._tracker = tracker
        self._restored = restored  # items of an earlier connection
        self._bytes_per_ms = bytes_per_millisecond("pcm16")
        self._contents: dict[Place, Content] = {}  # in the order in which they came
        self._words: dict[Place, str] = {}

    def set_audio_format(self, given: RealtimeAudioFormat) -> None:
        """It is known how the model speaks."""
        self._bytes_per_ms = bytes_per_millisecond(given)
        self._tracker.set_audio_format(given)

    def is_cut(self, delta: AudioDelta) -> bool:
        """Whether nothing more of this content is played."""
        content = self._contents.get((delta.item_id, delta.content_index))
        return content is not None and content.is_cut

    def came(self, delta: AudioDelta, is_outside: bool) -> None:
        """A piece of audio, which will be played."""
        place = (delta.item_id, delta.content_index)
        content = self._contents.get(place)
        if content is None or content.is_settled:
            if not delta.delta:
                return
            if content is not None:  # it was deleted, or something else was played before it had come
                is_outside = is_outside or content.is_outside
                del self._contents[place]
            content = self._add(place, Content(delta.response_id, is_outside))
        content.size += len(delta.delta)

    def _add(self, place: Place, content: Content) -> Content:
        self._contents[place] = content
        forget_oldest(self._contents, CONTENTS)
        return content

    def said(self, delta: TranscriptDelta) -> None:
        """A piece of the words."""
        place = (delta.item_id, delta.content_index)
        self._words[place] = self._words.get(place, "") + delta.delta
        forget_oldest(self._words, CONTENTS)

    def ended(self, item_id: str, content_index: int) -> None:
        """All of it came."""
        content = self._contents.get((item_id, content_index))
        if content is not None:
            content.is_complete = True

    def came_too_late(self, delta: AudioDelta, is_outside: bool) -> list[bytes]:
        """A piece of audio that will not be played: nobody will hear this content, if not what came of it before."""
        place = (delta.item_id, delta.content_index)
        content = self._contents.get(place)
        if content is not None:
            content.size += len(delta.delta)
            return []
        if is_outside or not delta.delta:
            return []
        self._add(
            place, Content(delta.response_id, is_outside, len(delta.delta), is_settled=True, is_cut=True)
        )
        return [truncate(*place, 0)]

    def forget(self, item_id: str) -> None:
        """The item is deleted: there is nothing any more to cut it from."""
        for place, content in self._contents.items():
            if place[0] == item_id:
                content.is_settled = content.is_outside = True
        for place in [each for each in self._words if each[0] == item_id]:
            del self._words[place]

    # What was heard

    def cut(
        self, responses: Responses, events: list[RealtimeModelEvent], response_id: str | None = None
    ) -> list[bytes]:
        """Nothing more is played, or nothing more of one response."""
        playing, elapsed, is_known = None, 0.0, True
        try:
            playing, elapsed = self._playing()
        except Exception as error:  # the account is the user's own code
            events.append(RealtimeModelErrorEvent(error))
            is_known = False
        frames: list[bytes] = []
        was_played = False
        for place, content in self._contents.items():
            if content.is_settled or (response_id is not None and content.response_id != response_id):
                continue
            content.is_settled = True
            was_played = was_played or place == playing
            goes_on = responses.is_on(content.response_id)
            if goes_on:
                responses.silenced.add(content.response_id)
            came = content.size / self._bytes_per_ms
            heard = min(elapsed, came) if place == playing and elapsed > 0 else 0.0
            if came - heard < 1 and (content.is_complete or not goes_on):
                continue
            content.is_cut = True
            events.append(RealtimeModelAudioInterruptedEvent(*place))
            if is_known and not content.is_outside:
                frames.append(truncate(*place, int(heard)))
        if playing is not None and playing[0] in self._restored and response_id is None:
            # It came by an earlier connection. In this conversation it is text, which cannot be cut.
            events.append(RealtimeModelAudioInterruptedEvent(*playing))
        # What waits behind one response that is cut is played on.
        if response_id is None or (was_played and all(each.is_settled for each in self._contents.values())):
            try:
                self._tracker.on_interrupted()
            except Exception as error:
                events.append(RealtimeModelErrorEvent(error))
        return frames

    def _playing(self) -> tuple[Place | None, float]:
        """What is being played, and how many milliseconds of it were. What came before it was heard."""
        state = self._tracker.get_state()
        item_id = state["current_item_id"]
        if item_id is None:
            return None, 0.0
        playing = (item_id, state["current_item_content_index"] or 0)
        elapsed = float(state["elapsed_ms"] or 0.0)
        if playing in self._contents:
            for place, content in self._contents.items():
                if place == playing:
                    break
                content.is_settled = True
        return playing, elapsed

    # What that means for the words

    def truncated(self, event: ItemTruncated) -> list[AssistantText | AssistantAudio]:
        """The server has cut a content: what was heard of the item, as far as that has changed. Nothing if that is not known."""
        place = (event.item_id, event.content_index)
        content = self._contents.get(place)
        if content is None or not content.size:
            return []
        words = self._words.get(place)
        if words is not None or not event.audio_end_ms:
            content.heard = _beginning(words or "", event.audio_end_ms * self._bytes_per_ms / content.size)
        indexes = sorted(index for item_id, index in self._contents if item_id == event.item_id)
        if indexes[-1] >= len(indexes):
            return []  # there is something else in it
        heard = self._heard(event.item_id)
        return [AssistantAudio(transcript=heard.get(index)) for index in indexes]

    def as_heard(self, item: RealtimeItem) -> RealtimeItem:
        """The item, without the words that the server has cut: it may not have known of that when it told."""
        if not isinstance(item, AssistantMessageItem):
            return item
        heard = self._heard(item.item_id)
        if not heard:
            return item
        content = [
            msgspec.structs.replace(part, transcript=heard.get(index, part.transcript))
            if isinstance(part, AssistantAudio)
            else part
            for index, part in enumerate(item.content)
        ]
        return msgspec.structs.replace(item, content=content, status="incomplete")

    def _heard(self, item_id: str) -> dict[int, str]:
        return {
            index: content.heard
            for (of, index), content in self._contents.items()
            if of == item_id and content.heard is not None
        }


def _beginning(words: str, part: float) -> str:
    """The first part of it, in whole words, where there are spaces between them."""
    end = int(len(words) * min(part, 1.0))
    begun = words[:end]
    if end < len(words) and " " in words and not words[end].isspace():
        begun = begun.rpartition(" ")[0]
    return begun.rstrip()
