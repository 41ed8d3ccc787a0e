"""The errors between two peers, with the codes of JSON-RPC that both sides know."""

from __future__ import annotations

from typing import Any, Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800


class RpcError(Exception):
    """An error that one peer sends the other: raised by a handler to answer with it, and by `request`.

    ```python
    raise RpcError(-32602, "there is no such file", {"path": path})
    ```
    """

    # Any: anything that JSON can express.
    def __init__(self, code: int, message: str, data: Any = None) -> None:
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
        return _unpickled, (type(self), self.code, self.message, self.data)


class RequestCancelled(RpcError):
    """The peer has cancelled the request (-32800): on request, or because it is closing."""


class ConnectionEnded(ConnectionError):
    """The connection has ended: a request was not answered, or can no longer be sent."""

    #: The code that a WebSocket was closed with; None without one.
    code: int | None = None


class FrameTooLong(ValueError):
    """A message to be sent is longer than the limit of the connection."""


def _unpickled(kind: type[RpcError], code: int, message: str, data: Any) -> RpcError:
    # Not `kind(code, message, data)`: subclasses may have an `__init__` with other arguments.
    error = kind.__new__(kind)
    RpcError.__init__(error, code, message, data)
    return error


def error_of(code: int, message: str, data: Any) -> RpcError:
    """Return what `request` raises for an error that the peer answered with."""
    kind = RequestCancelled if code == REQUEST_CANCELLED else RpcError
    return kind(code, message, data)
