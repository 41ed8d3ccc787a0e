"""Sessions that any task may close while others use them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

import anyio
import mcp
from mcp.types import CONNECTION_CLOSED, ErrorData, JSONRPCError

from quiesce.dropin.handing import replaces
from quiesce.dropin.owned import OwnedClass


@replaces(mcp.ClientSession)
class ClientSession(OwnedClass, mcp.ClientSession):
    """A session that any task may close. Requests that wait for their answer then raise "Connection closed"."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._holding is not None
        self._holding.when_ended(self._answer_requests)
        return self

    def _answer_requests(self) -> None:
        """Answer what still waits. mcp 1.x means to, but cannot when it is being closed; 2.x does it itself."""
        waiting: dict[Any, Any] = getattr(self, "_response_streams", {})
        for number, stream in list(waiting.items()):
            error = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")
            with suppress(anyio.WouldBlock, anyio.BrokenResourceError):  # answered; not waiting any more
                stream.send_nowait(JSONRPCError(jsonrpc="2.0", id=number, error=error))
