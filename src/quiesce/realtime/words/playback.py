"""Keeping track of which audio was played.

A model sends audio much faster than it is played. When it is interrupted, the user has heard only a part of
it. The rest must be removed from the conversation (`conversation.item.truncate`), or the model believes that
it was heard.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from .audio_format import bytes_per_millisecond

if TYPE_CHECKING:
    from collections.abc import Callable

    from .audio_format import RealtimeAudioFormat


class RealtimePlaybackState(TypedDict):
    """The content that is being played, and how much of it was."""

    current_item_id: str | None
    current_item_content_index: int | None
    elapsed_ms: float | None


class RealtimePlaybackTracker:
    """Your own record of what was played: pass it to the session (`model_config`), and update it.

    ```python
    tracker = RealtimePlaybackTracker()
    session = await runner.run(model_config={"playback_tracker": tracker})
    ...
    tracker.on_play_bytes(event.item_id, event.content_index, played)
    ```
    """

    def __init__(self) -> None:
        self._bytes_per_ms = bytes_per_millisecond("pcm16")
        self._current: tuple[str, int] | None = None
        self._elapsed_ms = 0.0

    def on_play_bytes(self, item_id: str, item_content_index: int, bytes: bytes) -> None:  # noqa: A002
        """Record that these bytes were played."""
        self.on_play_ms(item_id, item_content_index, len(bytes) / self._bytes_per_ms)

    def on_play_ms(self, item_id: str, item_content_index: int, ms: float) -> None:
        """Record that so many milliseconds were played."""
        if self._current != (item_id, item_content_index):
            self._current = (item_id, item_content_index)
            self._elapsed_ms = 0.0
        self._elapsed_ms += ms

    def on_interrupted(self) -> None:
        """Called when playback stops, of all audio that has arrived."""
        self._current = None
        self._elapsed_ms = 0.0

    def set_audio_format(self, format: RealtimeAudioFormat) -> None:  # noqa: A002
        """Called when the format of the model's audio is known."""
        self._bytes_per_ms = bytes_per_millisecond(format)

    def get_state(self) -> RealtimePlaybackState:
        """Called when the model is interrupted."""
        if self._current is None:
            return {"current_item_id": None, "current_item_content_index": None, "elapsed_ms": None}
        item_id, content_index = self._current
        return {
            "current_item_id": item_id,
            "current_item_content_index": content_index,
            "elapsed_ms": self._elapsed_ms,
        }


@dataclass(slots=True)
class _Stretch:
    """Audio of one content that is played without a pause."""

    place: tuple[str, int]
    before_ms: float  # how much of the same content was played before
    starts: float
    ms: float

    @property
    def ends(self) -> float:
        return self.starts + self.ms / 1000


class AssumedPlayback(RealtimePlaybackTracker):
    """The record for users who keep none: audio counts as played from when it is taken, in order."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        # The stretch that is playing, or was played last, and those after it.
        self._stretches: deque[_Stretch] = deque()

    def on_taken(self, item_id: str, content_index: int, size: int) -> None:
        """Record that the user has taken a piece of audio of this size."""
        now, place, ms = self._now(), (item_id, content_index), size / self._bytes_per_ms
        self._drop_played(now)
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last.place == place and last.ends >= now:
            last.ms += ms
            return
        before_ms = last.before_ms + last.ms if last is not None and last.place == place else 0.0
        starts = max(last.ends, now) if last is not None else now
        self._stretches.append(_Stretch(place, before_ms, starts, ms))

    def _drop_played(self, now: float) -> None:
        while len(self._stretches) > 1 and self._stretches[0].ends <= now:
            self._stretches.popleft()

    def on_interrupted(self) -> None:
        """Forget everything: playback has stopped."""
        super().on_interrupted()
        self._stretches.clear()

    def on_cut(self, item_id: str, content_index: int) -> None:
        """Record that this content is not played any further; what was taken after it moves up.

        The stretch itself stays: while nothing after it has started, it shows that everything before it was
        heard.
        """
        now, ends = self._now(), 0.0
        for stretch in self._stretches:
            if stretch.starts > now:
                stretch.starts = max(now, ends)
            if stretch.place == (item_id, content_index):
                stretch.ms = min(stretch.ms, (now - stretch.starts) * 1000) if stretch.starts < now else 0.0
            ends = stretch.ends

    def get_state(self) -> RealtimePlaybackState:
        """Return what is playing, and how much of it was heard, if all was played as it was taken."""
        now = self._now()
        self._drop_played(now)
        if self._stretches:
            first = self._stretches[0]
            played = first.ms if now >= first.ends else max(0.0, now - first.starts) * 1000
            self._current, self._elapsed_ms = first.place, first.before_ms + min(played, first.ms)
        return super().get_state()
