"""The official client's types accept what is sent, and what they produce is understood."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from openai.types import realtime as official
from pydantic import BaseModel, TypeAdapter

from quiesce.agents import function_tool
from quiesce.realtime.openai.protocol import Protocol
from quiesce.realtime.openai.server_events import KNOWN, MalformedServerEvent
from quiesce.realtime.words import realtime_handoff
from quiesce.realtime.words.agent import RealtimeAgent
from quiesce.realtime.words.model_events import RealtimeModelToolCallEvent
from quiesce.realtime.words.model_inputs import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
)
from quiesce.realtime.words.playback import RealtimePlaybackTracker

from .talk import Talk

CLIENT: TypeAdapter[Any] = TypeAdapter(official.RealtimeClientEvent)


@function_tool
def weather(city: str, days: int = 1) -> str:
    """What the weather is like."""
    return f"{city} {days}"


HANDOFF = realtime_handoff(RealtimeAgent("other agent", handoff_description="knows more"))

SETTINGS: list[dict[str, Any]] = [
    {},
    {
        "instructions": "Be brief.",
        "voice": "marin",
        "speed": 1.2,
        "max_output_tokens": "inf",
        "tracing": "auto",
    },
    {
        "model_name": "gpt-realtime-2",
        "prompt": {"id": "pmpt_1", "version": "2", "variables": {"a": "b"}},
        "modalities": ["text"],
        "max_output_tokens": 100,
        "tools": [weather],
        "handoffs": [HANDOFF],
        "tool_choice": "weather",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "tracing": {"workflow_name": "w", "group_id": "g", "metadata": {"a": "b"}},
        "voice": {"id": "voice_1"},
    },
    {
        "audio": {
            "input": {
                "format": "g711_ulaw",
                "noise_reduction": {"type": "near_field"},
                "transcription": {"model": "whisper-1", "language": "de", "prompt": "p"},
                "turn_detection": {
                    "type": "server_vad",
                    "create_response": True,
                    "interrupt_response": False,
                    "prefix_padding_ms": 100,
                    "silence_duration_ms": 200,
                    "threshold": 0.5,
                    "idle_timeout_ms": 6000,
                },
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "ash", "speed": 0.5},
        },
        "output_modalities": ["audio"],
        "tool_choice": "required",
        "tracing": None,
    },
    {
        "input_audio_format": "g711_alaw",
        "output_audio_format": "pcm16",
        "turn_detection": {"type": "semantic_vad", "eagerness": "low"},
        "input_audio_noise_reduction": None,
        "input_audio_transcription": {"model": "gpt-4o-transcribe"},
        "tool_choice": {"type": "function", "name": "weather"},
    },
    {"turn_detection": None},
    {"turn_detection": {"interrupt_response": False}},
    {"turn_detection": {"silence_duration_ms": 200}},
]


def check(frame: bytes) -> str:
    """It is one of the official events, with no field that these do not have; returns which."""
    data = msgspec.json.decode(frame)
    event = CLIENT.validate_json(frame)
    assert event.type == data["type"]
    assert extras(event) == []
    return str(event.type)


def extras(model: Any, where: str = "") -> list[str]:
    """Fields that the official type does not have."""
    found: list[str] = []
    if isinstance(model, BaseModel):
        found += [f"{where}.{name}" for name in model.model_extra or ()]
        for name in type(model).model_fields:
            found += extras(getattr(model, name), f"{where}.{name}")
    elif isinstance(model, list):
        for each in model:
            found += extras(each, where)
    return found


@pytest.mark.parametrize("given", SETTINGS, ids=[str(place) for place in range(len(SETTINGS))])
def test_every_update_of_the_session_is_an_official_one(given: Any) -> None:
    for is_joined in (False, True):
        protocol = Protocol(RealtimePlaybackTracker())
        assert [check(frame) for frame in protocol.connected(given, is_joined=is_joined)] == [
            "session.update"
        ]
        _, frames = protocol.send(RealtimeModelSendSessionUpdate(given))
        assert [check(frame) for frame in frames] == ["session.update"]
        _, frames = protocol.send(RealtimeModelSendSessionUpdate({"instructions": "I am another."}))
        assert [check(frame) for frame in frames] == ["session.update"]


def test_everything_that_is_sent_is_an_official_event() -> None:
    talk = Talk()
    frames: list[bytes] = []

    def send(event: Any) -> None:
        frames.extend(talk.protocol.send(event)[1])

    send(RealtimeModelSendUserInput("hello"))
    talk.begins()
    talk.says(100)
    send(RealtimeModelSendInterrupt(force_response_cancel=True))
    picture: Any = [{"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "high"}]
    send(RealtimeModelSendUserInput({"type": "message", "role": "user", "content": picture}))
    send(RealtimeModelSendToolOutput(RealtimeModelToolCallEvent("f", "call_1", "{}"), "done"))
    send(RealtimeModelSendAudio(bytes(10), commit=True))
    send(RealtimeModelSendRawMessage({"type": "input_audio_buffer.clear"}))
    send(
        RealtimeModelSendRawMessage(
            {"type": "response.create", "other_data": {"response": {"instructions": "x"}}}
        )
    )
    item = {
        "type": "function_call",
        "id": "i",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    }
    done = {"type": "response.output_item.done", "response_id": "resp_1", "item": item}
    frames += talk.protocol.receive(msgspec.json.encode(done))[1]  # answered: not run
    for number in (1, 2):
        response = {"id": f"resp_{number}", "status": "completed"}
        frames += talk.protocol.receive(msgspec.json.encode({"type": "response.done", "response": response}))[
            1
        ]
    talk.server("response.created", response={})  # without an id
    send(RealtimeModelSendInterrupt(force_response_cancel=True))
    assert [check(frame) for frame in frames] == [
        "conversation.item.create",
        "response.create",
        "response.cancel",
        "conversation.item.truncate",
        "conversation.item.create",
        "conversation.item.create",
        "input_audio_buffer.append",
        "input_audio_buffer.commit",
        "input_audio_buffer.clear",
        "conversation.item.create",
        "response.create",
        "response.create",
        "response.cancel",
    ]


def test_the_check_itself_finds_what_is_not_official() -> None:
    assert extras(CLIENT.validate_json(b'{"type":"response.cancel","respons_id":"x"}')) == [".respons_id"]
    with pytest.raises(ValueError, match="audio_end_ms"):
        check(b'{"type":"conversation.item.truncate","item_id":"i","content_index":0,"audio_end_ms":0.5}')


# What the server may say


SERVER: dict[str, Any] = {
    get_args(member.model_fields["type"].annotation)[0]: member
    for member in get_args(get_args(official.RealtimeServerEvent)[0])
}

MEANS: dict[str, set[str]] = {
    "conversation.item.added": {"item_updated", "other"},
    "conversation.item.created": {"item_updated", "other"},
    "conversation.item.deleted": {"item_deleted"},
    "conversation.item.done": {"item_updated", "other"},
    "conversation.item.input_audio_transcription.completed": {"input_audio_transcription_completed"},
    "conversation.item.input_audio_transcription.failed": {"error"},
    "conversation.item.retrieved": {"item_updated", "other"},
    "error": {"error"},
    "input_audio_buffer.timeout_triggered": {"input_audio_timeout_triggered"},
    "response.created": {"turn_started"},
    "response.done": {"usage", "turn_ended", "error"},
    "response.output_audio.delta": {"audio"},
    "response.output_audio.done": {"audio_done"},
    "response.output_audio_transcript.delta": {"transcript_delta"},
    "response.output_item.added": {"item_updated", "other"},
    "response.output_item.done": {"item_updated", "other", "function_call"},
    "response.output_text.delta": {"output_text_delta"},
}
"""What events of the server may become; those that are not named are told with their data."""


def examples(form: Any, *, full: bool) -> Iterator[Any]:
    """Values of a type, such that each alternative is there once; `full`: with the optional fields."""
    origin = get_origin(form)
    if origin is typing.Annotated:
        yield from examples(get_args(form)[0], full=full)
    elif origin is Literal:
        yield from get_args(form)
    elif origin in (typing.Union, types.UnionType):
        for each in get_args(form):
            yield from examples(each, full=full)
    elif origin is list:
        inner = list(examples(get_args(form)[0], full=full))
        yield from [[], inner]
    elif origin in (dict, Mapping):
        yield {"a": next(examples(get_args(form)[1], full=full))}
    elif isinstance(form, type) and issubclass(form, BaseModel):
        yield from of_model(form, full=full)
    else:
        yield {str: "AAAA", int: 7, float: 0.5, bool: True, type(None): None}.get(form, {"any": ["thing"]})


def of_model(form: type[BaseModel], *, full: bool) -> Iterator[dict[str, Any]]:
    """Each field takes each of its values once, while the others have their first one."""
    fields = {
        name: list(examples(field.annotation, full=full))
        for name, field in form.model_fields.items()
        if full or field.is_required()
    }
    first = {name: values[0] for name, values in fields.items()}
    yield first
    for name, values in fields.items():
        for value in values[1:]:
            yield {**first, name: value}


@pytest.mark.parametrize("kind", sorted(SERVER))
def test_every_event_that_the_server_may_send_is_understood(kind: str) -> None:
    seen: set[str] = set()
    for full in (False, True):
        for fields in of_model(SERVER[kind], full=full):
            event = SERVER[kind].model_validate(fields)  # it is an official one
            for frame in (event.model_dump_json(), event.model_dump_json(exclude_unset=True)):
                protocol = Protocol(RealtimePlaybackTracker())
                [raw, *told], _ = protocol.receive(frame.encode())
                assert raw.type == "raw_server_event"
                assert told
                if "without call_id" in str(told[-1]):  # a call that the type allows, and nobody could answer
                    assert kind == "response.output_item.done"
                    assert not fields["item"].get("call_id")
                    continue
                assert not any(
                    isinstance(getattr(each, "error", None), MalformedServerEvent) for each in told
                )
                seen |= {each.type for each in told}
    assert seen == MEANS.get(kind, {"other"})


def test_the_table_names_only_what_there_is() -> None:
    assert set(MEANS) <= set(SERVER)
    beta = {name for name in KNOWN if name.startswith(("response.audio", "response.text"))}
    assert KNOWN - beta <= set(SERVER)
    assert len(SERVER) >= 46
