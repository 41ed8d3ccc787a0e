"""The common part of the models on official clients: one call, from the request to the last event.

Invariants
- The call runs in an owner task (`quiesce.stream`), which is cancelled once and then drained, no matter how often the
  consumer of the answer is cancelled. So the HTTP library's own clean-up is never interrupted.
- The official client's own retries are disabled. Ours stop at the first event; see `retry`.
- The whole call, retries and pauses included, has one deadline; see `deadline`.
- Every error is a `ModelError`, and its cause is the exception that the client raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio

from quiesce import stream
from quiesce.models.words import ModelError, ModelEvent, ModelRequest

from .deadline import CallDeadline
from .errors import Endpoint, translate
from .exchange import Exchange
from .own_clients import OwnClients
from .reader import Reader
from .retry import Retries


class ProviderModel(ABC):
    """A model behind an official client; `closes` tells whether the HTTP clients that it makes are its own to close."""

    path: str

    def __init__(self, model: str, name: str | None, client: Any, *, closes: bool) -> None:
        if not isinstance(model, str) or not model:
            raise TypeError(f"a model is named by a str, such as 'gpt-5', not {model!r}")
        self.model = model
        self._name = name or model
        self._user_client = client
        self._own_clients = OwnClients(self._make_client, closes)

    @property
    def name(self) -> str:
        """The name of the model in errors and reports."""
        return self._name

    @abstractmethod
    def _make_client(self, keeps_connections: bool) -> Any:
        """Make an official client that pools connections, or one that does not."""

    @abstractmethod
    def _endpoint(self, client: Any) -> Endpoint:
        """Describe the server for errors; `client` is None if no client could be made."""

    @abstractmethod
    def _body(self, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
        """Return the JSON body of the request, in the provider's format."""

    @abstractmethod
    def _reader(self, request: ModelRequest, endpoint: Endpoint) -> Reader:
        """Return a reader for one answer."""

    def _opened(self, client: Any, exchange: Exchange) -> AbstractAsyncContextManager[Callable[[], object]]:
        """Send the request. The block gets a function to call when the answer is complete.

        What the provider works at without a connection has ended when the block exits.
        """
        return _opened(exchange)

    @property
    @abstractmethod
    def _stream_class(self) -> Any:
        """The class that the official client wraps around a streamed response."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer one request, as an async generator of events that ends with `ResponseDone`."""
        deadline = CallDeadline(request.settings.timeout, self._name)
        async with stream(self._answer(request, deadline), name=f"answer of {self._name}") as answer:
            events = aiter(answer)
            while True:
                try:
                    event = await deadline.wait_for(events.__anext__)
                except StopAsyncIteration:
                    return
                yield event

    async def _answer(
        self, request: ModelRequest, deadline: CallDeadline
    ) -> AsyncGenerator[ModelEvent, None]:
        settings = request.settings
        retries = Retries(settings.max_retries)
        client, endpoint = self._client()
        body = self._body(request, endpoint)
        if settings.extra:
            body.update(settings.extra)
        while True:
            exchange, any_events = Exchange(partial(self._post, client, body), endpoint), False
            try:
                reader = self._reader(request, endpoint)
                async with self._opened(client, exchange) as completed:
                    while not reader.is_complete and (events := await exchange.read()) is not None:
                        for kind, text in events:
                            for event in reader.read(kind, text):
                                any_events = True
                                yield event
                    if reader.is_complete:
                        completed()
                    await exchange.end()
                for event in reader.end():
                    any_events = True
                    yield event
                return
            except ModelError as error:
                # The consumer has seen a part of this answer; a second attempt would repeat or contradict it.
                pause = None if any_events else retries.pause(error, deadline.remaining())
                if pause is None:
                    raise
            finally:
                await exchange.release()
            # Not inside the `except`: the connection is released before the pause, not after it.
            await anyio.sleep(pause)

    def _client(self) -> tuple[Any, Endpoint]:
        if self._user_client is not None:
            return self._user_client, self._endpoint(self._user_client)
        try:
            client = self._own_clients.current()
        except ImportError:
            # A package is missing (for a SOCKS proxy, say), and the message already names it.
            raise
        except Exception as error:
            raise translate(error, self._endpoint(None)) from error
        return client, self._endpoint(client)

    async def _post(self, client: Any, body: dict[str, Any]) -> Any:
        # The client's generic method, not the typed one of its resource: we parse the events ourselves, because other
        # servers deviate from the official types.
        streamed = await client.post(
            self.path,
            cast_to=object,
            body=body,
            options={"max_retries": 0},
            stream=True,
            stream_cls=self._stream_class,
        )
        return streamed.response

    async def __aenter__(self) -> Self:
        self._own_clients.hold()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._own_clients.release()

    async def close(self) -> None:
        """Close the connections that `async with` keeps in this event loop; a client that you passed in stays open.

        Calls in progress then fail; a later call makes new connections.
        """
        await self._own_clients.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


@asynccontextmanager
async def _opened(exchange: Exchange) -> AsyncGenerator[Callable[[], object], None]:
    await exchange.open()
    yield lambda: None
