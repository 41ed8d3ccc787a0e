"""The sessions of one connection: a conversation each, with its id, and what the client has named for it.

What a session opens (its MCP servers) belongs to the connection, and is closed with the session.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quiesce.agents._conversation import Conversation
from quiesce.agents._memory_store import MemoryStore
from quiesce.kernel._shielded import shielded
from quiesce.kernel._thread import to_thread

from ._served_mcp import connect_servers
from ._served_records import Record, read_record, write_record
from ._served_session import Session
from ._served_updates import ShowsStarts
from .exceptions import RequestError

if TYPE_CHECKING:
    from quiesce.agents._agent import Agent
    from quiesce.agents._context import RunConfig
    from quiesce.agents._log import Store
    from quiesce.agents._tool import NeedsApproval

    from . import schema as s
    from ._agent_connection import AgentSideConnection

GIVEN_UP: Final = "Not started: interrupted before anybody had approved this call."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session shall work, and with which MCP servers: what a client says when it opens one."""

    cwd: str
    directories: list[str] | None
    mcp_servers: list[Any] | None

    def check(self) -> None:
        """An error for a path that depends on where somebody stands."""
        for path in (self.cwd, *(self.directories or ())):
            if not os.path.isabs(path):
                raise RequestError.invalid_params({"cwd": f"{path!r} is no absolute path"})


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
        self.client: AgentSideConnection | None = None
        self.capabilities: s.ClientCapabilities | None = None  # the client's

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, session_id: str) -> Session:
        session = self._open.get(session_id)
        if session is None:
            raise RequestError.resource_not_found(session_id)
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

    async def take_up(self, session_id: str, place: Place) -> Session:
        """Open one that is in the store."""
        record = await read_record(self._store, session_id) if session_id else None
        if record is None:
            raise RequestError.resource_not_found(session_id)
        before = self._open.get(session_id)
        if before is not None and before.conversation.status == "running":
            raise RequestError.invalid_request(
                {"details": f"session {session_id!r} is answering a prompt: cancel that first"}
            )
        await self.close(session_id)
        session = await self.open(session_id, place, record)
        session.has_title = record.title is not None
        await session.conversation.agive_up_pending_actions(GIVEN_UP)
        return session

    async def open(self, session_id: str, place: Place, known: Record | None = None) -> Session:
        """Open one, new or not."""
        place.check()
        assert self.client is not None
        directories = place.directories or []
        session = Session(session_id, place.cwd, directories, self.client, self.capabilities)
        session.servers = await connect_servers(place.mcp_servers or (), place.cwd, self._mcp_needs_approval)
        try:
            if known is None or (known.cwd, known.additional_directories) != (place.cwd, tuple(directories)):
                await write_record(self._store, session_id, place.cwd, directories)
            session.conversation = await self._conversation(session)
        except BaseException:
            await shielded(session.close)
            raise
        before = self._open.get(session_id)
        self._open[session_id] = session
        if before is not None:  # somebody has asked twice at once
            await shielded(before.close)
        return session

    async def _conversation(self, session: Session) -> Conversation:
        agent = self._agent
        if session.servers:
            agent = agent.clone(mcp_servers=[*agent.mcp_servers, *session.servers])
        context = self._context(session) if callable(self._context) else self._context
        if inspect.isawaitable(context):
            context = await context
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
