"""Settings of a session, as the wire gets them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from openai.types.realtime.realtime_audio_formats import AudioPCMU

from quiesce.agents import function_tool
from quiesce.agents.agent.errors import UserError
from quiesce.realtime.openai.protocol import Protocol
from quiesce.realtime.openai.session_update import wire_session
from quiesce.realtime.words import realtime_handoff
from quiesce.realtime.words.agent import RealtimeAgent
from quiesce.realtime.words.model_inputs import RealtimeModelSendSessionUpdate
from quiesce.realtime.words.playback import RealtimePlaybackTracker

from .talk import Talk

PCM = {"type": "audio/pcm", "rate": 24000}


@function_tool
def weather(city: str) -> str:
    """What the weather is like."""
    return city


def first(**given: Any) -> dict[str, Any]:
    """The session of the first update."""
    session: dict[str, Any] = Talk(given).first["session"]
    return session


def later(**given: Any) -> dict[str, Any]:
    """The session of an update, without what says that it is one of this kind."""
    talk = Talk()
    talk.user(RealtimeModelSendSessionUpdate(given))  # type: ignore[arg-type]
    [update] = talk.sent
    assert (update["type"], update["session"].pop("type")) == ("session.update", "realtime")
    session: dict[str, Any] = update["session"]
    return session


def test_the_first_update_says_everything() -> None:
    assert Talk().first == {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "model": "gpt-realtime",
            "output_modalities": ["audio"],
            "audio": {
                "input": {
                    "format": PCM,
                    "transcription": {"model": "gpt-4o-mini-transcribe"},
                    "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
                },
                "output": {"format": PCM, "voice": "ash"},
            },
            "tools": [],
        },
    }


def test_a_call_that_is_on_keeps_its_model_and_its_formats() -> None:
    session = wire_session({}, is_first=True, is_joined=True)
    assert "model" not in session
    assert "format" not in session["audio"]["input"]
    assert "format" not in session["audio"]["output"]
    assert session["audio"]["output"]["voice"] == "ash"
    session = wire_session({"output_audio_format": "g711_ulaw"}, is_first=True, is_joined=True)
    assert session["audio"]["output"]["format"] == {"type": "audio/pcmu"}


def test_its_formats_are_those_that_the_server_tells() -> None:
    tracker = RealtimePlaybackTracker()
    protocol = Protocol(tracker)
    protocol.connected({}, is_joined=True)
    protocol.receive(
        b'{"type":"session.created","session":{"audio":{"output":{"format":{"type":"audio/pcmu"}}}}}'
    )
    tracker.on_play_bytes("item_1", 0, bytes(80))
    assert tracker.get_state()["elapsed_ms"] == 10


def test_a_later_update_says_only_what_is_given() -> None:
    assert later() == {}
    assert later(instructions="Be brief.", voice="marin") == {
        "instructions": "Be brief.",
        "audio": {"output": {"voice": "marin"}},
    }
    assert later(audio={"input": {"turn_detection": None}}) == {"audio": {"input": {"turn_detection": None}}}
    assert later(tools=[]) == {"tools": []}


@pytest.mark.parametrize(
    ("flat", "audio", "wire"),
    [
        ({"input_audio_format": "g711_ulaw"}, {"input": {"format": "g711_ulaw"}}, {"type": "audio/pcmu"}),
        ({"input_audio_noise_reduction": None}, {"input": {"noise_reduction": None}}, None),
        (
            {"input_audio_transcription": {"model": "m"}},
            {"input": {"transcription": {"model": "m"}}},
            {"model": "m"},
        ),
        (
            {"turn_detection": {"type": "server_vad", "vendor_specific": 1}},
            {"input": {"turn_detection": {"type": "server_vad", "vendor_specific": 1}}},
            {"type": "server_vad", "vendor_specific": 1},
        ),
        ({"output_audio_format": "pcm16"}, {"output": {"format": "pcm16"}}, PCM),
        ({"voice": {"id": "voice_1"}}, {"output": {"voice": {"id": "voice_1"}}}, {"id": "voice_1"}),
        ({"speed": 1.5}, {"output": {"speed": 1.5}}, 1.5),
    ],
    ids=["format", "noise", "transcription", "turns", "output format", "voice", "speed"],
)
def test_flat_names_and_those_under_audio_mean_the_same(flat: Any, audio: Any, wire: Any) -> None:
    [(way, [name])] = [(way, list(part)) for way, part in audio.items()]
    assert later(**flat)["audio"] == {way: {name: wire}}
    assert later(audio=audio)["audio"] == {way: {name: wire}}


def test_where_both_are_given_those_under_audio_win() -> None:
    given: dict[str, Any] = {
        "voice": "ash",
        "speed": 1.0,
        "output_audio_format": "pcm16",
        "turn_detection": None,
    }
    audio = {
        "input": {"turn_detection": {"type": "server_vad"}},
        "output": {"format": AudioPCMU(type="audio/pcmu")},
    }
    for session in (later(**given, audio=audio), first(**given, audio=audio)):
        assert session["audio"]["input"]["turn_detection"] == {"type": "server_vad"}
        assert session["audio"]["output"] == {"format": {"type": "audio/pcmu"}, "voice": "ash", "speed": 1.0}


def test_the_other_settings_have_their_place() -> None:
    given: dict[str, Any] = {
        "model_name": "gpt-realtime-2",
        "instructions": "Be brief.",
        "prompt": {"id": "pmpt_1"},
        "modalities": ["text"],
        "max_output_tokens": "inf",
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "tracing": {"workflow_name": "w"},
    }
    wire = {**given, "model": "gpt-realtime-2", "output_modalities": ["text"]}
    del wire["model_name"], wire["modalities"]
    assert later(**given) == wire
    assert {name: first(**given)[name] for name in wire} == wire


def test_output_modalities_win_over_modalities() -> None:
    assert later(modalities=["text"], output_modalities=["audio"])["output_modalities"] == ["audio"]
    assert first(modalities=[], output_modalities=[])["output_modalities"] == ["audio"]


def test_tools_and_handoffs_are_functions() -> None:
    handoff = realtime_handoff(RealtimeAgent("other one"), tool_description_override="Knows more.")
    for session in (first(tools=[weather], handoffs=[handoff]), later(tools=(weather,), handoffs=(handoff,))):
        assert session["tools"] == [
            {
                "type": "function",
                "name": "weather",
                "description": "What the weather is like.",
                "parameters": dict(weather.spec.parameters),
            },
            {
                "type": "function",
                "name": "transfer_to_other_one",
                "description": "Knows more.",
                "parameters": dict(handoff.spec.parameters),
            },
        ]


def test_a_tool_may_be_chosen_by_its_name() -> None:
    assert later(tool_choice="weather")["tool_choice"] == {"type": "function", "name": "weather"}
    for choice in ("auto", "none", "required", {"type": "mcp", "server_label": "s"}):
        assert later(tool_choice=choice)["tool_choice"] == choice


def test_the_prompt_of_an_agent_does_not_outlive_it() -> None:
    prompt = {"id": "pmpt_1"}

    def update(talk: Talk, **given: Any) -> Any:
        talk.user(RealtimeModelSendSessionUpdate(given))  # type: ignore[arg-type]
        [sent] = talk.sent
        return sent["session"].get("prompt", "not said")

    talk = Talk({"prompt": prompt})
    assert update(talk, voice="sage") == "not said"  # that says nothing of it
    assert update(talk, instructions="I am another.") is None
    assert update(talk, instructions="I am a third.") == "not said"  # there is none any more
    assert update(talk, instructions="", prompt=prompt) == prompt
    assert update(talk, instructions="", prompt=prompt) == prompt
    talk.server("session.updated", session={"prompt": None})
    assert update(talk, instructions="I am another.") == "not said"
    talk.server("session.updated", session={"prompt": prompt})
    assert update(talk, instructions="I am another.") is None
    assert "prompt" not in first(instructions="I am the first.")


def test_tracing_is_asked_for_once() -> None:
    talk = Talk({"tracing": "auto"})
    assert talk.first["session"]["tracing"] == "auto"
    talk.user(RealtimeModelSendSessionUpdate({"tracing": {"group_id": "g"}, "speed": 1.0}))
    assert "tracing" not in talk.sent[0]["session"]
    talk = Talk({"tracing": None})
    assert talk.first["session"]["tracing"] is None
    talk.user(RealtimeModelSendSessionUpdate({"tracing": "auto"}))
    assert talk.sent[0]["session"]["tracing"] == "auto"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"interrupt_response": False}, "semantic_vad"),
        ({"eagerness": "low", "type": None}, "semantic_vad"),
        ({"create_response": False, "threshold": 0.5}, "server_vad"),
        ({"idle_timeout_ms": 6000}, "server_vad"),
        ({}, "semantic_vad"),
    ],
)
def test_turn_detection_is_of_a_type_whether_that_is_given_or_not(given: Any, kind: str) -> None:
    for made in (first, later):
        for settings in ({"turn_detection": given}, {"audio": {"input": {"turn_detection": given}}}):
            assert made(**settings)["audio"]["input"]["turn_detection"] == {**given, "type": kind}


def test_settings_may_be_any_mapping() -> None:
    detection = MappingProxyType({"type": "server_vad"})
    assert later(turn_detection=detection)["audio"]["input"]["turn_detection"] == {"type": "server_vad"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"voise": "ash"}, "'voise' is not a setting of a realtime session: did you mean 'voice'?"),
        ({"modelName": "x"}, "did you mean 'model_name'?"),
        ({"temperature": 1}, "'temperature' is not a setting"),
        ({"audio": {"inptu": {}}}, "'inptu' of the setting 'audio' .* 'input'"),
        ({"audio": {"input": {"turn_detektion": None}}}, "'turn_detektion' of the setting 'audio.input'"),
        ({"audio": {"output": {"voise": "x"}}}, "'voise' of the setting 'audio.output' .* 'voice'"),
        ({"audio": []}, "the setting 'audio' must be a dict, not list"),
        ({"audio": {"input": "pcm16"}}, "the setting 'audio.input' must be a dict"),
        ({"turn_detection": "server_vad"}, "the setting 'turn_detection' must be a dict, not str"),
        ({"turn_detection": {"interruptResponse": False}}, "did you mean 'interrupt_response'?"),
        ({"turn_detection": {"interupt_response": False}}, "did you mean 'interrupt_response'?"),
        ({"input_audio_transcription": {"langauge": "de"}}, "did you mean 'language'?"),
        ({"output_audio_format": "mp3"}, "the setting 'output_audio_format': 'mp3' is not an audio format"),
        ({"tools": [print]}, "tools must be made by function_tool"),
        ({"handoffs": [print]}, "handoffs must be RealtimeAgents"),
        ({"tools": [weather, weather]}, "two tools or handoffs named 'weather'"),
        (
            {
                "tools": [weather],
                "handoffs": [realtime_handoff(RealtimeAgent("x"), tool_name_override="weather")],
            },
            "two tools or handoffs named 'weather'",
        ),
        ({"prompt": {"id": object()}}, "'session.update' cannot be sent"),
    ],
    ids=[str(place) for place in range(18)],
)
def test_a_mistake_is_refused_by_its_name(given: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        first(**given)
    with pytest.raises(UserError, match=says):
        later(**given)
