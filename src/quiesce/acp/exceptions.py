"""The errors that a handler answers with, under the names that users of agent-client-protocol know."""

from __future__ import annotations

from typing import Any, Self

from quiesce.wire import RequestCancelled, RpcError
from quiesce.wire.inner import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_CANCELLED,
)

__all__ = ["RequestError"]

AUTH_REQUIRED = -32000
RESOURCE_NOT_FOUND = -32002


class RequestError(RpcError):
    """An error for the peer: if a handler raises it, it is sent as the answer to the request.

    ```python
    raise RequestError.invalid_params({"sessionId": "there is no such session"})
    ```
    """

    @classmethod
    def parse_error(cls, data: dict[str, Any] | None = None) -> Self:
        """-32700: the message is not JSON."""
        return cls(PARSE_ERROR, "Parse error", data)

    @classmethod
    def invalid_request(cls, data: dict[str, Any] | None = None) -> Self:
        """-32600: the message is not a request, or not one that can be answered now."""
        return cls(INVALID_REQUEST, "Invalid request", data)

    @classmethod
    def method_not_found(cls, method: str) -> Self:
        """-32601: this side does not have the method."""
        return cls(METHOD_NOT_FOUND, "Method not found", {"method": method})

    @classmethod
    def invalid_params(cls, data: dict[str, Any] | None = None) -> Self:
        """-32602: the parameters do not fit the method."""
        return cls(INVALID_PARAMS, "Invalid params", data)

    @classmethod
    def internal_error(cls, data: dict[str, Any] | None = None) -> Self:
        """-32603: the handler failed."""
        return cls(INTERNAL_ERROR, "Internal error", data)

    @classmethod
    def request_cancelled(cls, data: dict[str, Any] | None = None) -> Self:
        """-32800: the handler was cancelled."""
        return cls(REQUEST_CANCELLED, "Request cancelled", data)

    @classmethod
    def auth_required(cls, data: dict[str, Any] | None = None) -> Self:
        """-32000: the client has to `authenticate` first."""
        return cls(AUTH_REQUIRED, "Authentication required", data)

    @classmethod
    def resource_not_found(cls, uri: str | None = None) -> Self:
        """-32002: the file, session or other resource does not exist."""
        return cls(RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri} if uri is not None else None)

    def to_error_obj(self) -> dict[str, Any]:
        """Return the `error` member of a JSON-RPC answer."""
        return {"code": self.code, "message": self.message, "data": self.data}


class RequestCancelledError(RequestError, RequestCancelled):
    """The answer was -32800: the other side cancelled the request."""
