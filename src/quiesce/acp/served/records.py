"""The sessions in a store: each is the log of a conversation, and an event that records where it works.

Conversations do not know that kind of event, and keep such events unchanged (`UnknownEvent`). A conversation
without one was not made by a served agent, and is not listed; nor is a session in which the user has not said
anything.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from quiesce.acp import schema as s
from quiesce.agents import ItemAdded, MessageQueued, UnknownEvent
from quiesce.agents.inner import Event
from quiesce.models import UserMessage

from .updates import title_of

if TYPE_CHECKING:
    from quiesce.agents import Store

    from .rules import Rules

PAGE: Final = 50
_KIND: Final = "acp_session"


@dataclass(frozen=True, slots=True)
class Record:
    """What the store knows about a session."""

    cwd: str
    additional_directories: tuple[str, ...]
    title: str | None
    updated_at: float

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the session worked."""
        return (self.cwd, *self.additional_directories)

    def info(self, session_id: str) -> s.SessionInfo:
        """Return the record as the client sees it."""
        return s.SessionInfo(
            session_id=session_id,
            cwd=self.cwd,
            additional_directories=list(self.additional_directories) or None,
            title=self.title,
            updated_at=datetime.fromtimestamp(self.updated_at, UTC).isoformat(timespec="seconds"),
        )


def new_session_id() -> str:
    """Return a new id. Sessions are listed by their ids, and newer ones have greater ids."""
    # Milliseconds in hexadecimal, of fixed width, so that ids sort by age.
    return f"sess_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"


async def write_record(
    store: Store, session_id: str, cwd: str, additional_directories: Sequence[str]
) -> None:
    """Record where a session works. Its log must not be open elsewhere."""
    data = {"event": _KIND, "cwd": cwd, "additional_directories": list(additional_directories)}
    log = store.open(session_id)
    await log.read()
    await log.append([UnknownEvent(data=data)])
    log.close()


async def read_record(store: Store, session_id: str) -> Record | None:
    """Return the record of a session; None if the store has no session with this id."""
    log = store.open(session_id)
    events = await log.read()
    log.close()
    return _record(events)


def _record(events: Sequence[Event]) -> Record | None:
    location: dict[str, Any] | None = None
    title: str | None = None
    for event in events:
        if isinstance(event, UnknownEvent) and event.data.get("event") == _KIND:
            # A session that was moved has several; the last one counts.
            location = event.data
        elif (
            title is None
            and isinstance(event, (ItemAdded, MessageQueued))
            and isinstance(event.item, UserMessage)
        ):
            title = title_of(event.item.content) or "(untitled)"
    if location is None:
        return None
    return Record(str(location["cwd"]), tuple(location["additional_directories"]), title, events[-1].time)


async def list_records(
    store: Store, cwd: str | None, cursor: str | None, rules: Rules
) -> s.ListSessionsResponse:
    """Return a page of the sessions that the client may see, the newest first."""
    page: list[s.SessionInfo] = []
    ids = sorted(await store.ids(), reverse=True)
    if cursor is not None:
        ids = [session_id for session_id in ids if session_id < cursor]
    for index, session_id in enumerate(ids):
        record = await read_record(store, session_id)
        if record is None or record.title is None or (cwd is not None and record.cwd != cwd):
            continue
        if not rules.allow(record.folders):
            continue
        page.append(record.info(session_id))
        if len(page) == PAGE and index + 1 < len(ids):
            # The last id of the page, not its number: sessions that are added or deleted meanwhile shift no
            # page.
            return s.ListSessionsResponse(sessions=page, next_cursor=session_id)
    return s.ListSessionsResponse(sessions=page)
