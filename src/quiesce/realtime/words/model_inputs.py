"""What a session sends to its `RealtimeModel`."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from .config import RealtimeSessionModelSettings, RealtimeUserInput
from .items import RealtimeItem
from .model_events import RealtimeModelToolCallEvent


class RealtimeModelSendRawMessage(msgspec.Struct):
    """A message of the protocol: its `type`, and the other fields under `other_data`."""

    message: dict[str, Any]


class RealtimeModelSendUserInput(msgspec.Struct):
    """Text or images from the user, to be answered."""

    user_input: RealtimeUserInput


class RealtimeModelSendAudio(msgspec.Struct):
    """Audio from the user; `commit` marks its end."""

    audio: bytes
    commit: bool = False


class RealtimeModelSendToolOutput(msgspec.Struct):
    """The output of a tool call."""

    tool_call: RealtimeModelToolCallEvent
    output: str
    start_response: bool = True


class RealtimeModelSendInterrupt(msgspec.Struct):
    """Stop the speech of the model.

    - `force_response_cancel`: cancel the response even if the server would do so when the user speaks.
    - `response_id`: only that response and its audio.
    - `cancel_response_only`, `playback_only`: only the response, or only its audio.
    """

    force_response_cancel: bool = False
    response_id: str | None = None
    cancel_response_only: bool = False
    playback_only: bool = False


class RealtimeModelSendSessionUpdate(msgspec.Struct):
    """New instructions, tools, or other settings."""

    session_settings: RealtimeSessionModelSettings


class RealtimeModelSendHistory(msgspec.Struct):
    """The conversation so far, for a model that was connected again. The model must not answer it.

    A tool call that is "in_progress" and has an output is still running: the output says so, and a
    `RealtimeModelSendToolOutput` will replace it.
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
