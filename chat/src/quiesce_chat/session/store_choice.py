"""Where conversations are stored, and which one to resume."""

from __future__ import annotations

import secrets
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from quiesce.agents import ItemAdded, MessageQueued, SQLiteStore, Store
from quiesce.cli.inner import user_folder, warn_if_shared
from quiesce.inner import shortened, shown
from quiesce.models import UserMessage

from .wording import text_of


class NoSuchConversation(Exception):
    """No stored conversation matches the given id; the message says how to list them."""


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """One conversation of a store. The fields are the keys of `quiesce chat --list --json`."""

    id: str
    last: float  # seconds since 1970
    messages: int
    begins: str

    def line(self, width: int) -> str:
        """The conversation as one line of `quiesce chat --list`."""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.last))
        start = f"{self.id}  {when}  {self.messages:>3} message{'s' if self.messages != 1 else ' '}  "
        return start + shortened(self.begins, max(width - len(start), 10))

    def as_json(self) -> dict[str, object]:
        """The conversation as plain values for JSON."""
        return asdict(self)


def default_store() -> Path:
    """The path of the default store, in the user's data directory."""
    return user_folder("XDG_DATA_HOME", ".local/share", "conversations") / "quiesce" / "chat.db"


def store_option(path: str | None) -> str:
    """The option that selects that store, with a space before it; empty for the default store."""
    return f" --store {shlex.quote(path)}" if path is not None else ""


def open_store(path: str | None) -> SQLiteStore:
    """Open the store in that file, or the default store if None.

    The folder of the default store is created for the user alone. If other users can read an existing file, a warning
    goes to standard error.
    """
    if path is None:
        file = default_store()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        file = Path(path)
    warn_if_shared(file)
    return SQLiteStore(file)


def new_id() -> str:
    """A new conversation id. It begins with the time, so ids sort by it."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


async def list_conversations(store: Store) -> list[SavedConversation]:
    """All conversations of a store, the most recently used first."""
    found = list[SavedConversation]()
    for conversation_id in await store.ids():
        log = store.open(conversation_id)
        events = await log.read()
        log.close()
        # A queued message is in the log twice: when it was sent, and when a run took it up.
        messages = {
            getattr(event, "message_id", "") or f"#{event.seq}": event.item
            for event in events
            if isinstance(event, (ItemAdded, MessageQueued)) and isinstance(event.item, UserMessage)
        }
        first = next(iter(messages.values()), None)
        begins = shortened(shown(text_of(first)), 60) if isinstance(first, UserMessage) else ""
        last = events[-1].time if events else 0.0
        found.append(SavedConversation(conversation_id, last, len(messages), begins))
    return sorted(found, key=lambda saved: saved.last, reverse=True)


async def find_conversation(store: Store, prefix: str, list_command: str = "quiesce chat --list") -> str:
    """The id of the only conversation that begins with `prefix`; the most recently used one if that is empty."""
    saved = await list_conversations(store)
    if not saved:
        raise NoSuchConversation("no conversation is stored yet: start one without --resume")
    if not prefix:
        return saved[0].id
    # A complete id wins, even if longer ids begin with it.
    exact = [one.id for one in saved if one.id == prefix]
    matching = exact or [one.id for one in saved if one.id.startswith(prefix)]
    if len(matching) != 1:
        what = "no conversation id begins" if not matching else f"{len(matching)} conversation ids begin"
        raise NoSuchConversation(f"{what} with {prefix!r}; `{list_command}` lists them all")
    return matching[0]
