"""The events of a conversation, and the stores that keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .contract import (
        Holder,
        Lease,
        Log,
        OnEvents,
        Store,
        StoreClosed,
        StoreConflict,
        StoreError,
        StoreFenced,
        StoreHeld,
        StoreInDoubt,
        check_id,
        conflict,
        fenced,
        held,
    )
    from .events import (
        ApprovalDecided,
        ApprovalRequested,
        Event,
        ItemAdded,
        ItemPopped,
        ItemsCleared,
        MessageQueued,
        Posted,
        RunEnded,
        RunStarted,
        Snapshot,
        StatusChanged,
        StopRequested,
        ToolStarted,
        UnknownEvent,
        UsageAdded,
        check_events,
        check_posted,
        decode_event,
        encode_event,
        stamp,
    )
    from .memory import MemoryLog, MemoryStore
    from .postgres import PostgresStore
    from .replay import Recovered, recover
    from .session import LogSession, MemorySession, Session, SQLiteSession, insert_items
    from .sqlite import SQLiteStore

offer()
