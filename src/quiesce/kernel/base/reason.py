"""Why something was stopped, and who asked for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "user", "timeout", "disconnect", "shutdown", "error", "parent", "takeover", "cancelled"
]
KINDS: Final[tuple[str, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Reason:
    """Who asked for a stop, and why.

    The kind says who asked, the message is for people, and `error` is the exception behind a reason of the
    kind `"error"`:

    | kind | who asked |
    |---|---|
    | `user` | a person, or the program on a person's behalf |
    | `timeout` | a deadline of ours, or a trio deadline |
    | `disconnect` | the other side went away, or the terminal (SIGHUP) |
    | `shutdown` | the program is ending (SIGTERM, the end of `run`) |
    | `error` | a sibling, or the body of the block, failed |
    | `parent` | its owner ended, and with it everything that it owned |
    | `takeover` | another process, which goes on with the same work |
    | `cancelled` | a `cancel()` of other code; asyncio does not say more |

    ```python
    await scope.close(reason=Reason("user", "Esc pressed"))
    # inside a child, while it cleans up:
    current_token().reason.kind     # "user"
    ```
    """

    kind: Kind
    message: str = ""
    error: BaseException | None = None
    # What `str()` returns. A field, because a stop reads it once per child.
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Reason kind {self.kind!r} is unknown; it must be one of {', '.join(KINDS)}")
        text = f"{self.kind}: {self.message}" if self.message else self.kind
        object.__setattr__(self, "text", text)

    def __str__(self) -> str:
        return self.text


def as_reason(reason: Reason | str | None, default: Reason) -> Reason:
    """The `Reason` that a caller means: a plain string is a user's message, None is `default`."""
    if reason is None:
        return default
    if isinstance(reason, Reason):
        return reason
    if isinstance(reason, str):
        return Reason("user", reason)
    raise TypeError(
        f"reason must be a Reason or a str, not {type(reason).__name__}: "
        'for example Reason("user", "Esc pressed")'
    )
