"""What servers in this process are asked, by the ids that JSON-RPC has for it.

`notifications/cancelled` names a request by such an id, and counts as soon as it comes. Each message has a task of its own, and nobody knows in which
order those begin (trio shuffles them): the task of a notice may be there before that of the request which came first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce import Reason
from quiesce.kernel.inner import when_ended

if TYPE_CHECKING:
    from quiesce import Handle


class McpCalls:
    """The requests at work, of all servers of one session."""

    def __init__(self) -> None:
        self._handles: dict[tuple[str, int | str], Handle] = {}

    def came(self, request: dict[str, Any], handle: Handle) -> None:
        """An `mcp_message` has come, and `handle` works on it."""
        name, message = str(request.get("server_name")), request.get("message")
        if not isinstance(message, dict):
            return
        if message.get("method") == "notifications/cancelled":
            self._give_up(name, message.get("params"))
            return
        id = message.get("id")  # noqa: A001
        if isinstance(id, int | str) and (name, id) not in self._handles:
            self._handles[name, id] = handle
            when_ended(handle, partial(self._handles.pop, (name, id)))

    def _give_up(self, name: str, params: Any) -> None:
        if not isinstance(params, dict):
            return
        id = params.get("requestId")  # noqa: A001
        handle = self._handles.get((name, id)) if isinstance(id, int | str) else None
        if handle is not None:  # else it is over already, or nobody's
            handle.cancel(Reason("user", str(params.get("reason") or "the CLI gave it up")))
