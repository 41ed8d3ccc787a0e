"""A server of the official package mcp (1.x or 2.x) in this process, for one session.

Its `run` is a child of a scope, with streams in memory; answers find their requests by id. It starts with the first message, and again with a new
`initialize` if it has ended. What it asks of its client (sampling, roots, elicitation) is refused at once, as the CLI takes no such requests, and
what it tells unasked is dropped.

A request that was cancelled is given up here at once, with no answer. The server is told so if it is of 2.x; one of 1.x would fail if its
handler answers all the same, so there the handler runs to its end, unless the session ends first.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import anyio

from quiesce import Scope
from quiesce._safe.printed import logger

from .in_process_server import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, error_answer

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class OfficialServer:
    """A `mcp.server.Server`, spoken to by dicts."""

    def __init__(self, name: str, server: Any, *, scope: Scope | None = None) -> None:
        self._name = name
        self._server = server
        self._owner = scope
        self._run: _Run | None = None

    async def handle(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a request; None to a notification, to an answer, and to a request that was cancelled meanwhile."""
        run, id = self._run, message.get("id")  # noqa: A001
        if run is None or (run.ended and message.get("method") == "initialize"):
            old, run = run, await _Run.start(self._name, self._server, self._owner)
            self._run = run
            if old is not None:
                await old.close()
        if run.ended:
            return error_answer(id, INTERNAL_ERROR, f"the MCP server {self._name!r} has stopped: {run.why}")
        if id is not None and id in run.waiting:
            return error_answer(
                id, INVALID_REQUEST, f"the id {id!r} is that of a request which is still at work"
            )
        return await run.exchange(message)

    async def close(self) -> None:
        """End the server, and wait until it has cleaned up."""
        if self._run is not None:
            run, self._run = self._run, None
            await run.close()


class _Run:
    """One `run` of the server, from its first message to its end."""

    def __init__(self, name: str, server: Any, scope: Scope) -> None:
        self.waiting: dict[Any, _Answer] = {}
        self.ended = False
        self.why = "its run() returned"
        self._name = name
        self._server = server
        self._scope = scope
        self._dialect = _Dialect()
        # Without a bound: nobody waits for a server that does not read, least of all who is being cancelled.
        self._told, self._told_reader = anyio.create_memory_object_stream[Any](math.inf)
        self._said_writer, self._said = anyio.create_memory_object_stream[Any](math.inf)

    @classmethod
    async def start(cls, name: str, server: Any, owner: Scope | None) -> _Run:
        scope = await Scope.open(
            f"mcp server {name}", on_error="report", on_child_error=_told_already, scope=owner
        )
        run = cls(name, server, scope)
        scope.spawn(run._serve)
        scope.spawn(run._listen)
        return run

    async def exchange(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Give the server a message, and wait for the answer if it is due one."""
        if message.get("method") == "notifications/cancelled":
            self._give_up((message.get("params") or {}).get("requestId"), message)
            return None
        id = message.get("id")  # noqa: A001
        try:
            parsed = self._dialect.parse(message)
        except ValueError as error:
            return error_answer(id, INVALID_REQUEST, f"not a message of JSON-RPC: {error}")
        answer = None
        if id is not None and "method" in message:
            answer = self.waiting[id] = _Answer()
        self._tell(parsed)
        if answer is None:
            return None
        try:
            await answer.there.wait()
        except BaseException:  # whoever waited was cancelled
            self._give_up(id, _cancelled(id))
            raise
        finally:
            if self.waiting.get(id) is answer:
                del self.waiting[id]
        return answer.said

    async def close(self) -> None:
        """Cancel it, and wait until it has cleaned up."""
        await self._scope.close(reason="the session is over")
        self._end()

    async def _serve(self) -> None:
        try:
            await self._server.run(
                self._told_reader, self._said_writer, self._server.create_initialization_options()
            )
        except Exception as error:
            self.why = _innermost(error)
            if not (self._scope.token.cancelled and _is_of_the_end(error)):
                logger.exception("the MCP server %r failed", self._name)
        finally:
            self._said_writer.close()  # what it said before is still heard

    async def _listen(self) -> None:
        try:
            async for item in self._said:
                self._hear(item)
        finally:
            self._end()

    def _hear(self, item: Any) -> None:
        if isinstance(item, Exception):
            return
        said = self._dialect.dump(item)
        answer = self.waiting.pop(said.get("id"), None) if "method" not in said else None
        if answer is not None:
            answer.give(said)
        elif "method" in said and "id" in said:
            self._tell(self._dialect.parse(_refusal(said)))

    def _tell(self, parsed: Any) -> None:
        try:
            self._told.send_nowait(parsed)
        except _GONE:
            pass  # it has ended, and so has every request

    def _give_up(self, id: Any, told: dict[str, Any]) -> None:  # noqa: A002
        answer = self.waiting.get(id) if isinstance(id, int | str) else None
        if answer is None:
            return
        if self._dialect.cancels:
            self._tell(self._dialect.parse(told))
        answer.give(None)  # the id stays taken until whoever waits has gone

    def _end(self) -> None:
        self.ended = True
        for stream in (self._told, self._told_reader, self._said_writer, self._said):
            stream.close()
        for id, answer in self.waiting.items():  # noqa: A001  # who waits takes itself off the list
            answer.give(
                error_answer(id, INTERNAL_ERROR, f"the MCP server {self._name!r} has stopped: {self.why}")
            )


class _Answer:
    """Where the answer to a request will be; the first one counts."""

    __slots__ = ("said", "there")

    def __init__(self) -> None:
        self.there = anyio.Event()
        self.said: dict[str, Any] | None = None

    def give(self, said: dict[str, Any] | None) -> None:
        if not self.there.is_set():
            self.said = said
            self.there.set()


class _Dialect:
    """What the two majors of the package do differently."""

    def __init__(self) -> None:
        from mcp.shared.message import SessionMessage

        types: Any = import_module("mcp.types")
        adapter = getattr(types, "jsonrpc_message_adapter", None)
        self.cancels = adapter is not None  # 2.x
        self._wrap = SessionMessage
        self._read = adapter.validate_python if adapter is not None else types.JSONRPCMessage.model_validate

    def parse(self, message: dict[str, Any]) -> Any:
        return self._wrap(self._read(message))

    def dump(self, item: Any) -> dict[str, Any]:
        said: dict[str, Any] = item.message.model_dump(by_alias=True, mode="json", exclude_none=True)
        return said


def _refusal(request: dict[str, Any]) -> dict[str, Any]:
    if request["method"] == "ping":
        return {"jsonrpc": "2.0", "id": request["id"], "result": {}}
    return error_answer(
        request["id"],
        METHOD_NOT_FOUND,
        f"{request['method']}: the CLI takes no requests from a server in this process",
    )


def _cancelled(id: Any) -> dict[str, Any]:  # noqa: A002
    params = {"requestId": id, "reason": "nobody waits for it any more"}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _is_of_the_end(error: Exception) -> bool:
    """Whether it is only that nobody hears it any more."""
    if isinstance(error, ExceptionGroup):
        return error.split(_GONE)[1] is None
    return isinstance(error, _GONE)


def _told_already(handle: object, error: BaseException) -> None:
    """The run has told it, or its end did."""
