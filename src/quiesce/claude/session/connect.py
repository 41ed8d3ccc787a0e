"""Making a session from options, and opening it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce import NotHeld
from quiesce.claude.process import transport_for
from quiesce.claude.tools import McpAnswers, server_of
from quiesce.claude.words import ClaudeAgentOptions, CLIConnectionError, check_options
from quiesce.kernel.inner import start_holding
from quiesce.wire import Limits

from .handlers import handlers_for
from .initialize import initialize_request
from .session import Session

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.kernel.inner import Holding, Site

_CONNECT_TIMEOUT = 60.0  # seconds; a CLI that first starts MCP servers may need many


def session_for(
    options: ClaudeAgentOptions,
    transport: object,
    grace: Grace | None,
) -> Session:
    """Return a session for these options; nothing is started yet."""
    if not isinstance(options, ClaudeAgentOptions):
        raise TypeError(f"options must be a ClaudeAgentOptions, not {type(options).__name__}")
    check_options(options)
    request, callbacks = initialize_request(options)
    handlers = handlers_for(callbacks, options.can_use_tool, _servers_of(options))
    limits = Limits() if options.max_buffer_size is None else Limits(frame=options.max_buffer_size)
    return Session(
        transport_for(options, transport, grace),
        handlers,
        request,
        limits,
        verbatim=options.verbatim_prompts,
        connect_timeout=_CONNECT_TIMEOUT,
    )


def _servers_of(options: ClaudeAgentOptions) -> dict[str, McpAnswers]:
    """Return the servers that run in this process; the CLI starts the others itself."""
    configs = options.mcp_servers if isinstance(options.mcp_servers, dict) else {}
    return {name: server_of(config) for name, config in configs.items() if config.get("type") == "sdk"}


def begin(
    session: Session, made_at: Site, grace: Grace | None = None, scope: Scope | None = None
) -> Holding[Session]:
    """Begin to open the session, for the user's line `made_at`. What this returns can close it at once."""
    try:
        return start_holding(session, "claude", made_at, grace=grace, scope=scope)
    except BaseException:
        session.transport.discard()  # a transport that was handed to us is ours to release
        raise


async def connected(session: Session, held: Holding[Session]) -> None:
    """Wait until the session is open. If that fails or is cancelled, nothing is left running."""
    try:
        await held.wait_until_entered()
    except BaseException as error:
        session.transport.discard()  # the owner may have been cancelled before its first step
        if isinstance(error, NotHeld):
            why = f"the session was closed while it was connecting ({held.token.reason})"
            raise CLIConnectionError(why) from error.__cause__
        raise
