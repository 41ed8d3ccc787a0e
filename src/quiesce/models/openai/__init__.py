"""Models behind OpenAI's official client: Chat Completions and Responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .model import OpenAIChatCompletionsModel, OpenAIModel, OpenAIResponsesModel

offer()
