"""A quiesce `Agent`, served over ACP.

Invariants
- A session is a `Conversation` with the session's id; everything that happened in a turn is in the store
  before the client is told that the turn has ended.
- A turn is stopped by cancelling its handler, which the connection does (`turns`). Before the turn is
  answered, the run is drained, every tool call has exactly one result, and the client has seen each of them
  end.

The open sessions are in `sessions`, the updates that the client gets during a turn in `updates`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

from quiesce import shielded
from quiesce.acp import schema as s
from quiesce.acp.connection import run_agent
from quiesce.acp.exceptions import RequestError
from quiesce.acp.protocol import PROTOCOL_VERSION
from quiesce.agents import (
    Agent,
    ConversationBusy,
    GuardrailTripwireTriggered,
    MaxTurnsExceeded,
    MemoryStore,
    RunConfig,
    StoreConflict,
)
from quiesce.models import ModelError, ModelRefusalError, UserMessage

from .content import content_of
from .permissions import ask_client
from .records import list_records, new_session_id, read_record
from .replay import replay
from .rules import Place, Rules
from .session import AUTO, MODES, Session, enter_session
from .sessions import NOT_APPROVED, Sessions
from .updates import TurnUpdates, title_of

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce.agents import Store
    from quiesce.agents.inner import NeedsApproval


MAX_TURNS: Final = 100


class ServedAgent:
    """Makes an `Agent` of quiesce an agent of ACP, for one connection.

    ```python
    quiesce.run(lambda: run_agent(ServedAgent(agent, store="sessions.db")))
    ```

    - `store`: where sessions are stored: the path of a SQLite file, or a `Store`, which several connections
      may share. With None they are in memory only, and cannot be loaded, listed or deleted.
    - `name`, `title`, `version`: how the agent introduces itself to the client; the name is the agent's own
      by default.
    - `auth_methods`, `authenticate`: the ways to authenticate, and an async function that takes the id of one
      and does it, or raises. If it is given, nothing else is answered before the client has authenticated.
    - `context`: the context for tools, or a function of a `Session` that makes it.
    - `images`: whether the model accepts pictures.
    - `context_window`: how many tokens the model accepts; if given, the client is told how many are used.
    - `mcp_needs_approval`: whether tools of MCP servers that the client names need its approval; true by
      default.
    - `run_config`, `max_turns`: as for a `Conversation`, for each prompt. Your own `approve` replaces the
      question to the client.
    - `folders`: the folders in which, and below which, sessions may work.
    - `allow_commands`: whether a client may name MCP servers by a command, which is then run here.
    - `allow_auto`: whether a client may choose the mode in which the user is not asked.

    For clients from the network (`transport.client`, unless it is on a socket in the file system), the
    defaults of the last three are the current folder, no and no; for all others any folder, yes and yes.

    Tools get the session that they work for from `quiesce.acp.tools.current_session()`.
    """

    def __init__(
        self,
        agent: Agent[Any],
        *,
        store: Store | str | os.PathLike[str] | None = None,
        name: str | None = None,
        title: str | None = None,
        version: str = "0",
        auth_methods: Sequence[Any] = (),
        authenticate: Callable[[str], Awaitable[object]] | None = None,
        context: Any = None,
        images: bool = True,
        context_window: int | None = None,
        mcp_needs_approval: NeedsApproval = True,
        run_config: RunConfig | None = None,
        max_turns: int | None = MAX_TURNS,
        folders: Sequence[str | os.PathLike[str]] | None = None,
        allow_commands: bool | None = None,
        allow_auto: bool | None = None,
    ) -> None:
        if not isinstance(agent, Agent):
            raise TypeError(f"ServedAgent needs a quiesce.agents.Agent, not {type(agent).__name__}")
        self.agent = agent
        self._is_persistent = store is not None
        self._owns_store = isinstance(store, (str, os.PathLike))
        self._store = _store_at(store)
        self._info = s.Implementation(name=name or agent.name, title=title, version=version)
        self._auth_methods = list(auth_methods)
        self._authenticate = authenticate
        self._needs_authentication = authenticate is not None
        self._images = images
        self._context_window = context_window
        config = run_config or RunConfig()
        if config.approve is None:
            config = replace(config, approve=ask_client)
        self._rules = Rules(folders, allow_commands, allow_auto)
        self._sessions = Sessions(agent, self._store, context, config, max_turns, mcp_needs_approval)

    def on_connect(self, conn: Any) -> None:
        """Called when the connection is made."""
        if self._sessions.client is not None:
            raise RuntimeError(
                "this ServedAgent already has a connection: make one ServedAgent per connection"
            )
        self._sessions.client = conn
        self._rules = self._rules.for_client(getattr(conn, "client", None))

    async def close(self) -> None:
        """Close all sessions, and the store if it was given as a path.

        The end of the connection has already stopped all turns.
        """
        try:
            await self._sessions.close_all()
        finally:
            if self._owns_store:
                await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await shielded(self.close)

    # Before any session

    async def initialize(
        self, protocol_version: int, client_capabilities: s.ClientCapabilities | None = None, **kwargs: Any
    ) -> s.InitializeResponse:
        """`initialize`: announce the agent's capabilities."""
        self._sessions.capabilities = client_capabilities
        is_persistent = self._is_persistent
        return s.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=s.AgentCapabilities(
                load_session=is_persistent,
                prompt_capabilities=s.PromptCapabilities(image=self._images, embedded_context=True),
                mcp_capabilities=s.McpCapabilities(http=find_spec("mcp") is not None),
                session_capabilities=s.SessionCapabilities(
                    list=s.SessionListCapabilities() if is_persistent else None,
                    delete=s.SessionDeleteCapabilities() if is_persistent else None,
                    resume=s.SessionResumeCapabilities() if is_persistent else None,
                    close=s.SessionCloseCapabilities(),
                    additional_directories=s.SessionAdditionalDirectoriesCapabilities(),
                ),
            ),
            auth_methods=list(self._auth_methods),
            agent_info=self._info,
        )

    async def authenticate(self, method_id: str, **kwargs: Any) -> s.AuthenticateResponse:
        """`authenticate`: call the function that was given for this."""
        if self._authenticate is None:
            raise RequestError.invalid_request({"details": "this agent does not need authentication"})
        await self._authenticate(method_id)
        self._needs_authentication = False
        return s.AuthenticateResponse()

    def _check_authenticated(self) -> None:
        if self._needs_authentication:
            raise RequestError.auth_required()

    # Sessions

    async def new_session(
        self,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **kwargs: Any,
    ) -> s.NewSessionResponse:
        """`session/new`: open a session with an empty history."""
        self._check_authenticated()
        session = await self._sessions.open(
            new_session_id(), self._place(cwd, additional_directories, mcp_servers)
        )
        return s.NewSessionResponse(session_id=session.id, modes=self._modes(session))

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: list[Any] | None = None,
        additional_directories: list[str] | None = None,
        **kwargs: Any,
    ) -> s.LoadSessionResponse:
        """`session/load`: open a stored session, and send its whole history before the answer."""
        self._check_persistent("session/load")
        place = self._place(cwd, additional_directories, mcp_servers)
        async with self._sessions.reopening(session_id, place, self._rules) as session:
            for update in replay(session.conversation.items, self.agent):
                await session.update(update)
        return s.LoadSessionResponse(modes=self._modes(session))

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **kwargs: Any,
    ) -> s.ResumeSessionResponse:
        """`session/resume`: open a stored session whose history the client already has."""
        self._check_persistent("session/resume")
        place = self._place(cwd, additional_directories, mcp_servers)
        async with self._sessions.reopening(session_id, place, self._rules) as session:
            pass
        return s.ResumeSessionResponse(modes=self._modes(session))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> s.ListSessionsResponse:
        """`session/list`: return a page of the stored sessions that the client may see."""
        self._check_persistent("session/list")
        return await list_records(self._store, cwd, cursor, self._rules)

    async def close_session(self, session_id: str, **kwargs: Any) -> s.CloseSessionResponse:
        """`session/close`: close the session; the connection has already stopped its turn."""
        await self._sessions.close(self._session(session_id).id)
        return s.CloseSessionResponse()

    async def delete_session(self, session_id: str, **kwargs: Any) -> s.DeleteSessionResponse:
        """`session/delete`: delete a session; a session that does not exist is not an error."""
        self._check_persistent("session/delete")
        # Without a record it is a conversation of another program in the same store, which must not be
        # deleted.
        record = await read_record(self._store, session_id) if session_id else None
        if record is not None and not self._rules.allow(record.folders):
            # To this client the session does not exist. An error would reveal that it does.
            return s.DeleteSessionResponse()
        await self._sessions.close(session_id)
        if record is not None:
            await self._store.delete(session_id)
        return s.DeleteSessionResponse()

    async def set_session_mode(
        self, session_id: str, mode_id: str, **kwargs: Any
    ) -> s.SetSessionModeResponse:
        """`session/set_mode`: choose whether the user is asked before tools that need approval."""
        session = self._session(session_id)
        modes = self._modes(session).available_modes
        if mode_id not in {mode.id for mode in modes}:
            available = ", ".join(mode.id for mode in modes)
            raise RequestError.invalid_params(
                {"modeId": f"there is no mode {mode_id!r}; available: {available}"}
            )
        session.mode = mode_id
        return s.SetSessionModeResponse()

    def _place(self, cwd: str, directories: list[str] | None, mcp_servers: list[Any] | None) -> Place:
        place = Place(cwd, directories, mcp_servers)
        place.check()
        self._rules.check(place)
        return place

    def _modes(self, session: Session) -> s.SessionModeState:
        """Return the session's mode, and those that the client may choose."""
        available = [mode for mode in MODES if mode.id != AUTO or self._rules.allow_auto]
        return s.SessionModeState(current_mode_id=session.mode, available_modes=available)

    def _session(self, session_id: str) -> Session:
        self._check_authenticated()
        return self._sessions[session_id]

    def _check_persistent(self, method: str) -> None:
        self._check_authenticated()
        if not self._is_persistent:
            raise RequestError.method_not_found(method)

    # Turns

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> s.PromptResponse:
        """`session/prompt`: run the agent for one turn."""
        self._check_authenticated()
        session = self._sessions.ready_for_prompt(session_id)
        session.answering = True
        try:
            return await self._answer(session, prompt)
        except ConversationBusy as busy:
            # It is known that this connection answers no other prompt of the session.
            raise RequestError.invalid_request(
                {"details": f"session {session_id!r} is being run elsewhere: {busy}"}
            ) from busy
        except StoreConflict as conflict:
            # Its conversation no longer matches the store, so it cannot be continued.
            await self._sessions.close(session_id)
            raise RequestError.invalid_request(
                {
                    "details": f"session {session_id!r} was continued elsewhere: load it again to continue it here "
                    f"({conflict})"
                }
            ) from conflict
        finally:
            session.answering = False

    async def _answer(self, session: Session, prompt: list[Any]) -> s.PromptResponse:
        content = content_of(prompt, images=self._images)
        enter_session(session)
        # Some models reuse the ids of tool calls: an approval must not outlive its turn.
        session.approved.clear()
        conversation, updates = session.conversation, TurnUpdates(session, self._context_window)
        await conversation.refresh()
        if conversation.status == "running":
            raise ConversationBusy("wait until its turn has ended there, or cancel that; nothing was sent")
        await conversation.asend_message(UserMessage(content))
        if not session.has_title and (title := title_of(content)) is not None:
            session.has_title = True
            await session.update(s.SessionInfoUpdate(title=title))
        reason: s.StopReason = "end_turn"
        try:
            status = await conversation.arun(on_event=updates.tell)
            # Interrupted by something other than a cancel of this handler.
            if status in ("paused", "taken_over"):
                reason = "cancelled"
            elif updates.finish == "length":
                reason = "max_tokens"
        except MaxTurnsExceeded:
            reason = "max_turn_requests"
        except ModelRefusalError:
            reason = "refusal"
        except GuardrailTripwireTriggered as tripped:
            await updates.say(f"Stopped: {tripped}.")
            reason = "refusal"
        except ModelError as error:
            raise RequestError.internal_error({"details": str(error)}) from error
        finally:
            await shielded(self._settle, session, updates)
        return s.PromptResponse(stop_reason=reason)

    async def _settle(self, session: Session, updates: TurnUpdates) -> None:
        """Make sure that each tool call of the run has ended, in the history and for the client."""
        try:
            await session.conversation.agive_up_pending_actions(NOT_APPROVED)
        finally:
            await updates.settle()

    def __repr__(self) -> str:
        return f"<ServedAgent {self.agent.name!r}, {len(self._sessions)} sessions>"


async def serve_agent(
    agent: Agent[Any], input_stream: Any = None, output_stream: Any = None, **options: Any
) -> None:
    """Serve a quiesce `Agent` over ACP until its client disconnects; over stdio unless given streams.

    ```python
    quiesce.run(lambda: serve_agent(agent, store="sessions.db"))
    ```

    The options are those of `ServedAgent` and of `run_agent`.
    """
    parameters = inspect.signature(ServedAgent).parameters
    served = ServedAgent(agent, **{name: options.pop(name) for name in list(options) if name in parameters})
    async with served:
        await run_agent(served, input_stream, output_stream, **options)


def _store_at(store: Store | str | os.PathLike[str] | None) -> Store:
    if store is None:
        return MemoryStore()
    if isinstance(store, (str, os.PathLike)):
        from quiesce.agents import SQLiteStore

        return SQLiteStore(store)
    return store
