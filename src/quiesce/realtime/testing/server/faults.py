"""What a server may do wrong, as switches."""

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
"""`binary` is a binary frame, `bad_utf8` a text frame that is none, `protocol` a frame of a kind that WebSocket does not have."""

MALFORMED: tuple[Malformed, ...] = get_args(Malformed)


@dataclass(frozen=True, slots=True)
class Faults:
    """What a `LocalRealtimeServer` does wrong. Everything but `handshake` and `never_answers_close` begins when the server event `after` was sent.

    - `handshake`: a status to refuse it with (401, 403, 500), `"garbage"`, or `"silence"`: accepts the connection and answers nothing.
    - `slow`: so many bytes a second.
    - `drops_after`: sends so many more bytes, and ends the connection in the middle of a frame; with `reset`, by RST.
    - `reset`: RST at once.
    - `half_open`: reads nothing, writes nothing, and keeps the socket.
    - `floods`: so many megabytes of audio, as fast as they are read.
    - `malformed`: events that are wrong, one of each kind that is named.
    - `oversized`: one message with so many bytes of audio.
    - `closes_with`: a close frame with this code.
    - `never_answers_close`: does not answer a close frame, and keeps the socket.

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
                f"Faults.slow is bytes a second, over 0, not {self.slow!r}; for none at all: half_open"
            )
        if unknown := [kind for kind in self.malformed if kind not in MALFORMED]:
            raise ValueError(f"Faults.malformed: there is no {unknown[0]!r}, but {', '.join(MALFORMED)}")
        if isinstance(self.handshake, int) and not 400 <= self.handshake < 600:
            raise ValueError(
                f"Faults.handshake refuses with a status such as 401 or 500, not {self.handshake!r}"
            )
