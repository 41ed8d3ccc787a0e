"""Where conversations are kept, and which one to go on with."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from quiesce._safe.text import shortened, shown
from quiesce.agents import ItemAdded, MessageQueued, SQLiteStore, Store
from quiesce.cli.base import warn_if_shared
from quiesce.models import UserMessage

from .wording import text_of


class NoSuchConversation(Exception):
    """What was asked for is not there; the message says what is."""


@dataclass(frozen=True, slots=True)
class KeptConversation:
    """One conversation of a store."""

    id: str
    last: float  # seconds since 1970
    messages: int
    begins: str

    def line(self, width: int) -> str:
        """For a list of them."""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.last))
        start = f"{self.id}  {when}  {self.messages:>3} message{'s' if self.messages != 1 else ' '}  "
        return start + shortened(self.begins, max(width - len(start), 10))

    def as_json(self) -> dict[str, object]:
        """For a machine."""
        return asdict(self)


def default_store() -> Path:
    """The file in the user's data directory."""
    home = os.environ.get("XDG_DATA_HOME", "")
    try:
        base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share"
    except RuntimeError:
        raise FileNotFoundError(
            "there is no place to keep conversations, for nobody knows your home directory: set HOME or XDG_DATA_HOME, "
            "or say --store FILE (or --store none)"
        ) from None
    return base / "quiesce" / "chat.db"


def store_option(path: str | None) -> str:
    """What has to be said to find that store again, with a blank before it; nothing for the user's own."""
    return f" --store {shlex.quote(path)}" if path is not None else ""


def open_store(path: str | None) -> SQLiteStore:
    """The store in that file; in the user's own if None. Its folder is made, for nobody else to look into.

    If others can read a file that is there already, that is said.
    """
    if path is None:
        file = default_store()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        file = Path(path)
    warn_if_shared(file)
    return SQLiteStore(file)


def new_id() -> str:
    """One that says when, and sorts by it."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


async def kept_in(store: Store) -> list[KeptConversation]:
    """All conversations, the last one used first."""
    found = list[KeptConversation]()
    for conversation_id in await store.ids():
        log = store.open(conversation_id)
        events = await log.read()
        log.close()
        said = {  # a message that waited is there twice: when it was sent, and when it was taken up
            getattr(event, "message_id", "") or f"#{event.seq}": event.item
            for event in events
            if isinstance(event, (ItemAdded, MessageQueued)) and isinstance(event.item, UserMessage)
        }
        first = next(iter(said.values()), None)
        begins = shortened(shown(text_of(first)), 60) if isinstance(first, UserMessage) else ""
        found.append(KeptConversation(conversation_id, events[-1].time if events else 0.0, len(said), begins))
    return sorted(found, key=lambda kept: kept.last, reverse=True)


async def to_resume(store: Store, asked: str, listed_by: str = "quiesce chat --list") -> str:
    """The id that was asked for, by its beginning; the last conversation if that is empty."""
    kept = await kept_in(store)
    if not kept:
        raise NoSuchConversation("no conversation is kept yet: begin one without --resume")
    if not asked:
        return kept[0].id
    exact = [one.id for one in kept if one.id == asked]
    matching = exact or [one.id for one in kept if one.id.startswith(asked)]
    if len(matching) != 1:
        what = "no conversation begins" if not matching else f"{len(matching)} conversations begin"
        raise NoSuchConversation(f"{what} with {asked!r}; `{listed_by}` shows them all")
    return matching[0]
