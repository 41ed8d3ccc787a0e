"""The events of a conversation, and the stores that keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .events import (
        ApprovalDecided,
        ApprovalRequested,
        Event,
        ItemAdded,
        ItemPopped,
        ItemsCleared,
        Log,
        MessageQueued,
        RunEnded,
        RunStarted,
        StatusChanged,
        Store,
        StoreClosed,
        StoreConflict,
        StoreError,
        ToolStarted,
        UnknownEvent,
        UsageAdded,
        check_id,
        conflict,
        stamp,
    )
    from .memory import MemoryLog, MemoryStore
    from .replay import Recovered, recover
    from .session import LogSession, MemorySession, Session, SQLiteSession, insert_items
    from .sqlite import SQLiteStore

offer()
