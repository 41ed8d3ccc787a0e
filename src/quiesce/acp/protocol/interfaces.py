"""What a client can ask of an agent, and an agent of a client.

Names, parameters and their order are those of agent-client-protocol's `acp.interfaces`, plus the methods that
only the stable schema has (`logout`, `delete_session`), minus those that it does not have (`fork_session`).
Both may be implemented in part: a call to a missing method is answered with -32601. The entries of a
message's `meta` arrive as further keyword arguments.

The same classes describe both ends: the object through which an agent reaches its client is a `Client`, and
vice versa.
"""

from __future__ import annotations

from typing import Any, Protocol

from quiesce.acp.schema import (
    AuthenticateResponse,
    ClientCapabilities,
    CloseSessionResponse,
    ContentBlock,
    CreateElicitationResponse,
    CreateTerminalResponse,
    DeleteSessionResponse,
    ElicitationMode,
    EnvVariable,
    Implementation,
    InitializeResponse,
    KillTerminalResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    LogoutResponse,
    McpServer,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ReadTextFileResponse,
    ReleaseTerminalResponse,
    RequestPermissionResponse,
    ResumeSessionResponse,
    SessionUpdate,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
    TerminalOutputResponse,
    ToolCallUpdate,
    WaitForTerminalExitResponse,
    WriteTextFileResponse,
)

__all__ = ["Agent", "Client"]


class Client(Protocol):
    """The methods that an agent can call on a client."""

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **kwargs: Any
    ) -> RequestPermissionResponse:
        """`session/request_permission`: ask the user whether this tool may be called."""
        ...

    async def session_update(self, session_id: str, update: SessionUpdate, **kwargs: Any) -> None:
        """`session/update`: report a change in a session."""
        ...

    async def write_text_file(
        self, session_id: str, path: str, content: str, **kwargs: Any
    ) -> WriteTextFileResponse | None:
        """`fs/write_text_file`: write a text file."""
        ...

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> ReadTextFileResponse:
        """`fs/read_text_file`: return `limit` lines beginning at `line`; the first line is 1."""
        ...

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[EnvVariable] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **kwargs: Any,
    ) -> CreateTerminalResponse:
        """`terminal/create`: start a command without waiting for it."""
        ...

    async def terminal_output(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> TerminalOutputResponse:
        """`terminal/output`: return the output of the command so far."""
        ...

    async def release_terminal(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> ReleaseTerminalResponse | None:
        """`terminal/release`: stop the command if it is still running, and forget the terminal."""
        ...

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> WaitForTerminalExitResponse:
        """`terminal/wait_for_exit`: wait until the command has exited."""
        ...

    async def kill_terminal(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> KillTerminalResponse | None:
        """`terminal/kill`: stop the command, and keep the terminal."""
        ...

    async def create_elicitation(
        self, message: str, mode: ElicitationMode, **kwargs: Any
    ) -> CreateElicitationResponse:
        """`elicitation/create`: ask the user a question."""
        ...

    async def complete_elicitation(self, elicitation_id: str, **kwargs: Any) -> None:
        """`elicitation/complete`: the user has done what the URL was for."""
        ...

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Handle a request that is an extension; `method` comes without its leading `_`."""
        ...

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Handle a notification that is an extension; `method` comes without its leading `_`."""
        ...

    def on_connect(self, conn: Agent) -> None:
        """Called when the connection is made; `conn` is the way to reach the agent."""
        ...


class Agent(Protocol):
    """The methods that a client can call on an agent."""

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **kwargs: Any,
    ) -> InitializeResponse:
        """`initialize`: the first request on a connection."""
        ...

    async def new_session(
        self,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[McpServer] | None = None,
        **kwargs: Any,
    ) -> NewSessionResponse:
        """`session/new`: begin a session."""
        ...

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: list[McpServer] | None = None,
        additional_directories: list[str] | None = None,
        **kwargs: Any,
    ) -> LoadSessionResponse | None:
        """`session/load`: continue a session, after sending its whole history as updates."""
        ...

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> ListSessionsResponse:
        """`session/list`: return the stored sessions, one page at a time."""
        ...

    async def delete_session(self, session_id: str, **kwargs: Any) -> DeleteSessionResponse | None:
        """`session/delete`: remove the session, so that it is no longer listed and cannot be loaded."""
        ...

    async def set_session_mode(
        self, session_id: str, mode_id: str, **kwargs: Any
    ) -> SetSessionModeResponse | None:
        """`session/set_mode`: change the mode of a session."""
        ...

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **kwargs: Any
    ) -> SetSessionConfigOptionResponse | None:
        """`session/set_config_option`: change an option of a session."""
        ...

    async def authenticate(self, method_id: str, **kwargs: Any) -> AuthenticateResponse | None:
        """`authenticate`: log the user in by one of the methods that the agent named."""
        ...

    async def logout(self, **kwargs: Any) -> LogoutResponse | None:
        """`logout`: undo `authenticate`."""
        ...

    async def prompt(self, session_id: str, prompt: list[ContentBlock], **kwargs: Any) -> PromptResponse:
        """`session/prompt`: one turn, from the user's message to the reason why the agent stopped."""
        ...

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[McpServer] | None = None,
        **kwargs: Any,
    ) -> ResumeSessionResponse:
        """`session/resume`: continue a session without sending its history."""
        ...

    async def close_session(self, session_id: str, **kwargs: Any) -> CloseSessionResponse | None:
        """`session/close`: stop the session's work, and release its resources."""
        ...

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        """`session/cancel`: stop the turn."""
        ...

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Handle a request that is an extension; `method` comes without its leading `_`."""
        ...

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Handle a notification that is an extension; `method` comes without its leading `_`."""
        ...

    def on_connect(self, conn: Client) -> None:
        """Called when the connection is made; `conn` is the way to reach the client."""
        ...
