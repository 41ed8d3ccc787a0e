"""A server of the official package mcp (1.x or 2.x) in this process, for one session.

Its `run()` is a child of a scope and talks over streams in memory; answers are matched to requests by id. The
server starts with the first message, and starts again with a new `initialize` if it has stopped. Requests
that it makes of its client (sampling, roots, elicitation) are refused at once, because the CLI takes none,
and its notifications are dropped.

A cancelled request returns here at once, without an answer. A server of mcp 2.x is told so. One of 1.x is
not: it would fail if its handler answered anyway, so there the handler runs to its end, unless the session
closes first.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import anyio

from quiesce import Scope
from quiesce._safe.printed import logger
from quiesce.wire.inner import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND

from .mcp_answers import error_answer

_STREAM_CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class OfficialServer:
    """A `mcp.server.Server` that takes and gives dicts."""

    def __init__(self, name: str, server: Any) -> None:
        self._name = name
        self._server = server
        self._run: _Run | None = None

    async def handle(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request; return None for a notification, an answer, or a cancelled request."""
        run, id = self._run, message.get("id")  # noqa: A001
        if run is None or (run.ended and message.get("method") == "initialize"):
            old, run = run, await _Run.start(self._name, self._server)
            self._run = run
            if old is not None:
                await old.close()
        if run.ended:
            return run.stopped_answer(id)
        if id is not None and id in run.waiting:
            return error_answer(id, INVALID_REQUEST, f"a request with the id {id!r} is still running")
        return await run.exchange(message)

    async def close(self) -> None:
        """Stop the server, and wait until it has cleaned up."""
        if self._run is not None:
            run, self._run = self._run, None
            await run.close()


class _Run:
    """One `run()` of the server, from its first message to its end."""

    def __init__(self, name: str, server: Any, scope: Scope) -> None:
        self.waiting: dict[Any, _Answer] = {}
        self.ended = False
        self.why = "its run() returned"
        self._name = name
        self._server = server
        self._scope = scope
        self._dialect = _Dialect()
        # Unbounded, so that sending never waits: a server that does not read must not hold up a task that is
        # being cancelled and has to pass that on.
        self._input, self._input_reader = anyio.create_memory_object_stream[Any](math.inf)
        self._output_writer, self._output = anyio.create_memory_object_stream[Any](math.inf)

    @classmethod
    async def start(cls, name: str, server: Any) -> _Run:
        scope = await Scope.open(f"mcp server {name}", on_error="report", on_child_error=_ignore)
        run = cls(name, server, scope)
        scope.spawn(run._serve)
        scope.spawn(run._listen)
        return run

    async def exchange(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Send the server a message; if it is a request, wait for the answer."""
        if message.get("method") == "notifications/cancelled":
            self._cancel((message.get("params") or {}).get("requestId"), message)
            return None
        id = message.get("id")  # noqa: A001
        try:
            parsed = self._dialect.parse(message)
        except ValueError as error:
            return error_answer(id, INVALID_REQUEST, f"not a JSON-RPC message: {error}")
        answer = None
        if id is not None and "method" in message:
            answer = self.waiting[id] = _Answer()
        self._send(parsed)
        if answer is None:
            return None
        try:
            await answer.ready.wait()
        except BaseException:  # this task was cancelled
            self._cancel(id, _cancelled(id))
            raise
        finally:
            if self.waiting.get(id) is answer:
                del self.waiting[id]
        return answer.message

    def stopped_answer(self, id: Any) -> dict[str, Any]:  # noqa: A002
        """Return the error for a request that a stopped server cannot answer."""
        return error_answer(id, INTERNAL_ERROR, f"the MCP server {self._name!r} has stopped: {self.why}")

    async def close(self) -> None:
        """Cancel it, and wait until it has cleaned up."""
        await self._scope.close(reason="the session is closed")
        self._end()

    async def _serve(self) -> None:
        try:
            await self._server.run(
                self._input_reader, self._output_writer, self._server.create_initialization_options()
            )
        except Exception as error:
            self.why = _innermost(error)
            if not (self._scope.token.cancelled and _is_only_closed_streams(error)):
                logger.exception("the MCP server %r failed", self._name)
        finally:
            # Only this end: `_listen` still has to read what the server wrote before.
            self._output_writer.close()

    async def _listen(self) -> None:
        try:
            async for item in self._output:
                self._receive(item)
        finally:
            self._end()

    def _receive(self, item: Any) -> None:
        if isinstance(item, Exception):
            return
        message = self._dialect.dump(item)
        answer = self.waiting.pop(message.get("id"), None) if "method" not in message else None
        if answer is not None:
            answer.give(message)
        elif "method" in message and "id" in message:
            self._send(self._dialect.parse(_refusal(message)))

    def _send(self, parsed: Any) -> None:
        try:
            self._input.send_nowait(parsed)
        except _STREAM_CLOSED:
            pass  # the server has stopped, and every request was answered with that

    def _cancel(self, id: Any, notification: dict[str, Any]) -> None:  # noqa: A002
        answer = self.waiting.get(id) if isinstance(id, int | str) else None
        if answer is None:
            return
        if self._dialect.cancels:
            self._send(self._dialect.parse(notification))
        # `waiting` keeps the id until the task that waits has taken it out: a new request with the same id
        # must not get the late answer to this one.
        answer.give(None)

    def _end(self) -> None:
        self.ended = True
        for stream in (self._input, self._input_reader, self._output_writer, self._output):
            stream.close()
        for id, answer in self.waiting.items():  # noqa: A001
            answer.give(self.stopped_answer(id))


class _Answer:
    """Holds the answer to a request once it has arrived; the first one counts."""

    __slots__ = ("message", "ready")

    def __init__(self) -> None:
        self.ready = anyio.Event()
        self.message: dict[str, Any] | None = None

    def give(self, message: dict[str, Any] | None) -> None:
        if not self.ready.is_set():
            self.message = message
            self.ready.set()


class _Dialect:
    """The differences between mcp 1.x and 2.x."""

    def __init__(self) -> None:
        from mcp.shared.message import SessionMessage

        types: Any = import_module("mcp.types")
        adapter = getattr(types, "jsonrpc_message_adapter", None)
        self.cancels = adapter is not None  # only 2.x survives a notice of cancellation
        self._wrap = SessionMessage
        self._read = adapter.validate_python if adapter is not None else types.JSONRPCMessage.model_validate

    def parse(self, message: dict[str, Any]) -> Any:
        return self._wrap(self._read(message))

    def dump(self, item: Any) -> dict[str, Any]:
        message: dict[str, Any] = item.message.model_dump(by_alias=True, mode="json", exclude_none=True)
        return message


def _refusal(request: dict[str, Any]) -> dict[str, Any]:
    if request["method"] == "ping":
        return {"jsonrpc": "2.0", "id": request["id"], "result": {}}
    return error_answer(
        request["id"],
        METHOD_NOT_FOUND,
        f"{request['method']}: the CLI takes no requests from a server in this process",
    )


def _cancelled(id: Any) -> dict[str, Any]:  # noqa: A002
    params = {"requestId": id, "reason": "the task that waited for it was cancelled"}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _is_only_closed_streams(error: Exception) -> bool:
    """Return whether the server failed only because a stop closed its streams."""
    if isinstance(error, ExceptionGroup):
        return error.split(_STREAM_CLOSED)[1] is None
    return isinstance(error, _STREAM_CLOSED)


def _ignore(handle: object, error: BaseException) -> None:
    """Do nothing: `_serve` has logged the error."""
