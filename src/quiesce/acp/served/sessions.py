"""The sessions of one connection: a conversation each, with its id, and what the client has named for it.

What a session opens (its MCP servers) belongs to the connection, and is closed with the session. One that is taken up
again while it is open here stays open until the new one is there, and if that fails, or is cancelled, it goes on.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from quiesce import shielded, to_thread
from quiesce._safe.files import Folders
from quiesce.acp.exceptions import RequestError
from quiesce.agents import Conversation, MemoryStore

from .mcp import connect_servers
from .records import Record, read_record, write_record
from .session import Session
from .updates import ShowsStarts

if TYPE_CHECKING:
    from quiesce.acp import schema as s
    from quiesce.acp.connection import AgentSideConnection
    from quiesce.agents import Agent, RunConfig, Store
    from quiesce.agents.inner import NeedsApproval

    from .rules import Rules

GIVEN_UP: Final = "Not started: interrupted before anybody had approved this call."


@dataclass(frozen=True)
class Place:
    """Where a session shall work, and with which MCP servers: what a client says when it opens one."""

    cwd: str
    directories: list[str] | None
    mcp_servers: list[Any] | None

    @cached_property
    def folders(self) -> Folders:
        """Its folders, looked up once: what is checked is what is used."""
        return Folders([self.cwd, *(self.directories or ())])

    def check(self) -> None:
        """An error for a path that depends on where somebody stands."""
        for path in (self.cwd, *(self.directories or ())):
            if not os.path.isabs(path) or "\0" in path:
                raise RequestError.invalid_params({"cwd": f"{path!r} is not an absolute path"})


class Sessions:
    """Those that are open, by id."""

    def __init__(
        self,
        agent: Agent[Any],
        store: Store,
        context: Any,
        config: RunConfig,
        max_turns: int | None,
        mcp_needs_approval: NeedsApproval,
    ) -> None:
        self._agent = agent
        self._store = store
        self._context = context
        self._config = config
        self._max_turns = max_turns
        self._mcp_needs_approval: NeedsApproval = mcp_needs_approval
        self._open: dict[str, Session] = {}
        self._taken_up: Counter[str] = Counter()  # those that are being taken up again
        self.client: AgentSideConnection | None = None
        self.capabilities: s.ClientCapabilities | None = None  # the client's

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, session_id: str) -> Session:
        session = self._open.get(session_id)
        if session is None:
            raise RequestError.resource_not_found(session_id)
        return session

    def to_prompt(self, session_id: str) -> Session:
        """One that may be told something now."""
        session = self[session_id]
        if self._taken_up[session_id]:
            raise RequestError.invalid_request(
                {"details": f"session {session_id!r} is being loaded: wait for that"}
            )
        return session

    async def close(self, session_id: str) -> None:
        """Close one, if it is open."""
        session = self._open.pop(session_id, None)
        if session is not None:
            await shielded(session.close)

    async def close_all(self) -> None:
        """Close every one."""
        while self._open:
            _, session = self._open.popitem()
            await session.close()

    @asynccontextmanager
    async def taking_up(self, session_id: str, place: Place, rules: Rules) -> AsyncIterator[Session]:
        """Open one that is in the store. It is open for others when the block ends, in place of the one that was; if the block fails, it is closed."""
        place.check()
        record = await read_record(self._store, session_id) if session_id else None
        if record is None or not rules.knows(record):
            raise RequestError.resource_not_found(session_id)
        self._check_idle(session_id)
        self._taken_up[session_id] += 1
        try:
            session = await self._make(session_id, place, record)
            try:
                session.has_title = record.title is not None
                await session.conversation.agive_up_pending_actions(GIVEN_UP)
                yield session
            except BaseException:
                await shielded(session.close)
                raise
        finally:
            self._taken_up -= Counter([session_id])
        await self._put(session)

    def _check_idle(self, session_id: str) -> None:
        session = self._open.get(session_id)
        if session is not None and (session.answering or session.conversation.status == "running"):
            raise RequestError.invalid_request(
                {"details": f"session {session_id!r} is answering a prompt: cancel that first"}
            )

    async def open(self, session_id: str, place: Place) -> Session:
        """Open a new one."""
        place.check()
        session = await self._make(session_id, place)
        await self._put(session)
        return session

    async def _put(self, session: Session) -> None:
        before = self._open.get(session.id)
        self._open[session.id] = session
        if before is not None:
            await shielded(before.close)

    async def _make(self, session_id: str, place: Place, known: Record | None = None) -> Session:
        assert self.client is not None
        directories = place.directories or []
        session = Session(session_id, place.cwd, directories, self.client, self.capabilities, place.folders)
        session.servers = await connect_servers(place.mcp_servers or (), place.cwd, self._mcp_needs_approval)
        try:
            context = self._context(session) if callable(self._context) else self._context
            if inspect.isawaitable(context):
                context = await context
            if known is None or (known.cwd, known.additional_directories) != (place.cwd, tuple(directories)):
                await write_record(self._store, session_id, place.cwd, directories)
            session.conversation = await self._conversation(session, context)
        except BaseException:
            await shielded(session.close)
            raise
        return session

    async def _conversation(self, session: Session, context: Any) -> Conversation:
        agent = self._agent
        if session.servers:
            agent = agent.clone(mcp_servers=[*agent.mcp_servers, *session.servers])
        make = partial(
            Conversation,
            agent,
            store=self._store,
            conversation_id=session.id,
            context=context,
            hooks=ShowsStarts(),
            run_config=self._config,
            max_turns=self._max_turns,
        )
        # It reads its log, and waits for the disk to do so.
        in_memory = isinstance(self._store, MemoryStore)
        return make() if in_memory else await to_thread(make, name="open conversation")
