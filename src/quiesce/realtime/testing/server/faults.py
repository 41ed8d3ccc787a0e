"""`Faults`: what a local server does wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Malformed: TypeAlias = Literal[
    "not_json",
    "not_object",
    "no_type",
    "wrong_types",
    "bad_base64",
    "unknown_type",
    "binary",
    "bad_utf8",
    "protocol",
]
"""`binary`: a binary frame; `bad_utf8`: invalid text; `protocol`: a frame that WebSocket does not have."""

MALFORMED: tuple[Malformed, ...] = get_args(Malformed)


@dataclass(frozen=True, slots=True)
class Faults:
    """What a `LocalRealtimeServer` does wrong.

    All but `handshake` and `never_answers_close` begin when the server event `after` was sent.

    - `handshake`: refuse it with a status (401, 403, 500), answer with `"garbage"`, or not at all
      (`"silence"`).
    - `slow`: send so many bytes per second.
    - `drops_after`: send so many more bytes, and end the connection within a frame; with `reset`, by RST.
    - `reset`: RST at once.
    - `half_open`: read nothing, write nothing, and keep the socket open.
    - `floods`: send so many megabytes of audio, as fast as they are read.
    - `malformed`: send malformed events, one of each kind that is named.
    - `oversized`: send one message with so many bytes of audio.
    - `closes_with`: send a close frame with this code.
    - `never_answers_close`: do not answer a close frame, and keep the socket open.

    ```python
    LocalRealtimeServer(["Hello."], faults=Faults(half_open=True, after="session.updated"))
    ```
    """

    after: str = "response.created"
    handshake: int | Literal["garbage", "silence"] | None = None
    slow: float | None = None
    drops_after: int | None = None
    reset: bool = False
    half_open: bool = False
    floods: float = 0.0
    malformed: tuple[Malformed, ...] = ()
    oversized: int = 0
    closes_with: int | None = None
    never_answers_close: bool = False

    def __post_init__(self) -> None:
        if self.slow is not None and not self.slow > 0:
            raise ValueError(
                f"Faults.slow must be more than 0 bytes per second, not {self.slow!r}; for none at all, use half_open"
            )
        if unknown := [kind for kind in self.malformed if kind not in MALFORMED]:
            raise ValueError(f"Faults.malformed has no {unknown[0]!r}: use {', '.join(MALFORMED)}")
        if isinstance(self.handshake, int) and not 400 <= self.handshake < 600:
            raise ValueError(f"Faults.handshake must be a status such as 401 or 500, not {self.handshake!r}")
