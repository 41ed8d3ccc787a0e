"""From options to a session, and from there to one that is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce import Held, NotHeld
from quiesce.claude.process import transport_for
from quiesce.claude.tools import McpAnswers, server_of
from quiesce.claude.types import ClaudeAgentOptions, CLIConnectionError, check_options
from quiesce.kernel.inner import Owned, current_backend
from quiesce.wire import Limits

from .handlers import handlers_for
from .initialize import initialize_request
from .session import Session

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.kernel.inner import Site

_CONNECT_TIMEOUT = 60.0  # seconds: a CLI that starts its MCP servers may need some


def session_for(
    options: ClaudeAgentOptions,
    transport: object,
    grace: Grace | None,
) -> Session:
    """The session for these options."""
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
    """Those that live in this process; the CLI starts the others itself."""
    configs = options.mcp_servers if isinstance(options.mcp_servers, dict) else {}
    return {name: server_of(config) for name, config in configs.items() if config.get("type") == "sdk"}


def begin(
    session: Session, made_at: Site, grace: Grace | None = None, scope: Scope | None = None
) -> Held[Session]:
    """Begin to open it, for a user whose line `made_at` is. Whoever has what this returns can close it, from now on."""
    try:
        return Held(Owned(session, scope, "claude", grace, made_at)._start(current_backend()))
    except BaseException:
        session.transport.discard()  # it is ours from the beginning
        raise


async def connected(session: Session, held: Held[Session]) -> None:
    """Wait until it is open. If that fails, or you are cancelled, nothing of it is left."""
    try:
        await held._keeper.wait_until_entered()
    except BaseException as error:
        session.transport.discard()  # it may never have got to open that
        if isinstance(error, NotHeld):
            why = f"the session was ended while it was being connected ({held.token.reason})"
            raise CLIConnectionError(why) from error.__cause__
        raise
