"""Models behind OpenAI's official client: OpenAI's own, and those of servers with a compatible API."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal

from quiesce._extras import require
from quiesce.models.http import Endpoint, Exchange, ProviderModel, Reader, make_http_client
from quiesce.models.words import ModelRequest

from . import chat, responses
from .background import in_the_background
from .chat_reader import ChatReader
from .responses_reader import ResponsesReader

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_HOME = "https://api.openai.com/v1"
# A server without keys still has to be sent some text: the official client insists on a key.
_NO_KEY = "no-key"


class OpenAIModel(ProviderModel):
    """A model of OpenAI, or of a server with a compatible API: llama.cpp, Ollama, vLLM and others.

    ```python
    OpenAIModel("gpt-5")                                                # key from OPENAI_API_KEY
    OpenAIModel("gpt-5", api="responses")
    OpenAIModel("qwen3", base_url="http://localhost:11434/v1")          # Ollama
    OpenAIModel("gpt-5", client=AsyncOpenAI(...))                       # yours; quiesce never closes it
    ```

    `api` is `"chat"` (Chat Completions, which every server has) or `"responses"`. `http_client` is an HTTP client of
    your own for the official client that quiesce makes. `include_usage=False` is for servers that reject
    `stream_options`.

    With `background=True` (Responses API) a long answer is made in the background at the provider, which stores it. A
    stop cancels it there, waits until the provider confirms that, and otherwise names it in the report.

    One instance serves any number of runs at the same time. `async with model:` keeps connections between calls until
    the block exits.
    """

    def __init__(
        self,
        model: str,
        *,
        api: Literal["chat", "responses"] = "chat",
        client: AsyncOpenAI | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        http_client: Any = None,
        default_headers: Mapping[str, str] | None = None,
        include_usage: bool = True,
        background: bool = False,
        name: str | None = None,
    ) -> None:
        if api not in ("chat", "responses"):
            raise ValueError(f"api must be 'chat' or 'responses', not {api!r}")
        if background and api != "responses":
            raise ValueError("background=True needs api='responses': Chat Completions has no background")
        options = {
            "api_key": api_key,
            "base_url": base_url,
            "http_client": http_client,
            "default_headers": default_headers,
        }
        self._options = {key: value for key, value in options.items() if value is not None}
        if client is not None and self._options:
            raise TypeError(f"give OpenAIModel a client or {', '.join(self._options)}, not both")
        self._openai: Any = require("openai", "openai", "OpenAIModel")
        self._chat = api == "chat"
        self._include_usage = include_usage
        self._background = background
        self.path = "/chat/completions" if self._chat else "/responses"
        super().__init__(model, name, client, closes=http_client is None)

    def _make_client(self, keeps_connections: bool) -> Any:
        options = dict(self._options)
        if "base_url" in options and "api_key" not in options and not os.environ.get("OPENAI_API_KEY"):
            options["api_key"] = _NO_KEY
        if "http_client" not in options:
            options["http_client"] = make_http_client(self._openai.DefaultAsyncHttpxClient, keeps_connections)
        return self._openai.AsyncOpenAI(max_retries=0, **options)

    def _endpoint(self, client: Any) -> Endpoint:
        url = str(client.base_url).rstrip("/") if client is not None else self._options.get("base_url", _HOME)
        return Endpoint(
            name=self._name,
            provider="OpenAI" if url == _HOME else url,
            model=self.model,
            url=url,
            key_variable="OPENAI_API_KEY",
            missing_key=("Missing credentials", "api_key client option must be set"),
        )

    def _body(self, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
        if not self._chat:
            return responses.body(request, endpoint, background=self._background)
        return chat.body(request, endpoint, include_usage=self._include_usage)

    def _opened(self, client: Any, exchange: Exchange) -> AbstractAsyncContextManager[Callable[[], object]]:
        if self._background:
            return in_the_background(client, exchange, self._name)
        return super()._opened(client, exchange)

    def _reader(self, request: ModelRequest, endpoint: Endpoint) -> Reader:
        return ChatReader(request, endpoint) if self._chat else ResponsesReader(request, endpoint)

    @property
    def _stream_class(self) -> Any:
        return self._openai.AsyncStream[object]


class OpenAIChatCompletionsModel(OpenAIModel):
    """An `OpenAIModel` behind a client of your own, by the name and with the arguments of OpenAI's Agents SDK."""

    def __init__(self, model: str, openai_client: AsyncOpenAI) -> None:
        super().__init__(model, api="chat", client=openai_client)


class OpenAIResponsesModel(OpenAIModel):
    """The same, with the Responses API."""

    def __init__(self, model: str, openai_client: AsyncOpenAI) -> None:
        super().__init__(model, api="responses", client=openai_client)
