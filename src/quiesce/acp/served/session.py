"""One session of a served agent, as its tools see it: where it works, and its client.

A tool gets its session from `current_session()`, in tasks and in threads; outside of ACP there is none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quiesce import current_token
from quiesce._safe.files import Approved, Folders
from quiesce.acp import schema as s
from quiesce.agents.inner import close_ignoring_leftovers
from quiesce.wire import ConnectionEnded, RequestCancelled

if TYPE_CHECKING:
    from quiesce.acp.connection import AgentSideConnection
    from quiesce.agents import Conversation
    from quiesce.agents.inner import MCPServer

T = TypeVar("T")

ASK: Final = "ask"
AUTO: Final = "auto"

MODES: Final = (
    s.SessionMode(id=ASK, name="Ask", description="Asks before a tool runs that needs approval."),
    s.SessionMode(id=AUTO, name="Auto-approve", description="Runs every tool without asking."),
)

_current: ContextVar[Session | None] = ContextVar("acp_session", default=None)


class Session:
    """A session: tools may work in `cwd` and `additional_directories`; `client` is its connection.

    ```python
    session = current_session()
    if session is not None and session.can_read_files:
        file = await session.client.read_text_file(session.id, path)
    ```
    """

    def __init__(
        self,
        session_id: str,
        cwd: str,
        additional_directories: Sequence[str],
        client: AgentSideConnection,
        capabilities: s.ClientCapabilities | None,
        folders: Folders | None = None,
    ) -> None:
        self.id = session_id
        self.cwd = cwd
        self.additional_directories = tuple(additional_directories)
        self.folders = folders if folders is not None else Folders([cwd, *additional_directories])
        self.client = client
        self.capabilities = capabilities or s.ClientCapabilities()
        self.mode = ASK
        #: Tools that the user need not be asked about again.
        self.allowed: set[str] = set()
        #: Tool calls that have not ended, as far as the client knows.
        self.open_calls: set[str] = set()
        #: Those whose tool has shown content of its own, which replaces the tool's output.
        self.with_content: set[str] = set()
        self.approved = Approved()
        self.has_title = False
        #: Whether the session is in a turn, including the time before and after the conversation runs.
        self.answering = False
        #: Set as soon as it is open.
        self.conversation: Conversation = None  # type: ignore[assignment]
        self.servers: list[MCPServer] = []

    @property
    def can_read_files(self) -> bool:
        """Whether the client reads files for the agent."""
        return self.capabilities.fs.read_text_file

    @property
    def can_write_files(self) -> bool:
        """Whether the client writes files for the agent."""
        return self.capabilities.fs.write_text_file

    @property
    def has_terminals(self) -> bool:
        """Whether the client runs commands for the agent."""
        return self.capabilities.terminal

    async def update(self, update: Any) -> None:
        """Send the client an update; do nothing if it has disconnected."""
        try:
            await self.client.session_update(self.id, update)
        except ConnectionEnded:
            # The end of the connection is stopping the turn already, so this must not fail as well.
            pass

    async def show(
        self,
        call_id: str,
        *,
        content: Sequence[Any] | None = None,
        locations: Sequence[s.ToolCallLocation] | None = None,
        title: str | None = None,
    ) -> None:
        """Show something for a tool call: a diff, a terminal, the files it touches.

        `content` replaces the tool's output. Nothing is shown for calls that the client does not know: those
        of an agent that is itself a tool.
        """
        if call_id not in self.open_calls:
            return
        if content is not None:
            self.with_content.add(call_id)
        await self.update(
            s.ToolCallProgress(
                tool_call_id=call_id,
                title=title,
                content=list(content) if content is not None else None,
                locations=list(locations) if locations is not None else None,
            )
        )

    async def close(self) -> None:
        """Close the session's conversation and MCP servers; a turn's leftovers stay with the connection."""
        try:
            if self.conversation is not None:
                # A turn that left something over has already used up its grace, so do not wait for it again.
                await close_ignoring_leftovers(self.conversation)
        finally:
            await close_each(iter(self.servers))

    def __repr__(self) -> str:
        return f"<Session {self.id!r} in {self.cwd!r}>"


async def close_each(things: Iterator[Session | MCPServer]) -> None:
    """Close all of them in turn, also if closing one raises an error; that error is raised in the end."""
    for thing in things:
        try:
            await thing.close()
        except BaseException:
            # On a cancel too: closing the others at least starts, and goes on in their owners' tasks.
            await close_each(things)
            raise


async def client_answer(answer: Awaitable[T]) -> T:
    """Return the client's answer to a tool's request.

    If the request was withdrawn because the turn is being stopped, raise the tool's own cancellation instead
    of the error.
    """
    try:
        return await answer
    except RequestCancelled:
        current_token().raise_if_cancelled()
        raise


def current_session() -> Session | None:
    """Return the session that the calling tool works for; None outside of ACP."""
    return _current.get()


def enter_session(session: Session) -> None:
    """Make this the session of the current task and of everything that it starts."""
    _current.set(session)
