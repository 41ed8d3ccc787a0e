"""What a script consists of: turns, and what is said in one."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from quiesce.models import ToolCall

from .tones import tone

_WORDS = re.compile(r"^\s+|\S+\s*")


@dataclass(frozen=True, slots=True)
class Speech:
    """Something said, with its audio.

    - `audio`: what is heard; a tone for each word, unless given. `b""` is text that is written, not said.
    - `piece`: bytes of audio in one event. `pace`: seconds between two of them.

    ```python
    ScriptedRealtimeModel([Speech("Once upon a time ...", pace=0.1)])
    ```
    """

    text: str
    audio: bytes | None = None
    pace: float = 0.0
    piece: int = 4800

    def __post_init__(self) -> None:
        if self.piece < 1:
            raise ValueError(f"Speech.piece is bytes of audio in one event, at least 1, not {self.piece!r}")
        if self.pace < 0:
            raise ValueError(f"Speech.pace is seconds between two pieces, not {self.pace!r}")

    def pieces(self, kind: str = "audio/pcm") -> list[tuple[str, bytes]]:
        """Text and audio, piece by piece; `kind` is the format of tones that are made up."""
        words = _WORDS.findall(self.text)
        if self.audio is None:
            return [(word, tone(100, kind, 330.0 + 110 * (n % 4))) for n, word in enumerate(words)]
        if not self.audio:
            return [(word, b"") for word in words]
        audio = [self.audio[start : start + self.piece] for start in range(0, len(self.audio), self.piece)]
        count = len(audio)
        return [
            ("".join(words[len(words) * n // count : len(words) * (n + 1) // count]), piece)
            for n, piece in enumerate(audio)
        ]


Part: TypeAlias = str | ToolCall | Speech
Turn: TypeAlias = (
    Part
    | Exception
    | type[Exception]
    | Sequence[Part]
    | Callable[[Any], "Awaitable[Turn] | Turn"]  # Any: what was sent, which differs with who is asked
)


def as_script(turns: Turn | Iterable[Turn]) -> list[Turn]:
    """The turns of a script; a single one is a script too."""
    if isinstance(turns, (str, ToolCall, Speech, Exception)) or callable(turns):
        return [turns]
    return list(turns)


def is_written_when_asked(turn: Turn) -> bool:
    """Whether the turn is a function, which must be called to have it."""
    return callable(turn) and not isinstance(turn, type)


def parts_of(turn: Turn, pace: float = 0.0) -> list[Speech | ToolCall]:
    """The items of a response. Raises the turn if it is an error."""
    if isinstance(turn, Exception) or (isinstance(turn, type) and issubclass(turn, Exception)):
        raise turn
    parts: Any = [turn] if isinstance(turn, (str, ToolCall, Speech)) else turn
    if not isinstance(parts, Sequence):
        raise TypeError(
            f"a turn is a str, a Speech, a call(), a list of those, an exception or a function, not {type(turn).__name__}"
        )
    found: list[Speech | ToolCall] = []
    for part in parts:
        if isinstance(part, str):
            found.append(Speech(part, pace=pace))
        elif isinstance(part, (Speech, ToolCall)):
            found.append(part)
        else:
            raise TypeError(f"a part of a turn is a str, a Speech or a call(), not {type(part).__name__}")
    return found
