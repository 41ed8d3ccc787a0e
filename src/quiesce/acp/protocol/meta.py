"""The methods of the protocol, by their keys in agent-client-protocol, and the supported version.

Only methods of the stable schema are here. agent-client-protocol also lists methods of drafts (`providers/*`,
`mcp/*`, `nes/*`, `document/*`, `session/fork`): agents and clients that need those handle them as extension
methods.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1

# Requests and notifications from a client to an agent.
AGENT_METHODS: Final = {
    "initialize": "initialize",
    "authenticate": "authenticate",
    "logout": "logout",
    "session_new": "session/new",
    "session_load": "session/load",
    "session_list": "session/list",
    "session_delete": "session/delete",
    "session_resume": "session/resume",
    "session_close": "session/close",
    "session_set_mode": "session/set_mode",
    "session_set_config_option": "session/set_config_option",
    "session_prompt": "session/prompt",
    "session_cancel": "session/cancel",
}

# Requests and notifications from an agent to a client.
CLIENT_METHODS: Final = {
    "session_request_permission": "session/request_permission",
    "session_update": "session/update",
    "fs_write_text_file": "fs/write_text_file",
    "fs_read_text_file": "fs/read_text_file",
    "terminal_create": "terminal/create",
    "terminal_output": "terminal/output",
    "terminal_release": "terminal/release",
    "terminal_wait_for_exit": "terminal/wait_for_exit",
    "terminal_kill": "terminal/kill",
    "elicitation_create": "elicitation/create",
    "elicitation_complete": "elicitation/complete",
}
