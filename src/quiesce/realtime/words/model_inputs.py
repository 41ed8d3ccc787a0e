"""What a model is told: the words between a session and whatever it is connected by."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from .config import RealtimeSessionModelSettings, RealtimeUserInput
from .items import RealtimeItem
from .model_events import RealtimeModelToolCallEvent


class RealtimeModelSendRawMessage(msgspec.Struct):
    """A message of the wire as it is: its `type`, and under `other_data` the rest of its fields."""

    message: dict[str, Any]


class RealtimeModelSendUserInput(msgspec.Struct):
    """The user says or shows something, and wants an answer."""

    user_input: RealtimeUserInput


class RealtimeModelSendAudio(msgspec.Struct):
    """The user speaks; `commit` if that was all."""

    audio: bytes
    commit: bool = False


class RealtimeModelSendToolOutput(msgspec.Struct):
    """What a tool has returned."""

    tool_call: RealtimeModelToolCallEvent
    output: str
    start_response: bool = True


class RealtimeModelSendInterrupt(msgspec.Struct):
    """Stop what is being said.

    - `force_response_cancel`: cancel the response even where the server would do so by itself when the user speaks.
    - `response_id`: only that response and its audio.
    - `cancel_response_only`, `playback_only`: one of the two.
    """

    force_response_cancel: bool = False
    response_id: str | None = None
    cancel_response_only: bool = False
    playback_only: bool = False


class RealtimeModelSendSessionUpdate(msgspec.Struct):
    """Other instructions, other tools, other settings."""

    session_settings: RealtimeSessionModelSettings


class RealtimeModelSendHistory(msgspec.Struct):
    """The conversation so far, for a model that knows nothing of it: it was connected anew. It is not to answer.

    A tool call that has an output and is "in_progress" is one whose outcome is unknown so far: the output says so, until a `RealtimeModelSendToolOutput` comes.
    """

    items: list[RealtimeItem]


RealtimeModelSendEvent: TypeAlias = (
    RealtimeModelSendRawMessage
    | RealtimeModelSendUserInput
    | RealtimeModelSendAudio
    | RealtimeModelSendToolOutput
    | RealtimeModelSendInterrupt
    | RealtimeModelSendSessionUpdate
    | RealtimeModelSendHistory
)
