"""One answer of a model: what it said, what that cost, and how to read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quiesce.models import AssistantMessage, Item, Usage
from quiesce.models.inner import InputItem, as_items


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """One answer of a model. `finish` is how it ended, as in `ResponseDone`."""

    output: list[Item]
    usage: Usage
    response_id: str | None = None
    finish: str = "stop"

    def to_input_items(self) -> list[Item]:
        """What it said, as input for another request."""
        return list(self.output)


class ItemHelpers:
    """Reads the text of items. `item.text` of a message is the same; these are the names that programs know."""

    @staticmethod
    def text_message_output(message: AssistantMessage) -> str:
        """The text of a message."""
        return message.text

    @staticmethod
    def text_message_outputs(items: list[Any]) -> str:
        """The text of all messages among the items, one after the other."""
        return "".join(item.text for item in items if isinstance(item, AssistantMessage))

    @staticmethod
    def extract_last_content(message: Any) -> str:
        """The text of a message; nothing of other items."""
        return message.text if isinstance(message, AssistantMessage) else ""

    @staticmethod
    def extract_last_text(message: Any) -> str | None:
        """The text of a message that is not a refusal; None of other items."""
        return message.text if isinstance(message, AssistantMessage) and not message.refusal else None

    extract_text = extract_last_text

    @staticmethod
    def input_to_new_input_list(given: str | list[InputItem]) -> list[Item]:
        """The input of a run as a list."""
        return as_items(given)
