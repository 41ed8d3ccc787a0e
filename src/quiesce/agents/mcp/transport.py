"""The two ways to an MCP server, as pairs of streams for the official client's `ClientSession` (mcp 1.x and 2.x).

Over stdio the server is a `quiesce.Process`: it and all that it has started are ended by its ladder (end of input, SIGTERM, SIGKILL), and the
last of its stderr explains why it has ended. What is sent is queued without a bound and written by a task of its own, so that nobody waits
for a server that does not read: least of all who is being cancelled and says so to it. Over HTTP the transport is the official one.

When the server is gone both streams close at once: every request that waits fails, and no later one is ever left to wait.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

import anyio

from quiesce import Grace, LineTooLong, PipeClosed, Process

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, BrokenPipeError, PipeClosed)


@asynccontextmanager
async def stdio_streams(process: Process) -> AsyncIterator[tuple[Any, Any]]:
    """Start the server; gives what it says and what it is told, and ends it."""
    parse, dump = _codec()
    said_writer, said = anyio.create_memory_object_stream[Any](0)
    told, told_reader = anyio.create_memory_object_stream[Any](math.inf)

    def gone() -> None:
        said_writer.close()
        told_reader.close()

    async def listen() -> None:
        lines = process.lines()
        try:
            while True:
                try:
                    message = parse(await anext(lines))
                except StopAsyncIteration:
                    break
                except LineTooLong as error:
                    message = error
                await said_writer.send(message)
        except _GONE:
            pass
        finally:
            gone()

    async def tell() -> None:
        try:
            async for message in told_reader:
                await process.write(dump(message))
        except _GONE:
            pass
        finally:
            gone()

    try:
        async with process, anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            tasks.start_soon(tell)
            yield said, told
            tasks.cancel_scope.cancel()
    finally:
        for stream in (said, said_writer, told, told_reader):
            stream.close()


def server_process(
    params: Mapping[str, Any], name: str, on_stderr: Callable[[bytes], object] | None, grace: Grace | None
) -> Process:
    """The server's process, not started yet. As the protocol advises, it gets few of our environment variables."""
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
        said, told, *_ = await stack.enter_async_context(opened)
        yield said, told


def _http_client(params: Mapping[str, Any]) -> Any:
    utils: Any = import_module("mcp.shared._httpx_utils")
    make = params.get("httpx_client_factory") or utils.create_mcp_http_client
    timeout = None
    if "timeout" in params or "sse_read_timeout" in params:
        library = getattr(utils, "httpx2", None) or utils.httpx  # 2.x and 1.x
        timeout = library.Timeout(params.get("timeout", 30), read=params.get("sse_read_timeout", 300))
    return make(headers=params.get("headers"), timeout=timeout, auth=params.get("auth"))


def _codec() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    """How a line becomes a message and the other way round, in the major that is installed."""
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
        except (
            ValueError
        ) as error:  # a server that prints; the session shows it to whoever handles its messages
            return error

    def dump(message: Any) -> bytes:
        return message.message.model_dump_json(by_alias=True, **left_out).encode() + b"\n"  # type: ignore[no-any-return]

    return parse, dump
