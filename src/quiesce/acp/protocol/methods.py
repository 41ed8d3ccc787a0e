"""The requests of the protocol: their names, parameters, and the capability that each of them requires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from quiesce.acp import schema as s


@dataclass(frozen=True, slots=True)
class Method:
    """One request of the protocol."""

    #: On the wire.
    name: str
    #: The method of the agent or client that handles it.
    attribute: str
    #: A message class, or a union of several.
    params: Any
    #: The capability that the other side must have announced, as a path of attributes; None if none is
    #: required.
    capability: str | None = None
    #: A handler may return None, which is sent as an empty object.
    may_be_empty: bool = False


AGENT: Final = {
    method.attribute: method
    for method in (
        Method("initialize", "initialize", s.InitializeRequest),
        Method("authenticate", "authenticate", s.AuthenticateRequest, None, True),
        Method("logout", "logout", s.LogoutRequest, "auth.logout", True),
        Method("session/new", "new_session", s.NewSessionRequest),
        Method("session/load", "load_session", s.LoadSessionRequest, "load_session", True),
        Method(
            "session/resume", "resume_session", s.ResumeSessionRequest, "session_capabilities.resume", True
        ),
        Method("session/list", "list_sessions", s.ListSessionsRequest, "session_capabilities.list"),
        Method("session/close", "close_session", s.CloseSessionRequest, "session_capabilities.close", True),
        Method(
            "session/delete", "delete_session", s.DeleteSessionRequest, "session_capabilities.delete", True
        ),
        Method("session/set_mode", "set_session_mode", s.SetSessionModeRequest, None, True),
        Method("session/set_config_option", "set_config_option", s.SetSessionConfigOptionRequest),
        Method("session/prompt", "prompt", s.PromptRequest),
    )
}

CLIENT: Final = {
    method.attribute: method
    for method in (
        Method("session/request_permission", "request_permission", s.RequestPermissionRequest),
        Method("fs/write_text_file", "write_text_file", s.WriteTextFileRequest, "fs.write_text_file", True),
        Method("fs/read_text_file", "read_text_file", s.ReadTextFileRequest, "fs.read_text_file"),
        Method("terminal/create", "create_terminal", s.CreateTerminalRequest, "terminal"),
        Method("terminal/output", "terminal_output", s.TerminalOutputRequest, "terminal"),
        Method("terminal/release", "release_terminal", s.ReleaseTerminalRequest, "terminal", True),
        Method("terminal/wait_for_exit", "wait_for_terminal_exit", s.WaitForTerminalExitRequest, "terminal"),
        Method("terminal/kill", "kill_terminal", s.KillTerminalRequest, "terminal", True),
        Method("elicitation/create", "create_elicitation", s.CreateElicitationRequest, "elicitation"),
    )
}
