"""What the models on the official clients have in common: one call, from the request to the last event.

Invariants
- The call runs in an owner task (`quiesce.stream`), which is cancelled once and drained, however often whoever consumes the answer is
  cancelled: so the HTTP library's own clean-up is never cut.
- The official client's own retries are off. Ours end with the first event; see `retry`.
- The whole call, tries and pauses included, has one deadline; see `deadline`.
- What is raised is a `ModelError`, and its cause is what the client raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
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
    """A model behind an official client."""

    path: str

    def __init__(self, model: str, name: str | None, client: Any, *, closes: bool) -> None:
        if not isinstance(model, str) or not model:
            raise TypeError(f"a model is named by a str, such as 'gpt-5', not {model!r}")
        self.model = model
        self._name = name or model
        self._given = client
        self._own = OwnClients(self._make_client, closes)

    @property
    def name(self) -> str:
        """What it is called in errors and reports."""
        return self._name

    @abstractmethod
    def _make_client(self, keeps_connections: bool) -> Any:
        """A client of our own."""

    @abstractmethod
    def _endpoint(self, client: Any) -> Endpoint:
        """Who is asked; None for a client that could not be made."""

    @abstractmethod
    def _body(self, request: ModelRequest, at: Endpoint) -> dict[str, Any]:
        """The request, as its API wants it."""

    @abstractmethod
    def _reader(self, request: ModelRequest, at: Endpoint) -> Reader:
        """Who reads the answer."""

    @property
    @abstractmethod
    def _stream_class(self) -> Any:
        """What the client makes of a streamed response."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer one request."""
        deadline = CallDeadline(request.settings.timeout, self._name)
        async with stream(self._answer(request, deadline), name=f"answer of {self._name}") as answer:
            events = aiter(answer)
            while True:
                try:
                    event = await deadline.hold(events.__anext__)
                except StopAsyncIteration:
                    return
                yield event

    async def _answer(
        self, request: ModelRequest, deadline: CallDeadline
    ) -> AsyncGenerator[ModelEvent, None]:
        settings = request.settings
        retries = Retries(settings.max_retries)
        client, at = self._client()
        body = self._body(request, at)
        if settings.extra:
            body.update(settings.extra)
        while True:
            exchange, begun = Exchange(partial(self._post, client, body), at), False
            try:
                reader = self._reader(request, at)
                await exchange.open()
                while not reader.is_complete and (events := await exchange.read()) is not None:
                    for kind, text in events:
                        for event in reader.read(kind, text):
                            begun = True
                            yield event
                await exchange.end()
                for event in reader.end():
                    begun = True
                    yield event
                return
            except ModelError as error:
                pause = None if begun else retries.pause(error, deadline.left())
                if pause is None:
                    raise
            finally:
                await exchange.give_back()
            await anyio.sleep(pause)

    def _client(self) -> tuple[Any, Endpoint]:
        if self._given is not None:
            return self._given, self._endpoint(self._given)
        try:
            client = self._own.current()
        except ImportError:
            raise
        except Exception as error:
            raise translate(error, self._endpoint(None)) from error
        return client, self._endpoint(client)

    async def _post(self, client: Any, body: dict[str, Any]) -> Any:
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
        self._own.hold()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._own.release()

    async def close(self) -> None:
        """Close the connections that `async with` keeps in this event loop. A client that you gave is yours, and left alone.

        Calls that are under way then fail; a call that begins later makes new connections.
        """
        await self._own.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"
