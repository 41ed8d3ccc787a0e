"""Sending prompts: a text, or a stream of messages, which is closed in every case."""

from __future__ import annotations

from collections.abc import AsyncIterable
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce import Scope
from quiesce.claude.words import CLIConnectionError
from quiesce.kernel.inner import when_ended

if TYPE_CHECKING:
    from quiesce import Handle

    from .session import Session


def user_message(text: str, session_id: str) -> dict[str, Any]:
    """Return a prompt as the CLI reads it."""
    return {
        "type": "user",
        "session_id": session_id,
        "message": {"role": "user", "content": text},
        "parent_tool_use_id": None,
    }


async def send_all(session: Session, prompts: AsyncIterable[dict[str, Any]], **defaults: Any) -> None:
    """Send the messages as they come; `defaults` are the fields that a message may leave out."""
    iterator = aiter(prompts)
    try:
        async for message in iterator:
            await session.send({**defaults, **message})
    finally:
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()


async def feed(session: Session, prompts: AsyncIterable[dict[str, Any]]) -> Handle:
    """Send the messages as they come, in a task of the session's scope."""
    session.check_open()
    session.prompts = await Scope.open("prompts", on_error="report", scope=session.scope)
    session.feeder = feeder = session.prompts.spawn(_feed, session, prompts, name="prompts")
    when_ended(feeder, partial(_feeder_ended, session, feeder))
    return feeder


async def _feed(session: Session, prompts: AsyncIterable[dict[str, Any]]) -> None:
    try:
        await send_all(session, prompts)
    except (Exception, SystemExit) as error:
        session.fail(error)


def _feeder_ended(session: Session, feeder: Handle) -> None:
    # A program that cancels all tasks may cancel this one too, even before its first step, where `_feed`
    # cannot notice it. Readers would then wait forever for the answers to prompts that were never sent.
    if feeder.state != "finished" and not session.closing:
        session.fail(CLIConnectionError("not all of the stream of prompts was sent: its task was cancelled"))
    session.mailbox.wake_readers()
