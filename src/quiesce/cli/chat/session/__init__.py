"""One chat without a terminal: what the user sends, what runs now, and how it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .face import ANSWERS, READ_IN, Approval, Call, Decision, Face
    from .session import Chat, explained
    from .slash import Desk, is_command
    from .store_choice import NoSuchConversation, kept_in, new_id, open_store, store_option, to_resume
    from .wording import history, outcome_in_words, seconds, text_of

offer()
