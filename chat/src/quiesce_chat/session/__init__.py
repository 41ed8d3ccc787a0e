"""One chat without a terminal: messages, what is running, and how it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.inner import offer

if TYPE_CHECKING:
    from .face import ANSWERS, READING_TIME, Approval, Call, Decision, Face
    from .session import Chat, describe_error
    from .slash import InputHandler, is_command
    from .store_choice import (
        NoSuchConversation,
        find_conversation,
        list_conversations,
        new_id,
        open_store,
        store_option,
    )
    from .wording import history, outcome_in_words, seconds, text_of

offer()
