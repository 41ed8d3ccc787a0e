"""Who decides whether a tool may run: the user, by way of the client.

`allow_always` holds for that tool in that session, as long as it is open. The mode `auto` asks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio

from quiesce.models._items import ToolCall
from quiesce.wire._errors import ConnectionEnded, RpcError

from . import schema as s
from ._served_calls import arguments_of, call_shown, previewed
from ._served_session import AUTO, Session, current_session
from ._side import logger

if TYPE_CHECKING:
    from quiesce.agents._context import ToolContext
    from quiesce.agents._tool import FunctionTool

_ONCE: Final = "allow_once"
_ALWAYS: Final = "allow_always"
_REJECT: Final = "reject_once"


async def ask_client(context: ToolContext[Any], tool: FunctionTool) -> bool:
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
    content = await previewed(tool.name, arguments_of(call.arguments), agent)
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
    return outcome.option_id in (_ONCE, _ALWAYS)


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
