"""Models for agents: OpenAI (and servers with a compatible API), Anthropic, and a small one that runs on your CPU.

`Model` is the protocol. `OpenAIModel` and `AnthropicModel` implement it on the official clients,
`EmbeddedModel` runs a small model on this machine (it is in the distribution `quiesce-chat`), and
`quiesce.testing.ScriptedModel` needs no network at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._extras import require
from quiesce._lazy import offer

require("msgspec", "agents", "quiesce.models")

if TYPE_CHECKING:
    from quiesce_chat import EmbeddedModel as EmbeddedModel
    from quiesce_chat import FetchProgress as FetchProgress
    from quiesce_chat import WeightsError as WeightsError

    from .anthropic import AnthropicModel as AnthropicModel
    from .openai import OpenAIChatCompletionsModel as OpenAIChatCompletionsModel
    from .openai import OpenAIModel as OpenAIModel
    from .openai import OpenAIResponsesModel as OpenAIResponsesModel
    from .words import AssistantMessage as AssistantMessage
    from .words import Content as Content
    from .words import Image as Image
    from .words import Item as Item
    from .words import ItemDone as ItemDone
    from .words import Model as Model
    from .words import ModelAuthenticationError as ModelAuthenticationError
    from .words import ModelBehaviorError as ModelBehaviorError
    from .words import ModelConnectionError as ModelConnectionError
    from .words import ModelError as ModelError
    from .words import ModelEvent as ModelEvent
    from .words import ModelNotFoundError as ModelNotFoundError
    from .words import ModelOverloadedError as ModelOverloadedError
    from .words import ModelRateLimitError as ModelRateLimitError
    from .words import ModelRefusalError as ModelRefusalError
    from .words import ModelRequest as ModelRequest
    from .words import ModelRequestError as ModelRequestError
    from .words import ModelSettings as ModelSettings
    from .words import ModelTimeoutError as ModelTimeoutError
    from .words import Note as Note
    from .words import OutputSpec as OutputSpec
    from .words import Reasoning as Reasoning
    from .words import ReasoningDelta as ReasoningDelta
    from .words import ResponseDone as ResponseDone
    from .words import Text as Text
    from .words import TextDelta as TextDelta
    from .words import Tokens as Tokens
    from .words import ToolCall as ToolCall
    from .words import ToolCallDelta as ToolCallDelta
    from .words import ToolOutcome as ToolOutcome
    from .words import ToolResult as ToolResult
    from .words import ToolSpec as ToolSpec
    from .words import UnknownItem as UnknownItem
    from .words import Usage as Usage
    from .words import UserMessage as UserMessage

offer()
