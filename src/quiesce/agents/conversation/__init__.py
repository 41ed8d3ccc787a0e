"""Conversations: one history, run after run, that can be stopped from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .conversation import Conversation, close_ignoring_leftovers, has_queued_messages
    from .event_feed import EventFeed

offer()
