"""The open requests to servers in this process, by their JSON-RPC ids.

`notifications/cancelled` names a request by such an id, and takes effect as soon as it arrives. This table is
needed although each server has one of its own: every message is handled in its own task, and trio starts
tasks in random order, so the task of a notification may run before the task of the request that arrived
first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce import Reason
from quiesce.kernel.inner import when_ended

if TYPE_CHECKING:
    from quiesce import Handle


class McpCalls:
    """The open requests of all servers of one session."""

    def __init__(self) -> None:
        self._handles: dict[tuple[str, int | str], Handle] = {}

    def add(self, request: dict[str, Any], handle: Handle) -> None:
        """Note that `handle` works on this `mcp_message`; a notice of cancellation cancels its request."""
        name, message = str(request.get("server_name")), request.get("message")
        if not isinstance(message, dict):
            return
        if message.get("method") == "notifications/cancelled":
            self._cancel(name, message.get("params"))
            return
        id = message.get("id")  # noqa: A001
        if isinstance(id, int | str) and (name, id) not in self._handles:
            self._handles[name, id] = handle
            when_ended(handle, partial(self._handles.pop, (name, id)))

    def _cancel(self, name: str, params: Any) -> None:
        if not isinstance(params, dict):
            return
        id = params.get("requestId")  # noqa: A001
        handle = self._handles.get((name, id)) if isinstance(id, int | str) else None
        if handle is not None:  # otherwise it has ended, or there never was one
            handle.cancel(Reason("user", str(params.get("reason") or "the CLI cancelled the call")))
