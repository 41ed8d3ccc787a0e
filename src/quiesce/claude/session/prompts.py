"""What the user says: a text, or a stream of messages, which is closed however the saying of it ends."""

from __future__ import annotations

from collections.abc import AsyncIterable
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce import Scope
from quiesce.claude.types import CLIConnectionError
from quiesce.kernel.inner import FINISHED, when_ended

if TYPE_CHECKING:
    from quiesce import Handle

    from .session import Session


def user_message(text: str, session_id: str) -> dict[str, Any]:
    """What the user says, as the CLI reads it."""
    return {
        "type": "user",
        "session_id": session_id,
        "message": {"role": "user", "content": text},
        "parent_tool_use_id": None,
    }


async def say_all(session: Session, prompts: AsyncIterable[dict[str, Any]], **unless_said: Any) -> None:
    """Say these, as they come, each with what it does not say itself."""
    iterator = aiter(prompts)
    try:
        async for message in iterator:
            await session.say({**unless_said, **message})
    finally:
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()


async def feed(session: Session, prompts: AsyncIterable[dict[str, Any]]) -> Handle:
    """Say these, as they come, beside whatever else is done; the end of the session ends that."""
    session.check_open()
    session.prompts = await Scope.open("prompts", on_error="report", scope=session.scope)
    session.fed = fed = session.prompts.spawn(_feed, session, prompts, name="prompts")
    when_ended(fed, partial(_fed, session, fed))
    return fed


async def _feed(session: Session, prompts: AsyncIterable[dict[str, Any]]) -> None:
    try:
        await say_all(session, prompts)
    except (Exception, SystemExit) as error:
        session.fail(error)


def _fed(session: Session, fed: Handle) -> None:
    """All is said; or somebody has cancelled that, perhaps before its first step, and then nobody would ever be answered."""
    if fed.state != FINISHED and not session.closing:
        session.fail(CLIConnectionError("the stream of prompts was not said to its end: that was cancelled"))
    session.mailbox.poke()
