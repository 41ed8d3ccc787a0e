"""The common part of both ends of an ACP connection: a peer, typed requests, opening and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import Raw, Struct

from quiesce._safe.printed import logger
from quiesce.acp.exceptions import RequestCancelledError, RequestError
from quiesce.acp.protocol import Method, decode, encode, handler_of
from quiesce.kernel.inner import current_backend
from quiesce.wire import Limits, Notification, Peer, Request, RequestCancelled, RpcError, Transport
from quiesce.wire.inner import Late, as_transport, connection_of

from .observers import Observer, tap_for

if TYPE_CHECKING:
    from quiesce import Grace, Reason, Scope, StopReport

T = TypeVar("T")


class Side:
    """One end of a connection; its holder uses it as if it were the other end."""

    _peer: Peer

    def _connect(
        self,
        target: object,
        transport: Transport,
        requests: Mapping[str, Request],
        notifications: Mapping[str, Notification],
        *,
        listening: bool,
        observers: Iterable[Observer] | None,
        name: str,
        limits: Limits | None,
        grace: Grace | None,
        scope: Scope | None,
        on_disconnect: Callable[[Reason], object] | None = None,
    ) -> None:
        self._target = target
        # Those of the other side, known after `initialize`.
        self._capabilities: Any = None
        self._peer = Peer(
            transport,
            requests,
            notifications=notifications,
            on_request=self._extension_request,
            on_notification=self._extension_notification,
            name=name,
            limits=limits,
            tap=tap_for(observers),
            grace=grace,
            scope=scope,
        )
        self._connection = connection_of(self._peer)
        self._connection.on_disconnect = on_disconnect
        on_connect = getattr(target, "on_connect", None)
        if callable(on_connect):
            on_connect(self)
        # Constructing a connection outside an event loop is allowed; then `listening` takes effect with the
        # first use.
        if listening and _in_event_loop():
            self._peer.start()

    # Opening and closing

    async def __aenter__(self) -> Self:
        self._ensure_started()
        await self._peer.wait_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._peer.__aexit__(kind, error, traceback)

    def _ensure_started(self) -> None:
        if not self._connection.started:
            self._peer.start()

    async def listen(self) -> None:
        """Serve the connection until it ends, on either side; if you are cancelled, it is closed."""
        self._ensure_started()
        try:
            await self._peer.wait_closed()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        # Raises the error if the connection could not be opened.
        await self.__aexit__(None, None, None)

    async def wait_closed(self) -> StopReport:
        """Wait until the connection has ended, on either side, and return the report."""
        self._ensure_started()
        return await self._peer.wait_closed()

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Close the connection, from any task, and return the report.

        Requests that are being handled are cancelled and answered, your own pending requests fail, and
        nothing is left over.
        """
        self._ensure_started()
        return await self._peer.close(deadline=deadline, grace=grace, reason=reason)

    @property
    def closed(self) -> bool:
        """Whether the connection has ended or is ending."""
        return self._peer.closed

    @property
    def error(self) -> BaseException | None:
        """The error that broke the connection; None if none did."""
        return self._peer.error

    @property
    def report(self) -> StopReport | None:
        """The report of the last `close()`; None before that."""
        return self._peer.report

    # Requests and notifications to the other side

    async def _send(
        self,
        method: Method,
        params: Struct,
        result: type[T],
        *,
        lane: str | None = None,
        late: Late | None = None,
    ) -> T:
        self._check_capability(method)
        self._ensure_started()
        name = method.name
        value: T = await self._call(
            name, Raw(encode(params)), lambda raw: _read_result(raw, result, name), lane, late
        )
        return value

    async def _call(
        self,
        name: str,
        params: Any,
        decode: Any = None,
        lane: str | None = None,
        late: Late | None = None,
    ) -> Any:
        try:
            return await self._connection.calls.call(name, params, lane, decode, self._peer, late)
        except RequestError:
            raise
        except RpcError as error:
            if isinstance(error, RequestCancelled):
                # If the caller's own cancellation withdrew the request, the caller gets that instead of this
                # error.
                await checkpoint_if_cancelled()
            # Users of agent-client-protocol catch `RequestError`, users of quiesce.wire `RequestCancelled`:
            # be both.
            kind = RequestCancelledError if isinstance(error, RequestCancelled) else RequestError
            raise kind(error.code, error.message, error.data) from None

    async def _send_notification(self, name: str, params: Struct) -> None:
        self._ensure_started()
        await self._connection.sender.notify(name, Raw(encode(params)))

    def _check_capability(self, method: Method) -> None:
        # Before `initialize` nothing is known about the other side, and the request may well be answered.
        if method.capability is None or self._capabilities is None:
            return
        value: Any = self._capabilities
        for step in method.capability.split("."):
            value = getattr(value, step, None)
        if value is None or value is False:
            side = type(self).__name__.replace("SideConnection", "").lower()
            other = "client" if side == "agent" else "agent"
            raise RequestError(
                -32601,
                f"{method.name!r} was not sent: the {other} has not announced the capability {method.capability}",
                {"method": method.name},
            )

    async def ext_method(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request that is not part of the protocol; its name on the wire is `_method`."""
        self._ensure_started()
        return await self._call(f"_{method}", params)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification that is not part of the protocol; its name on the wire is `_method`."""
        self._ensure_started()
        await self._connection.sender.notify(f"_{method}", params)

    async def _extension_request(self, method: str, params: Any) -> Any:
        handler = handler_of(self._target, "ext_method") if method.startswith("_") else None
        if handler is None:
            raise RequestError.method_not_found(method)
        result = await handler(method[1:], params if isinstance(params, dict) else {})
        return Raw(encode(result)) if isinstance(result, Struct) else result

    async def _extension_notification(self, method: str, params: Any) -> None:
        handler = handler_of(self._target, "ext_notification") if method.startswith("_") else None
        if handler is None:
            logger.debug("no handler for the notification %r", method)
        else:
            await handler(method[1:], params if isinstance(params, dict) else {})


def target_of(target: Any, side: Side) -> Any:
    """Return the agent or client: `target` itself, or the result of calling it with its connection."""
    return target(side) if callable(target) else target


def transport_of(input_stream: object, output_stream: object) -> Transport:
    """Return the transport for the arguments of a connection: two streams, or a transport itself."""
    if output_stream is None:
        return as_transport(input_stream)
    if isinstance(input_stream, asyncio.StreamReader) and isinstance(output_stream, asyncio.StreamWriter):
        raise TypeError(
            "the streams are the wrong way round: pass the StreamWriter first, then the StreamReader"
        )
    if isinstance(input_stream, asyncio.StreamWriter) and isinstance(output_stream, asyncio.StreamReader):
        from quiesce.wire import AsyncioStreams

        return AsyncioStreams(output_stream, input_stream)
    from anyio.abc import ByteReceiveStream, ByteSendStream
    from anyio.streams.stapled import StapledByteStream

    if isinstance(input_stream, ByteSendStream) and isinstance(output_stream, ByteReceiveStream):
        from quiesce.wire import AnyioStream

        return AnyioStream(StapledByteStream(input_stream, output_stream))
    raise TypeError(
        "pass a Transport, or an asyncio.StreamWriter and StreamReader, or an anyio send and receive stream; "
        f"not {type(input_stream).__name__} and {type(output_stream).__name__}"
    )


def _read_result(result: Raw, kind: Any, name: str) -> Any:
    # Some peers answer with nothing or null where the schema has an empty object.
    if not result or bytes(result) == b"null":
        result = Raw(b"{}")
    try:
        return decode(result, kind, method=name)
    except ValueError as error:
        raise RequestError.internal_error(
            {"details": f"the answer to {name} does not conform to the protocol: {error}"}
        ) from error


def _in_event_loop() -> bool:
    try:
        current_backend()
    except RuntimeError:
        return False
    return True
