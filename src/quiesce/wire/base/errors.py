"""What goes wrong between two peers, by the names that both sides know."""

from __future__ import annotations

from typing import Any, Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800


class RpcError(Exception):
    """An error that one peer tells the other: raised by a handler to answer with it, and by `request` when it is the answer.

    ```python
    raise RpcError(-32602, "there is no such file", {"path": path})
    ```
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:  # Any: whatever JSON can say
        super().__init__(message)
        if isinstance(code, bool) or not isinstance(code, int):
            raise TypeError(f"the code of an RpcError is a whole number, not {code!r}")
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        data = f", {self.data!r}" if self.data is not None else ""
        return f"{type(self).__name__}({self.code}, {self.message!r}{data})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.code, self.message, self.data)


class RequestCancelled(RpcError):
    """The peer has cancelled the request (-32800): because somebody asked for it, or because it is closing."""


class ConnectionEnded(ConnectionError):
    """The connection is over: a call was not answered, or can no longer be made. `code`: that a WebSocket was closed with, if it was."""

    code: int | None = None


class FrameTooLong(ValueError):
    """A message to be sent is longer than the limit of the connection."""


def _again(kind: type[RpcError], code: int, message: str, data: Any) -> RpcError:
    error = kind.__new__(kind)
    RpcError.__init__(error, code, message, data)
    return error


def error_of(code: int, message: str, data: Any) -> RpcError:
    """What `request` raises for an error that the peer has answered."""
    kind = RequestCancelled if code == REQUEST_CANCELLED else RpcError
    return kind(code, message, data)
