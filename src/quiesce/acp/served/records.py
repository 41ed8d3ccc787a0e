"""What the store knows of sessions: the log of a conversation, with an event of our own that says where the session works.

That event is of a kind that conversations do not know, and they keep such events (`UnknownEvent`). A conversation
without one is none of ours, and is not listed; nor is a session in which nobody has said anything.
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
    """What is known of a session."""

    cwd: str
    additional_directories: tuple[str, ...]
    title: str | None
    updated_at: float

    def info(self, session_id: str) -> s.SessionInfo:
        """As a client is told of it."""
        return s.SessionInfo(
            session_id=session_id,
            cwd=self.cwd,
            additional_directories=list(self.additional_directories) or None,
            title=self.title,
            updated_at=datetime.fromtimestamp(self.updated_at, UTC).isoformat(timespec="seconds"),
        )


def new_session_id() -> str:
    """Sessions are listed by their ids: those of newer ones are greater."""
    return f"sess_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"


async def write_record(
    store: Store, session_id: str, cwd: str, additional_directories: Sequence[str]
) -> None:
    """Write down where a session works. Nobody else may have its log open."""
    data = {"event": _KIND, "cwd": cwd, "additional_directories": list(additional_directories)}
    log = store.open(session_id)
    await log.read()
    await log.append([UnknownEvent(data=data)])
    log.close()


async def read_record(store: Store, session_id: str) -> Record | None:
    """What is known of a session; None if there is none of that name."""
    log = store.open(session_id)
    events = await log.read()
    log.close()
    return _record(events)


def _record(events: Sequence[Event]) -> Record | None:
    place: dict[str, Any] | None = None
    title: str | None = None
    for event in events:
        if isinstance(event, UnknownEvent) and event.data.get("event") == _KIND:
            place = event.data
        elif (
            title is None
            and isinstance(event, (ItemAdded, MessageQueued))
            and isinstance(event.item, UserMessage)
        ):
            title = title_of(event.item.content) or "(untitled)"
    if place is None:
        return None
    return Record(str(place["cwd"]), tuple(place["additional_directories"]), title, events[-1].time)


async def list_records(
    store: Store, cwd: str | None, cursor: str | None, rules: Rules
) -> s.ListSessionsResponse:
    """A page of the sessions that the client may know of, the newest first."""
    page: list[s.SessionInfo] = []
    older = sorted(await store.ids(), reverse=True)
    if cursor is not None:
        older = [one for one in older if one < cursor]
    for place, session_id in enumerate(older):
        record = await read_record(store, session_id)
        if record is None or record.title is None or (cwd is not None and record.cwd != cwd):
            continue
        if not rules.knows(record):
            continue
        page.append(record.info(session_id))
        if len(page) == PAGE and place + 1 < len(older):
            return s.ListSessionsResponse(sessions=page, next_cursor=session_id)
    return s.ListSessionsResponse(sessions=page)
