"""The audio that a client sends, and who notices that somebody speaks: a server VAD by energy alone.

Audio is looked at in windows of 20 ms. Speech begins with a window that is loud, and ends after so much silence. Before it begins no more is kept than
the padding that will be part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quiesce.realtime.testing.tones import loudness
from quiesce.realtime.words import bytes_per_millisecond

_WINDOW = 20  # ms
_LOUD = 0.04  # at the threshold of 1.0; a voice into a microphone has about a tenth


@dataclass(frozen=True, slots=True)
class Heard:
    """Somebody has begun or ended to speak, so many milliseconds after the session began."""

    what: Literal["speech_started", "speech_stopped"]
    at_ms: int


class InputBuffer:
    """What was appended and not committed."""

    def __init__(self) -> None:
        self.audio = bytearray()
        self.speaking = False
        self._unseen = bytearray()  # less than a window
        self._passed_ms = 0  # that were looked at
        self._silent_ms = 0

    def append(self, audio: bytes, kind: str, detection: Mapping[str, Any] | None) -> Iterator[Heard]:
        """Take some more; yields at each point where speech begins or ends, with `audio` as it is there."""
        if detection is None:
            self.audio += audio
            return
        window = int(bytes_per_millisecond(kind) * _WINDOW)
        self._unseen += audio
        while len(self._unseen) >= window:
            piece = bytes(self._unseen[:window])
            del self._unseen[:window]
            self.audio += piece
            self._passed_ms += _WINDOW
            yield from self._look_at(piece, kind, detection)

    def _look_at(self, piece: bytes, kind: str, detection: Mapping[str, Any]) -> Iterator[Heard]:
        is_loud = loudness(piece, kind) > _LOUD * _number(detection, "threshold", 0.5)
        padding = _number(detection, "prefix_padding_ms", 300)
        if not self.speaking:
            kept = int(bytes_per_millisecond(kind) * (padding + _WINDOW))
            del self.audio[: max(0, len(self.audio) - kept)]
            if is_loud:
                self.speaking, self._silent_ms = True, 0
                yield Heard("speech_started", max(0, int(self._passed_ms - _WINDOW - padding)))
            return
        self._silent_ms = 0 if is_loud else self._silent_ms + _WINDOW
        if self._silent_ms >= _number(detection, "silence_duration_ms", 500):
            self.speaking = False
            yield Heard("speech_stopped", self._passed_ms)

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self.audio) + len(self._unseen)

    def take(self) -> bytes:
        """All of it; it is empty then."""
        audio = bytes(self.audio + self._unseen)
        self.audio.clear()
        self._unseen.clear()
        self.speaking = False
        return audio


def _number(detection: Mapping[str, Any], name: str, default: float) -> float:
    value = detection.get(name)
    return default if value is None else float(value)
