"""Models behind Anthropic's official client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quiesce._extras import require
from quiesce.models.http import Endpoint, ProviderModel, Reader, make_http_client
from quiesce.models.words import ModelRequest

from . import messages
from .reader import AnthropicReader

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_HOME = "https://api.anthropic.com"
MAX_TOKENS = 8192


class AnthropicModel(ProviderModel):
    """A model of Anthropic, through the official client.

    ```python
    AnthropicModel("claude-sonnet-4-5")                                 # key from ANTHROPIC_API_KEY
    AnthropicModel("claude-sonnet-4-5", max_tokens=32_000)
    AnthropicModel("claude-sonnet-4-5", client=AsyncAnthropic(...))     # yours; quiesce never closes it
    ```

    `max_tokens` is the longest answer where `ModelSettings.max_tokens` is not set: this API requires a limit. To enable
    thinking, use the API's own parameter:
    `ModelSettings(extra={"thinking": {"type": "enabled", "budget_tokens": 4000}})`.

    One instance serves any number of runs at the same time. `async with model:` keeps connections between calls until
    the block exits.
    """

    path = "/v1/messages"

    def __init__(
        self,
        model: str,
        *,
        client: AsyncAnthropic | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        http_client: Any = None,
        default_headers: Mapping[str, str] | None = None,
        max_tokens: int = MAX_TOKENS,
        name: str | None = None,
    ) -> None:
        options = {
            "api_key": api_key,
            "base_url": base_url,
            "http_client": http_client,
            "default_headers": default_headers,
        }
        self._options = {key: value for key, value in options.items() if value is not None}
        if client is not None and self._options:
            raise TypeError(f"give AnthropicModel a client or {', '.join(self._options)}, not both")
        self._anthropic: Any = require("anthropic", "anthropic", "AnthropicModel")
        self._max_tokens = max_tokens
        super().__init__(model, name, client, closes=http_client is None)

    def _make_client(self, keeps_connections: bool) -> Any:
        options = dict(self._options)
        if "http_client" not in options:
            options["http_client"] = make_http_client(
                self._anthropic.DefaultAsyncHttpxClient, keeps_connections
            )
        return self._anthropic.AsyncAnthropic(max_retries=0, **options)

    def _endpoint(self, client: Any) -> Endpoint:
        url = str(client.base_url).rstrip("/") if client is not None else self._options.get("base_url", _HOME)
        return Endpoint(
            name=self._name,
            provider="Anthropic" if url == _HOME else url,
            model=self.model,
            url=url,
            key_variable="ANTHROPIC_API_KEY",
            missing_key=("Could not resolve authentication method",),
        )

    def _body(self, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
        return messages.body(request, endpoint, max_tokens=self._max_tokens)

    def _reader(self, request: ModelRequest, endpoint: Endpoint) -> Reader:
        return AnthropicReader(request, endpoint)

    @property
    def _stream_class(self) -> Any:
        return self._anthropic.AsyncStream[object]
