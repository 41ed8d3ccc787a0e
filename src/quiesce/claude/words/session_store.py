"""The types of a session store, so that programs which use them in annotations can import them.

quiesce itself uses no store, and `check_options` refuses one.

No `from __future__ import annotations` here: a TypedDict needs real annotations to know which of its keys are
required.
"""

from typing import Any, Literal, NotRequired, Protocol, Required, TypeAlias, TypedDict

SessionStoreFlushMode: TypeAlias = Literal["batched", "eager"]


class SessionKey(TypedDict):
    """The key of a session's transcript; with `subpath`, of a sub-agent's transcript."""

    project_key: str
    session_id: str
    subpath: NotRequired[str]


class SessionListSubkeysKey(TypedDict):
    """The key of a session."""

    project_key: str
    session_id: str


class SessionStoreEntry(TypedDict, total=False):
    """A line of a transcript. It has more fields, which only the CLI reads."""

    type: Required[str]
    uuid: str
    timestamp: str


class SessionStoreListEntry(TypedDict):
    """A session in a store. `mtime` is in milliseconds since 1970."""

    session_id: str
    mtime: int


class SessionSummaryEntry(TypedDict):
    """A session in a store, with a summary in `data`, which the store must not interpret."""

    session_id: str
    mtime: int
    data: dict[str, Any]


class SessionStore(Protocol):
    """Keeps copies of transcripts. Only `append` and `load` are required."""

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add lines to a transcript."""
        ...

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return a transcript as it was appended; None if there is none."""
        ...

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project."""
        raise NotImplementedError

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return summaries of the sessions of a project."""
        raise NotImplementedError

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript, and those of its sub-agents."""
        raise NotImplementedError

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the sub-agents of a session."""
        raise NotImplementedError
