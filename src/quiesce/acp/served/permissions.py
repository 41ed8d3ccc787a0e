"""Asks the user, through the client, whether a tool may run.

`allow_always` holds for that tool in that session while the session is open. In the mode `auto`, the user is
not asked.

The user approves what was shown: a question contains everything that the call would do, with every character
visible, and a file that was shown is written only while it is unchanged (`note_asked`, `check_approved`). If
a change cannot be shown, the user is not asked, and the call is rejected.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import anyio

from quiesce._safe.files import BadPath, Seen
from quiesce._safe.printed import logger
from quiesce.acp import schema as s
from quiesce.agents import Rejected
from quiesce.models import ToolCall
from quiesce.wire import ConnectionEnded, RpcError

from .session import AUTO, Session, current_session
from .tool_calls import call_fields, preview_of

if TYPE_CHECKING:
    from quiesce.agents import FunctionTool, ToolContext

_ONCE: Final = "allow_once"
_ALWAYS: Final = "allow_always"
_REJECT: Final = "reject_once"


_shown_files: ContextVar[list[Seen] | None] = ContextVar("acp_shown_files", default=None)


async def ask_client(context: ToolContext[Any], tool: FunctionTool) -> bool | Rejected:
    """Ask the user whether this call may be made: `RunConfig(approve=ask_client)` for agents served over ACP.

    ```python
    researcher.as_tool("research", "Looks things up.", run_config=RunConfig(approve=ask_client))
    ```

    A served agent uses it by default; the run of an agent that is a tool of another does not, and has to be
    configured.
    """
    session = current_session()
    if session is None:
        raise RuntimeError(
            f"there is no client to ask whether {tool.name!r} may run: "
            "`ask_client` only works in agents that are served over ACP"
        )
    if session.mode == AUTO or tool.name in session.allowed:
        return True
    agent = context.agent or session.conversation.agent
    call = ToolCall(context.tool_call_id, tool.name, context.tool_arguments)
    shown_files: list[Seen] = []
    previous = _shown_files.set(shown_files)
    try:
        content = await preview_of(call, agent)
    except OSError as error:
        return Rejected(f"Not done: {error}")
    finally:
        _shown_files.reset(previous)
    question = s.ToolCallUpdate(status="pending", content=content, **call_fields(call, agent))
    try:
        answer = await session.client.request_permission(session.id, question, _options(tool.name))
    except ConnectionEnded:
        raise
    except RpcError as error:
        # The client cannot ask, so the user has not agreed.
        logger.warning("the client could not ask the user whether %r may run: %s", tool.name, error)
        return False
    outcome = answer.outcome
    if not isinstance(outcome, s.AllowedOutcome):
        await _turn_cancelled(session)
        return False
    if outcome.option_id == _ALWAYS:
        session.allowed.add(tool.name)
    if outcome.option_id not in (_ONCE, _ALWAYS):
        return False
    # The last file that the preview looked at is the one that it shows.
    if shown_files:
        session.approved.add(call.call_id, shown_files[-1])
    return True


def note_asked(seen: Seen) -> None:
    """Record the file that a preview shows."""
    shown_files = _shown_files.get()
    if shown_files is not None:
        shown_files.append(seen)


def check_approved(call_id: str, path: str, now: Seen) -> None:
    """Raise `BadPath` in a tool whose file is not the one that was shown when the call was approved."""
    session = current_session()
    approved = session.approved.take(call_id) if session is not None else None
    if approved is not None and approved != now:
        raise BadPath(f"{path!r} has changed since it was approved: nothing was written")


def _options(tool_name: str) -> list[s.PermissionOption]:
    return [
        s.PermissionOption(option_id=_ONCE, name="Allow once", kind="allow_once"),
        s.PermissionOption(
            option_id=_ALWAYS, name=f"Always allow {tool_name} in this session", kind="allow_always"
        ),
        s.PermissionOption(option_id=_REJECT, name="Reject", kind="reject_once"),
    ]


async def _turn_cancelled(session: Session) -> None:
    """Stop the turn: the outcome `cancelled` means that, even if the client sends no `session/cancel`."""
    session.conversation.interrupt("the turn was cancelled")
    # The interrupt cancels this task; until then there is no answer to return.
    await anyio.sleep_forever()
