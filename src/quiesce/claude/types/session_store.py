"""The types of a session store, so that what is annotated with them imports. Nothing here uses a store: see `check_options`.

Annotations are real ones here, not strings: a TypedDict knows by them which of its keys are required.
"""

from typing import Any, Literal, NotRequired, Protocol, Required, TypeAlias, TypedDict

SessionStoreFlushMode: TypeAlias = Literal["batched", "eager"]


class SessionKey(TypedDict):
    """Which transcript: a session's, or with `subpath` that of a sub-agent in it."""

    project_key: str
    session_id: str
    subpath: NotRequired[str]


class SessionListSubkeysKey(TypedDict):
    """Which session, without a sub-agent."""

    project_key: str
    session_id: str


class SessionStoreEntry(TypedDict, total=False):
    """A line of a transcript; more than these fields, for the CLI to know."""

    type: Required[str]
    uuid: str
    timestamp: str


class SessionStoreListEntry(TypedDict):
    """A session in a store. `mtime` is in milliseconds since 1970."""

    session_id: str
    mtime: int


class SessionSummaryEntry(TypedDict):
    """A session in a store, summed up in `data`, which is not the store's to read."""

    session_id: str
    mtime: int
    data: dict[str, Any]


class SessionStore(Protocol):
    """Where copies of transcripts go. `append` and `load` are all that one must have."""

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Keep more lines of a transcript."""
        ...

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """A transcript as it was appended; None if there is none."""
        ...

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project."""
        raise NotImplementedError

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The sessions of a project, summed up."""
        raise NotImplementedError

    async def delete(self, key: SessionKey) -> None:
        """Forget a transcript, and those of its sub-agents."""
        raise NotImplementedError

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The sub-agents of a session."""
        raise NotImplementedError
