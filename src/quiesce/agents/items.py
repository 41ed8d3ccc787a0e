"""Items under the names that they have in `agents.items` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from quiesce.models import AssistantMessage as MessageOutputItem
    from quiesce.models import Item as RunItem
    from quiesce.models import Reasoning as ReasoningItem
    from quiesce.models import ToolCall as ToolCallItem
    from quiesce.models import ToolResult as ToolCallOutputItem
    from quiesce.models.inner import InputItem as TResponseInputItem

    from .agent import ItemHelpers as ItemHelpers
    from .agent import ModelResponse as ModelResponse
    from .run import ToolApprovalItem as ToolApprovalItem

offer()
