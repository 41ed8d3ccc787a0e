"""The audio that a client sends, and a voice activity detection by loudness alone.

Audio is examined in windows of 20 ms. Speech begins with a loud window, and ends after some time of silence.
Before it begins, only as much audio is kept as the padding that will belong to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quiesce.realtime.testing.tones import loudness
from quiesce.realtime.words import bytes_per_millisecond

_WINDOW = 20  # ms
_LOUD = 0.04  # for a threshold of 1.0; a voice has a loudness of about 0.1


@dataclass(frozen=True, slots=True)
class SpeechChange:
    """The user has begun or stopped speaking, so many milliseconds after the session began."""

    what: Literal["speech_started", "speech_stopped"]
    at_ms: int


class InputBuffer:
    """The audio that was appended and not committed."""

    def __init__(self) -> None:
        self.audio = bytearray()
        self.speaking = False
        self._unexamined = bytearray()  # less than a window
        self._examined_ms = 0
        self._silent_ms = 0

    def append(self, audio: bytes, kind: str, detection: Mapping[str, Any] | None) -> Iterator[SpeechChange]:
        """Add audio; yield where speech begins or ends. `audio` then holds what arrived up to there."""
        if detection is None:
            self.audio += audio
            return
        window = int(bytes_per_millisecond(kind) * _WINDOW)
        self._unexamined += audio
        while len(self._unexamined) >= window:
            piece = bytes(self._unexamined[:window])
            del self._unexamined[:window]
            self.audio += piece
            self._examined_ms += _WINDOW
            yield from self._examine(piece, kind, detection)

    def _examine(self, piece: bytes, kind: str, detection: Mapping[str, Any]) -> Iterator[SpeechChange]:
        is_loud = loudness(piece, kind) > _LOUD * _number(detection, "threshold", 0.5)
        padding = _number(detection, "prefix_padding_ms", 300)
        if not self.speaking:
            kept = int(bytes_per_millisecond(kind) * (padding + _WINDOW))
            del self.audio[: max(0, len(self.audio) - kept)]
            if is_loud:
                self.speaking, self._silent_ms = True, 0
                yield SpeechChange("speech_started", max(0, int(self._examined_ms - _WINDOW - padding)))
            return
        self._silent_ms = 0 if is_loud else self._silent_ms + _WINDOW
        if self._silent_ms >= _number(detection, "silence_duration_ms", 500):
            self.speaking = False
            yield SpeechChange("speech_stopped", self._examined_ms)

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.audio) + len(self._unexamined)

    def take(self) -> bytes:
        """Return all audio, and become empty."""
        audio = bytes(self.audio + self._unexamined)
        self.audio.clear()
        self._unexamined.clear()
        self.speaking = False
        return audio


def _number(detection: Mapping[str, Any], name: str, default: float) -> float:
    value = detection.get(name)
    return default if value is None else float(value)
