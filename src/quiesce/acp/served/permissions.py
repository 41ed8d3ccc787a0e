"""Who decides whether a tool may run: the user, by way of the client.

`allow_always` holds for that tool in that session, as long as it is open. The mode `auto` asks nobody.

What is approved is what was shown: a question carries everything that the call would do, with each character visible,
and a file that was shown is written only while it is still the same (`note_asked`, `check_approved`). A change that
cannot be shown is not asked about: the call is rejected.
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
from .tool_calls import call_shown, previewed

if TYPE_CHECKING:
    from quiesce.agents import FunctionTool, ToolContext

_ONCE: Final = "allow_once"
_ALWAYS: Final = "allow_always"
_REJECT: Final = "reject_once"


_shown_files: ContextVar[list[Seen] | None] = ContextVar("acp_shown_files", default=None)


async def ask_client(context: ToolContext[Any], tool: FunctionTool) -> bool | Rejected:
    """Whether the user lets this call be made: for `RunConfig(approve=ask_client)`, in what is served over ACP.

    ```python
    researcher.as_tool("research", "Looks things up.", run_config=RunConfig(approve=ask_client))
    ```

    A served agent does so by itself; the run of an agent that is its tool has to be told.
    """
    session = current_session()
    if session is None:
        raise RuntimeError(
            f"there is no client to ask whether {tool.name!r} may run: `ask_client` is for agents that are served over ACP"
        )
    if session.mode == AUTO or tool.name in session.allowed:
        return True
    agent = context.agent or session.conversation.agent
    call = ToolCall(context.tool_call_id, tool.name, context.tool_arguments)
    shown: list[Seen] = []
    before = _shown_files.set(shown)
    try:
        content = await previewed(call, agent)
    except OSError as error:
        return Rejected(f"Not done: {error}")
    finally:
        _shown_files.reset(before)
    asked = s.ToolCallUpdate(status="pending", content=content, **call_shown(call, agent))
    try:
        answer = await session.client.request_permission(session.id, asked, _options(tool.name))
    except ConnectionEnded:
        raise
    except RpcError as error:  # a client that cannot ask: nobody has said yes
        logger.warning("nobody could be asked whether %r may run: %s", tool.name, error)
        return False
    outcome = answer.outcome
    if not isinstance(outcome, s.AllowedOutcome):
        await _turn_cancelled(session)
        return False
    if outcome.option_id == _ALWAYS:
        session.allowed.add(tool.name)
    if outcome.option_id not in (_ONCE, _ALWAYS):
        return False
    if shown:
        session.approved.add(call.call_id, shown[-1])
    return True


def note_asked(seen: Seen) -> None:
    """For a preview: this is the file that it shows."""
    shown = _shown_files.get()
    if shown is not None:
        shown.append(seen)


def check_approved(call_id: str, path: str, now: Seen) -> None:
    """For a tool: `BadPath` if the file is not what was shown when the call was approved."""
    session = current_session()
    shown = session.approved.take(call_id) if session is not None else None
    if shown is not None and shown != now:
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
    """That is what the outcome `cancelled` means: also if the client does not say so in any other way."""
    session.conversation.interrupt("the turn was cancelled")
    await anyio.sleep_forever()
