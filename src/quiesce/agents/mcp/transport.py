"""The two ways to an MCP server, as pairs of streams for the `ClientSession` of the official client.

Over stdio the server is a `quiesce.Process`: it and everything that it has started are stopped by its ladder
(end of input, SIGTERM, SIGKILL), and the end of its stderr explains why it exited. Messages are queued
without a bound and written by a task of their own, so that no one waits for a server that does not read, and
least of all a task that is being cancelled and tells the server so. Over HTTP the transport is the official
one.

When the server disconnects, both streams close at once: every request that waits fails, and so does every
later one.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

import anyio

from quiesce import Grace, LineTooLong, PipeClosed, Process

_DISCONNECTED = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    BrokenPipeError,
    PipeClosed,
)


@asynccontextmanager
async def stdio_streams(process: Process) -> AsyncIterator[tuple[Any, Any]]:
    """Start the server, give the streams to and from it, and stop it at the end of the block."""
    parse, dump = _codec()
    received_writer, received = anyio.create_memory_object_stream[Any](0)
    # Without a bound: see above.
    to_send, to_send_reader = anyio.create_memory_object_stream[Any](math.inf)

    def close_both() -> None:
        received_writer.close()
        to_send_reader.close()

    async def receive() -> None:
        lines = process.lines()
        try:
            while True:
                try:
                    message = parse(await anext(lines))
                except StopAsyncIteration:
                    break
                except LineTooLong as error:
                    message = error
                await received_writer.send(message)
        except _DISCONNECTED:
            pass
        finally:
            close_both()

    async def send() -> None:
        try:
            async for message in to_send_reader:
                await process.write(dump(message))
        except _DISCONNECTED:
            pass
        finally:
            close_both()

    try:
        async with process, anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            tasks.start_soon(send)
            yield received, to_send
            tasks.cancel_scope.cancel()
    finally:
        for stream in (received, received_writer, to_send, to_send_reader):
            stream.close()


def server_process(
    params: Mapping[str, Any], name: str, on_stderr: Callable[[bytes], object] | None, grace: Grace | None
) -> Process:
    """The server's process, not started yet. As the protocol advises, it gets few environment variables."""
    from mcp.client.stdio import get_default_environment

    return Process(
        [params["command"], *params.get("args", ())],
        env={**get_default_environment(), **(params.get("env") or {})},
        cwd=params.get("cwd"),
        stdin="pipe",
        on_stderr=on_stderr,
        name=name,
        grace=grace,
    )


@asynccontextmanager
async def http_streams(params: Mapping[str, Any]) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to a server over streamable HTTP."""
    streamable_http: Any = import_module("mcp.client.streamable_http")
    connect: Any = getattr(streamable_http, "streamable_http_client", None)
    ends = {"terminate_on_close": params.get("terminate_on_close", True)}
    async with AsyncExitStack() as stack:
        if connect is not None:
            client = await stack.enter_async_context(_http_client(params))
            opened = connect(params["url"], http_client=client, **ends)
        else:  # before 1.24
            limits = {name: params[name] for name in ("timeout", "sse_read_timeout") if name in params}
            opened = streamable_http.streamablehttp_client(
                params["url"], headers=params.get("headers"), auth=params.get("auth"), **limits, **ends
            )
        received, to_send, *_ = await stack.enter_async_context(opened)
        yield received, to_send


def _http_client(params: Mapping[str, Any]) -> Any:
    utils: Any = import_module("mcp.shared._httpx_utils")
    make = params.get("httpx_client_factory") or utils.create_mcp_http_client
    timeout = None
    if "timeout" in params or "sse_read_timeout" in params:
        library = getattr(utils, "httpx2", None) or utils.httpx  # 2.x and 1.x
        timeout = library.Timeout(params.get("timeout", 30), read=params.get("sse_read_timeout", 300))
    return make(headers=params.get("headers"), timeout=timeout, auth=params.get("auth"))


def _codec() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    """Functions that turn a line into a message and back, in the version that is installed."""
    from mcp.shared.message import SessionMessage

    types: Any = import_module("mcp.types")
    adapter = getattr(types, "jsonrpc_message_adapter", None)
    if adapter is not None:  # 2.x
        read, left_out = adapter.validate_json, {"exclude_unset": True}
    else:
        read, left_out = types.JSONRPCMessage.model_validate_json, {"exclude_none": True}

    def parse(line: bytes) -> Any:
        try:
            return SessionMessage(read(line))
        except ValueError as error:
            # Something that the server has printed. The session passes it to its message handler.
            return error

    def dump(message: Any) -> bytes:
        return message.message.model_dump_json(by_alias=True, **left_out).encode() + b"\n"  # type: ignore[no-any-return]

    return parse, dump
