"""The vocabulary of models, independent of any provider: requests, events, items and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .call_ids import CallIds, fresh_call_id
    from .errors import (
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
    from .event_data import model_event_data, model_event_of
    from .input_items import InputItem, as_items
    from .items import (
        ITEM_TYPES,
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
        convert_item,
        decode_item,
        encode_item,
        pending_calls,
        text_of,
    )
    from .model import (
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
    from .turns import parts_of, said_in, turns_of

offer()
