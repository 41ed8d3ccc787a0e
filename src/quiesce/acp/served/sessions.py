"""The open sessions of one connection: each has a conversation, its folders and its MCP servers.

The MCP servers of a session belong to the connection, and are closed with the session. If a session that is
open here is loaded again, it stays open until the new one is ready; if that fails or is cancelled, the old
one stays in use.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quiesce import shielded, to_thread
from quiesce.acp.exceptions import RequestError
from quiesce.agents import Conversation, MemoryStore

from .mcp import connect_servers
from .records import Record, read_record, write_record
from .session import Session, close_each
from .updates import ReportStarts

if TYPE_CHECKING:
    from quiesce.acp import schema as s
    from quiesce.acp.connection import AgentSideConnection
    from quiesce.agents import Agent, RunConfig, Store
    from quiesce.agents.inner import NeedsApproval

    from .rules import Place, Rules

NOT_APPROVED: Final = "Not started: interrupted before this call was approved."


class Sessions:
    """The open sessions, by id."""

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
        # How often a session is being loaded or resumed at the moment.
        self._reopening: Counter[str] = Counter()
        self.client: AgentSideConnection | None = None
        #: The client's.
        self.capabilities: s.ClientCapabilities | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, session_id: str) -> Session:
        session = self._open.get(session_id)
        if session is None:
            raise RequestError.resource_not_found(session_id)
        return session

    def ready_for_prompt(self, session_id: str) -> Session:
        """Return a session that can take a prompt now; raise `RequestError` if it is being loaded."""
        session = self[session_id]
        if self._reopening[session_id]:
            raise RequestError.invalid_request(
                {"details": f"session {session_id!r} is being loaded: wait until that is done"}
            )
        return session

    async def close(self, session_id: str) -> None:
        """Close a session, if it is open."""
        session = self._open.pop(session_id, None)
        if session is not None:
            await shielded(session.close)

    async def close_all(self) -> None:
        """Close all sessions, also if closing one raises an error."""
        await close_each(self._removed())

    def _removed(self) -> Iterator[Session]:
        while self._open:
            _, session = self._open.popitem()
            yield session

    @asynccontextmanager
    async def reopening(self, session_id: str, place: Place, rules: Rules) -> AsyncIterator[Session]:
        """Open a stored session for the block, which then replaces the open one.

        If the block raises an error, the session is closed.
        """
        place.check()
        record = await read_record(self._store, session_id) if session_id else None
        if record is None or not rules.allow(record.folders):
            raise RequestError.resource_not_found(session_id)
        self._check_idle(session_id)
        self._reopening[session_id] += 1
        try:
            session = await self._make(session_id, place, record)
            try:
                session.has_title = record.title is not None
                await session.conversation.agive_up_pending_actions(NOT_APPROVED)
                yield session
            except BaseException:
                await shielded(session.close)
                raise
        finally:
            # Subtracting a Counter also removes the entry when it reaches zero.
            self._reopening -= Counter([session_id])
        await self._replace(session)

    def _check_idle(self, session_id: str) -> None:
        session = self._open.get(session_id)
        if session is not None and (session.answering or session.conversation.status == "running"):
            raise RequestError.invalid_request(
                {"details": f"session {session_id!r} is answering a prompt: cancel it first"}
            )

    async def open(self, session_id: str, place: Place) -> Session:
        """Open a new session."""
        place.check()
        session = await self._make(session_id, place)
        await self._replace(session)
        return session

    async def _replace(self, session: Session) -> None:
        previous = self._open.get(session.id)
        self._open[session.id] = session
        if previous is not None:
            await shielded(previous.close)

    async def _make(self, session_id: str, place: Place, record: Record | None = None) -> Session:
        assert self.client is not None
        directories = place.directories or []
        session = Session(session_id, place.cwd, directories, self.client, self.capabilities, place.folders)
        session.servers = await connect_servers(place.mcp_servers or (), place.cwd, self._mcp_needs_approval)
        try:
            context = self._context(session) if callable(self._context) else self._context
            if inspect.isawaitable(context):
                context = await context
            location = (place.cwd, tuple(directories))
            if record is None or (record.cwd, record.additional_directories) != location:
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
            hooks=ReportStarts(),
            run_config=self._config,
            max_turns=self._max_turns,
        )
        # Making a conversation reads its log, which blocks on the disk.
        in_memory = isinstance(self._store, MemoryStore)
        return make() if in_memory else await to_thread(make, name="open conversation")
