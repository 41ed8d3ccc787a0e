"""Why something was stopped, and who asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeAlias, cast, get_args

from .plain_data import Record, plain_text
from .remote_error import error_from_dict, error_to_dict

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

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON. Of `error`, the type and the text are kept."""
        error = None if self.error is None else error_to_dict(self.error)
        return {"kind": self.kind, "message": plain_text(self.message), "error": error}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the reason that `to_dict` made data of; its `error` is a `RemoteError`.

        A kind that only a newer version of quiesce knows becomes `"cancelled"`, and the message says so.
        """
        return cls._read(data, "Reason")

    @classmethod
    def _read(cls, data: object, where: str) -> Self:
        record = Record(data, where)
        kind, message, error = record.text("kind"), record.text("message", ""), record.inner("error")
        if kind not in KINDS:
            message = f"{message} (a newer version of quiesce calls this {kind!r})".lstrip()
            kind = "cancelled"
        return cls(cast("Kind", kind), message, None if error is None else error_from_dict(*error))


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
