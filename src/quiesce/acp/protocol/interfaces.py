"""What an agent does for a client, and a client for an agent.

Names, parameters and their order are those of agent-client-protocol's `acp.interfaces`, with what the stable schema has besides (`logout`,
`delete_session`) and without what it has not (`fork_session`). Either may be implemented in part: a method that is not there is answered with
-32601. What `meta` of a message says comes as further keyword arguments.

The same classes describe both ends: what an agent is given to reach its client is a `Client`, and the other way round.
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
    """What an agent can ask of a client."""

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **kwargs: Any
    ) -> RequestPermissionResponse:
        """`session/request_permission`: may this tool be called?"""
        ...

    async def session_update(self, session_id: str, update: SessionUpdate, **kwargs: Any) -> None:
        """`session/update`: something is new about a session."""
        ...

    async def write_text_file(
        self, session_id: str, path: str, content: str, **kwargs: Any
    ) -> WriteTextFileResponse | None:
        """`fs/write_text_file`."""
        ...

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> ReadTextFileResponse:
        """`fs/read_text_file`: `limit` lines from `line`, of which 1 is the first."""
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
        """`terminal/create`: start a command, and do not wait for it."""
        ...

    async def terminal_output(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> TerminalOutputResponse:
        """`terminal/output`: what the command has said so far."""
        ...

    async def release_terminal(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> ReleaseTerminalResponse | None:
        """`terminal/release`: end the command, if it still runs, and forget the terminal."""
        ...

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> WaitForTerminalExitResponse:
        """`terminal/wait_for_exit`."""
        ...

    async def kill_terminal(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> KillTerminalResponse | None:
        """`terminal/kill`: end the command, and keep the terminal."""
        ...

    async def create_elicitation(
        self, message: str, mode: ElicitationMode, **kwargs: Any
    ) -> CreateElicitationResponse:
        """`elicitation/create`: ask the user."""
        ...

    async def complete_elicitation(self, elicitation_id: str, **kwargs: Any) -> None:
        """`elicitation/complete`: the user has done what the address was for."""
        ...

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request of somebody's own; `method` is without its leading `_`."""
        ...

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """A notification of somebody's own; `method` is without its leading `_`."""
        ...

    def on_connect(self, conn: Agent) -> None:
        """The connection is made, and this is how to reach the agent."""
        ...


class Agent(Protocol):
    """What a client can ask of an agent."""

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **kwargs: Any,
    ) -> InitializeResponse:
        """`initialize`: the first request of all."""
        ...

    async def new_session(
        self,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[McpServer] | None = None,
        **kwargs: Any,
    ) -> NewSessionResponse:
        """`session/new`."""
        ...

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: list[McpServer] | None = None,
        additional_directories: list[str] | None = None,
        **kwargs: Any,
    ) -> LoadSessionResponse | None:
        """`session/load`: go on with a session, after its whole history was sent as updates."""
        ...

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> ListSessionsResponse:
        """`session/list`."""
        ...

    async def delete_session(self, session_id: str, **kwargs: Any) -> DeleteSessionResponse | None:
        """`session/delete`: it is no longer listed, nor can it be loaded."""
        ...

    async def set_session_mode(
        self, session_id: str, mode_id: str, **kwargs: Any
    ) -> SetSessionModeResponse | None:
        """`session/set_mode`."""
        ...

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **kwargs: Any
    ) -> SetSessionConfigOptionResponse | None:
        """`session/set_config_option`."""
        ...

    async def authenticate(self, method_id: str, **kwargs: Any) -> AuthenticateResponse | None:
        """`authenticate`."""
        ...

    async def logout(self, **kwargs: Any) -> LogoutResponse | None:
        """`logout`."""
        ...

    async def prompt(self, session_id: str, prompt: list[ContentBlock], **kwargs: Any) -> PromptResponse:
        """`session/prompt`: one turn, from what the user says to the reason why the agent stops."""
        ...

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[McpServer] | None = None,
        **kwargs: Any,
    ) -> ResumeSessionResponse:
        """`session/resume`: go on with a session, without its history."""
        ...

    async def close_session(self, session_id: str, **kwargs: Any) -> CloseSessionResponse | None:
        """`session/close`: stop the session's work, and free what it holds."""
        ...

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        """`session/cancel`: stop the turn."""
        ...

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request of somebody's own; `method` is without its leading `_`."""
        ...

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """A notification of somebody's own; `method` is without its leading `_`."""
        ...

    def on_connect(self, conn: Client) -> None:
        """The connection is made, and this is how to reach the client."""
        ...
