"""The turns of a script, and the speech in them."""

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
    """Speech, with its audio.

    - `audio`: by default a tone for each word. With `b""` the text is written, not spoken.
    - `piece`: bytes of audio per event. `pace`: seconds between two events.

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
            raise ValueError(f"Speech.piece must be at least 1 byte of audio per event, not {self.piece!r}")
        if self.pace < 0:
            raise ValueError(f"Speech.pace must be seconds between two pieces, not {self.pace!r}")

    def pieces(self, kind: str = "audio/pcm") -> list[tuple[str, bytes]]:
        """Return the pieces of text and audio; `kind` is the format of generated tones."""
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
    | Callable[[Any], "Awaitable[Turn] | Turn"]  # Any: what was sent; model and server pass different types
)


def as_script(turns: Turn | Iterable[Turn]) -> list[Turn]:
    """Return the turns of a script; a single turn is a script, too."""
    if isinstance(turns, (str, ToolCall, Speech, Exception)) or callable(turns):
        return [turns]
    return list(turns)


def is_function(turn: Turn) -> bool:
    """Return whether the turn is a function, which returns the actual turn."""
    return callable(turn) and not isinstance(turn, type)


def parts_of(turn: Turn, pace: float = 0.0) -> list[Speech | ToolCall]:
    """Return the parts of a turn; raise the turn if it is an error."""
    if isinstance(turn, Exception) or (isinstance(turn, type) and issubclass(turn, Exception)):
        raise turn
    parts: Any = [turn] if isinstance(turn, (str, ToolCall, Speech)) else turn
    if not isinstance(parts, Sequence):
        raise TypeError(
            "a turn must be a str, a Speech, a call(), a list of those, an exception or a function, "
            f"not {type(turn).__name__}"
        )
    found: list[Speech | ToolCall] = []
    for part in parts:
        if isinstance(part, str):
            found.append(Speech(part, pace=pace))
        elif isinstance(part, (Speech, ToolCall)):
            found.append(part)
        else:
            raise TypeError(
                f"a part of a turn must be a str, a Speech or a call(), not {type(part).__name__}"
            )
    return found
