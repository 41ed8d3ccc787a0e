"""The audio that arrived, and how much of it was heard.

Invariants
- After an interruption, all audio that was not heard is cut from the conversation: the content that is
  playing is cut to the part that was played, and those after it to nothing. Each is cut once. If only one
  response is interrupted, the audio of others is played on.
- No more counts as heard than arrived, and nothing is cut that was heard to its end. Everything that arrived
  before the playing content was heard; for that, a content keeps its place even when it was cut or deleted.
- The words of a cut content count as heard in proportion to its audio, because the protocol does not tell
  when each word was spoken.
- The last `CONTENTS` contents are remembered; those before them were heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from quiesce.realtime.words import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    RealtimeItem,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelErrorEvent,
    bytes_per_millisecond,
    forget_oldest,
)

from .client_events import truncate

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from quiesce.realtime.words import Place, RealtimeAudioFormat, RealtimeModelEvent, RealtimePlaybackTracker

    from .responses import Responses
    from .server_events import AudioDelta, ItemTruncated, TranscriptDelta

CONTENTS = 128


@dataclass(slots=True, eq=False)
class Content:
    """The audio of one content."""

    response_id: str
    is_outside: bool  # of the conversation, so it cannot be cut from it
    size: int = 0
    is_complete: bool = False
    is_settled: bool = False  # heard, cut or deleted: only its place matters
    is_cut: bool = False
    heard: str | None = None  # the words that were heard, if the server has cut it


class Speech:
    """The speech of the model on one connection."""

    def __init__(self, tracker: RealtimePlaybackTracker, restored: AbstractSet[str] = frozenset()) -> None:
        self._tracker = tracker
        self._restored = restored  # items of an earlier connection
        self._bytes_per_ms = bytes_per_millisecond("pcm16")
        self._contents: dict[Place, Content] = {}  # in the order of their arrival
        self._words: dict[Place, str] = {}

    def set_audio_format(self, given: RealtimeAudioFormat) -> None:
        """Set the format of the model's audio."""
        self._bytes_per_ms = bytes_per_millisecond(given)
        self._tracker.set_audio_format(given)

    def is_cut(self, delta: AudioDelta) -> bool:
        """Return whether this content was cut, so that no more of it is played."""
        content = self._contents.get((delta.item_id, delta.content_index))
        return content is not None and content.is_cut

    def add_audio(self, delta: AudioDelta, is_outside: bool) -> None:
        """Add a piece of audio that will be played."""
        place = (delta.item_id, delta.content_index)
        content = self._contents.get(place)
        if content is None or content.is_settled:
            if not delta.delta:
                return
            if content is not None:  # deleted, or a later content was played before this piece arrived
                is_outside = is_outside or content.is_outside
                del self._contents[place]
            content = self._add(place, Content(delta.response_id, is_outside))
        content.size += len(delta.delta)

    def _add(self, place: Place, content: Content) -> Content:
        self._contents[place] = content
        forget_oldest(self._contents, CONTENTS)
        return content

    def add_words(self, delta: TranscriptDelta) -> None:
        """Add a piece of the transcript."""
        place = (delta.item_id, delta.content_index)
        self._words[place] = self._words.get(place, "") + delta.delta
        forget_oldest(self._words, CONTENTS)

    def complete(self, item_id: str, content_index: int) -> None:
        """Note that all audio of this content has arrived."""
        content = self._contents.get((item_id, content_index))
        if content is not None:
            content.is_complete = True

    def add_unplayed(self, delta: AudioDelta, is_outside: bool) -> list[bytes]:
        """Add a piece of audio that will not be played; return the frames to send."""
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
        """Note that the item was deleted, and cannot be cut any more."""
        for place, content in self._contents.items():
            if place[0] == item_id:
                content.is_settled = content.is_outside = True
        for place in [each for each in self._words if each[0] == item_id]:
            del self._words[place]

    # What was heard

    def cut(
        self, responses: Responses, events: list[RealtimeModelEvent], response_id: str | None = None
    ) -> list[bytes]:
        """Cut what was not heard, of all responses or of one; return the frames to send."""
        playing, elapsed, is_known = None, 0.0, True
        try:
            playing, elapsed = self._playing()
        except Exception as error:  # the tracker may be the user's own code
            events.append(RealtimeModelErrorEvent(error))
            is_known = False
        frames: list[bytes] = []
        was_played = False
        for place, content in self._contents.items():
            if content.is_settled or (response_id is not None and content.response_id != response_id):
                continue
            # Settled, whether it is cut or not: a second interrupt must not cut it again.
            content.is_settled = True
            was_played = was_played or place == playing
            goes_on = responses.is_active(content.response_id)
            if goes_on:
                responses.silenced.add(content.response_id)
            arrived = content.size / self._bytes_per_ms
            heard = min(elapsed, arrived) if place == playing and elapsed > 0 else 0.0
            # Less than a millisecond is left: it was heard to its end.
            if arrived - heard < 1 and (content.is_complete or not goes_on):
                continue
            content.is_cut = True
            events.append(RealtimeModelAudioInterruptedEvent(*place))
            if is_known and not content.is_outside:
                frames.append(truncate(*place, int(heard)))
        if playing is not None and playing[0] in self._restored and response_id is None:
            # It arrived on an earlier connection. In this conversation it is text, which cannot be cut.
            events.append(RealtimeModelAudioInterruptedEvent(*playing))
        # If other responses still have audio to play, the tracker must go on.
        if response_id is None or (was_played and all(each.is_settled for each in self._contents.values())):
            try:
                self._tracker.on_interrupted()
            except Exception as error:
                events.append(RealtimeModelErrorEvent(error))
        return frames

    def _playing(self) -> tuple[Place | None, float]:
        """Return which content is playing, and its elapsed milliseconds; all before it counts as heard."""
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

    # Which words were heard

    def truncated(self, event: ItemTruncated) -> list[AssistantText | AssistantAudio]:
        """Take the confirmation of a cut; return the new content of the item, or nothing if unknown."""
        place = (event.item_id, event.content_index)
        content = self._contents.get(place)
        if content is None or not content.size:
            return []
        words = self._words.get(place)
        if words is not None or not event.audio_end_ms:
            content.heard = _beginning(words or "", event.audio_end_ms * self._bytes_per_ms / content.size)
        indexes = sorted(index for item_id, index in self._contents if item_id == event.item_id)
        if indexes[-1] >= len(indexes):
            return []  # the item also has other kinds of content
        heard = self._heard(event.item_id)
        return [AssistantAudio(transcript=heard.get(index)) for index in indexes]

    def as_heard(self, item: RealtimeItem) -> RealtimeItem:
        """Return the item without the words that were cut: the server may have sent it before it cut them."""
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
    """Return the first part of a text, in whole words if it has spaces."""
    end = int(len(words) * min(part, 1.0))
    begun = words[:end]
    if end < len(words) and " " in words and not words[end].isspace():
        begun = begun.rpartition(" ")[0]
    return begun.rstrip()
