"""What was played: needed when the model is interrupted, so that it knows what the user has not heard.

A model sends audio much faster than it is played. Of what it has sent, the user has heard what was played; the rest must be cut from the
conversation (`conversation.item.truncate`), or the model believes it was said.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from .audio_format import bytes_per_millisecond

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import RealtimeAudioFormat


class RealtimePlaybackState(TypedDict):
    """Which content is being played, and how much of it was."""

    current_item_id: str | None
    current_item_content_index: int | None
    elapsed_ms: float | None


class RealtimePlaybackTracker:
    """Your own account of what was played: give it to the session (`model_config`), and tell it.

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
        """So much was played, just now."""
        self.on_play_ms(item_id, item_content_index, len(bytes) / self._bytes_per_ms)

    def on_play_ms(self, item_id: str, item_content_index: int, ms: float) -> None:
        """The same, in milliseconds."""
        if self._current != (item_id, item_content_index):
            self._current = (item_id, item_content_index)
            self._elapsed_ms = 0.0
        self._elapsed_ms += ms

    def on_interrupted(self) -> None:
        """Called when nothing more is played, of anything that has come."""
        self._current = None
        self._elapsed_ms = 0.0

    def set_audio_format(self, format: RealtimeAudioFormat) -> None:  # noqa: A002
        """Called when it is known how the model speaks."""
        self._bytes_per_ms = bytes_per_millisecond(format)

    def get_state(self) -> RealtimePlaybackState:
        """Asked when the model is interrupted."""
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
    before_ms: float  # of the same content, played before
    starts: float
    ms: float

    @property
    def ends(self) -> float:
        return self.starts + self.ms / 1000


class AssumedPlayback(RealtimePlaybackTracker):
    """The account of a session whose user keeps none: audio is played from the moment when it is taken, one piece after the other."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self._stretches: deque[_Stretch] = (
            deque()
        )  # the one that is heard now, or was last, and those behind it

    def on_taken(self, item_id: str, content_index: int, size: int) -> None:
        """Whoever reads the events has this piece of audio now."""
        now, place, ms = self._now(), (item_id, content_index), size / self._bytes_per_ms
        self._play_on(now)
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last.place == place and last.ends >= now:
            last.ms += ms
            return
        before_ms = last.before_ms + last.ms if last is not None and last.place == place else 0.0
        starts = max(last.ends, now) if last is not None else now
        self._stretches.append(_Stretch(place, before_ms, starts, ms))

    def _play_on(self, now: float) -> None:
        while len(self._stretches) > 1 and self._stretches[0].ends <= now:
            self._stretches.popleft()

    def on_interrupted(self) -> None:
        """Nothing of it is played on."""
        super().on_interrupted()
        self._stretches.clear()

    def on_cut(self, item_id: str, content_index: int) -> None:
        """This one is not played, or not played on; what was taken after it is played at once.

        It keeps its place: as long as nothing else is heard after it, all that was taken before it is known to have been heard.
        """
        now, ends = self._now(), 0.0
        for stretch in self._stretches:
            if stretch.starts > now:
                stretch.starts = max(now, ends)
            if stretch.place == (item_id, content_index):
                stretch.ms = min(stretch.ms, (now - stretch.starts) * 1000) if stretch.starts < now else 0.0
            ends = stretch.ends

    def get_state(self) -> RealtimePlaybackState:
        """What is being heard, and how much of it was, if all was played as it was taken."""
        now = self._now()
        self._play_on(now)
        if self._stretches:
            heard = self._stretches[0]
            played = heard.ms if now >= heard.ends else max(0.0, now - heard.starts) * 1000
            self._current, self._elapsed_ms = heard.place, heard.before_ms + min(played, heard.ms)
        return super().get_state()
