"""What a model is about to be sent, for `RunConfig(call_model_input_filter=...)` to look at and to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from quiesce.models import Item
from quiesce.models.inner import as_items

from .guardrails import MaybeAwaitable, call_function

if TYPE_CHECKING:
    from .agent import Agent


@dataclass(slots=True)
class ModelInputData:
    """The items and the instructions of a request."""

    input: list[Item]
    instructions: str | None


@dataclass(slots=True)
class CallModelData:
    """What a `call_model_input_filter` gets; `context` is what was passed to the run."""

    model_data: ModelInputData
    agent: Agent[Any]
    context: Any


CallModelInputFilter: TypeAlias = Callable[[CallModelData], MaybeAwaitable[ModelInputData]]


async def filtered(
    change: CallModelInputFilter, items: list[Item], instructions: str | None, agent: Agent[Any], context: Any
) -> ModelInputData:
    """What the filter makes of a request. The history is not changed, only what the model sees of it this time."""
    data = CallModelData(ModelInputData(list(items), instructions), agent, context)
    changed = await call_function(change, data)
    if not isinstance(changed, ModelInputData):
        raise TypeError(
            f"a call_model_input_filter must return a ModelInputData, and returned {type(changed).__name__}"
        )
    return ModelInputData(as_items(changed.input), changed.instructions)
