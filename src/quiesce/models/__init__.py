"""Models that answer agents: the official clients of OpenAI (and whatever speaks its wire) and Anthropic, and what a model is.

`Model` is the protocol; `OpenAIModel`, `AnthropicModel` and `EmbeddedModel`, a small one on this machine's
CPU, keep to it, and `quiesce.testing.ScriptedModel` does so without a network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._extras import require

require("msgspec", "agents", "quiesce.models")

from ._errors import (  # noqa: E402
    ModelAuthenticationError,
    ModelBehaviorError,
    ModelConnectionError,
    ModelError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRefusalError,
    ModelRequestError,
    ModelTimeoutError,
)
from ._items import (  # noqa: E402
    AssistantMessage,
    Content,
    Image,
    Item,
    Note,
    Reasoning,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    UnknownItem,
    UserMessage,
)
from ._model import (  # noqa: E402
    ItemDone,
    Model,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    OutputSpec,
    ReasoningDelta,
    ResponseDone,
    TextDelta,
    Tokens,
    ToolCallDelta,
    ToolSpec,
    Usage,
)

if TYPE_CHECKING:
    from ._anthropic import AnthropicModel as AnthropicModel
    from ._embedded import EmbeddedModel as EmbeddedModel
    from ._embedded_fetch import FetchProgress as FetchProgress
    from ._embedded_weights import WeightsError as WeightsError
    from ._openai import OpenAIModel as OpenAIModel

__all__ = [
    "AnthropicModel",
    "AssistantMessage",
    "Content",
    "EmbeddedModel",
    "FetchProgress",
    "Image",
    "Item",
    "ItemDone",
    "Model",
    "ModelAuthenticationError",
    "ModelBehaviorError",
    "ModelConnectionError",
    "ModelError",
    "ModelEvent",
    "ModelNotFoundError",
    "ModelOverloadedError",
    "ModelRateLimitError",
    "ModelRefusalError",
    "ModelRequest",
    "ModelRequestError",
    "ModelSettings",
    "ModelTimeoutError",
    "Note",
    "OpenAIModel",
    "OutputSpec",
    "Reasoning",
    "ReasoningDelta",
    "ResponseDone",
    "Text",
    "TextDelta",
    "Tokens",
    "ToolCall",
    "ToolCallDelta",
    "ToolOutcome",
    "ToolResult",
    "ToolSpec",
    "UnknownItem",
    "Usage",
    "UserMessage",
    "WeightsError",
]


def __getattr__(name: str) -> object:
    # The official clients take half a second to import: only who uses one pays for it.
    if name == "OpenAIModel":
        from ._openai import OpenAIModel

        return OpenAIModel
    if name == "AnthropicModel":
        from ._anthropic import AnthropicModel

        return AnthropicModel
    if name == "EmbeddedModel":
        from ._embedded import EmbeddedModel

        return EmbeddedModel
    if name in ("FetchProgress", "WeightsError"):
        from . import _embedded_fetch

        return getattr(_embedded_fetch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
