"""The settings of a session, as the wire has them: the `session` of `session.update`.

The flat names and those under `audio` mean the same, and `audio` wins. The first update says everything, with defaults for what was not
given; a later one only what was given. A name that does not exist is refused here: the server would only say so in an event.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from quiesce.agents import UserError
from quiesce.realtime.words import (
    RealtimeAudioConfig,
    RealtimeAudioInputConfig,
    RealtimeAudioOutputConfig,
    RealtimeInputAudioTranscriptionConfig,
    RealtimeSessionModelSettings,
    RealtimeTurnDetectionConfig,
    as_handoff,
    wire_format,
)

if TYPE_CHECKING:
    from quiesce.models import ToolSpec

DEFAULT_MODEL = "gpt-realtime"

_DEFAULTS: dict[str, Any] = {
    "model_name": DEFAULT_MODEL,
    "output_modalities": ["audio"],
    "input_audio_format": "pcm16",
    "input_audio_transcription": {"model": "gpt-4o-mini-transcribe"},
    "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
    "output_audio_format": "pcm16",
    "voice": "ash",
    "tools": (),
}

_OF_A_CALL = ("model_name", "input_audio_format", "output_audio_format")  # which is on: these are as they are

_INPUT = {  # under audio.input: the flat name of it
    "format": "input_audio_format",
    "noise_reduction": "input_audio_noise_reduction",
    "transcription": "input_audio_transcription",
    "turn_detection": "turn_detection",
}
_OUTPUT = {"format": "output_audio_format", "voice": "voice", "speed": "speed"}

_OF_SERVER_VAD = frozenset(("idle_timeout_ms", "prefix_padding_ms", "silence_duration_ms", "threshold"))

_AS_THEY_ARE = ("prompt", "max_output_tokens", "parallel_tool_calls", "reasoning", "tracing")


def wire_session(
    settings: RealtimeSessionModelSettings, *, is_first: bool = False, is_joined: bool = False
) -> dict[str, Any]:
    """The `session` of an update; `is_joined`: the first one of a call that is on, which has formats already."""
    _check_names(settings, RealtimeSessionModelSettings, "setting", always=True)
    flat = _flat(settings)
    if is_first:
        defaults = _DEFAULTS
        if is_joined:
            defaults = {name: value for name, value in _DEFAULTS.items() if name not in _OF_A_CALL}
        flat = {**defaults, **flat}
    session: dict[str, Any] = {"type": "realtime"}
    if "model_name" in flat:
        session["model"] = flat["model_name"] or DEFAULT_MODEL
    if "instructions" in flat:
        session["instructions"] = flat["instructions"] or ""
    if "output_modalities" in flat:
        session["output_modalities"] = flat["output_modalities"]
    audio = {
        way: part
        for way, names in (("input", _INPUT), ("output", _OUTPUT))
        if (part := {name: _audio(of, flat[of]) for name, of in names.items() if of in flat})
    }
    if audio:
        session["audio"] = audio
    if "tools" in flat or "handoffs" in flat:
        session["tools"] = _tools(flat.get("tools") or (), flat.get("handoffs") or ())
    if flat.get("tool_choice") is not None:
        session["tool_choice"] = _tool_choice(flat["tool_choice"])
    session.update({name: flat[name] for name in _AS_THEY_ARE if name in flat and _is_given(name, flat)})
    return session


def _is_given(name: str, flat: Mapping[str, Any]) -> bool:
    return flat[name] is not None or name == "tracing"  # None: no tracing


def _flat(settings: RealtimeSessionModelSettings) -> dict[str, Any]:
    """All settings by their flat names."""
    flat: dict[str, Any] = dict(settings)
    modalities = flat.pop("modalities", None)
    if not flat.get("output_modalities"):
        flat.pop("output_modalities", None)
        if modalities:
            flat["output_modalities"] = modalities
    audio = flat.pop("audio", None)
    if audio is not None:
        _check_names(audio, RealtimeAudioConfig, "setting 'audio'", always=True)
        for way, form, names in (
            ("input", RealtimeAudioInputConfig, _INPUT),
            ("output", RealtimeAudioOutputConfig, _OUTPUT),
        ):
            given = audio.get(way)
            if given is not None:
                _check_names(given, form, f"setting 'audio.{way}'", always=True)
                flat.update({names[name]: value for name, value in given.items()})
    # None turns these off on the wire; of the others it says nothing.
    off = (
        "turn_detection",
        "input_audio_noise_reduction",
        "input_audio_transcription",
        "tracing",
        "instructions",
    )
    return {name: value for name, value in flat.items() if value is not None or name in off}


def _audio(name: str, value: Any) -> Any:
    if name.endswith("_format"):
        try:
            return wire_format(value)
        except ValueError as error:
            raise UserError(f"the setting {name!r}: {error}") from None
    if name == "turn_detection" and value is not None:
        _check_names(value, RealtimeTurnDetectionConfig, f"setting {name!r}")
        if value.get("type") is None:
            kind = "server_vad" if _OF_SERVER_VAD & set(value) else _DEFAULTS["turn_detection"]["type"]
            return {**value, "type": kind}
    if name == "input_audio_transcription" and value is not None:
        _check_names(value, RealtimeInputAudioTranscriptionConfig, f"setting {name!r}")
    return value


def _tools(tools: Iterable[Any], handoffs: Iterable[Any]) -> list[dict[str, Any]]:
    specs: dict[str, ToolSpec] = {}
    for spec in [*(_spec(tool) for tool in tools), *(as_handoff(handoff).spec for handoff in handoffs)]:
        if spec.name in specs:
            raise UserError(
                f"there are two tools or handoffs named {spec.name!r}: the model cannot tell them apart"
            )
        specs[spec.name] = spec
    return [
        {
            "type": "function",
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
        }
        for spec in specs.values()
    ]


def _spec(tool: Any) -> ToolSpec:
    spec: ToolSpec | None = getattr(tool, "spec", None)
    if spec is None:
        raise UserError(f"tools are made by function_tool(), or a FunctionTool, not {type(tool).__name__}")
    return spec


def _tool_choice(given: Any) -> Any:
    if isinstance(given, str) and given not in ("auto", "none", "required"):
        return {"type": "function", "name": given}
    return given


def _check_names(given: Any, form: Any, what: str, *, always: bool = False) -> None:
    """Refuse a name that does not exist; where servers have names of their own (not `always`), only one that looks like a mistake."""
    if not isinstance(given, Mapping):
        raise UserError(f"the {what} must be a dict, not {type(given).__name__}")
    known = list(form.__annotations__)
    for name in given:
        if name in known:
            continue
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).lower()
        nearest = difflib.get_close_matches(snake, known, 1, 0.0 if always else 0.8)
        if nearest:
            of = "" if what == "setting" else f" of the {what}"
            raise UserError(f"{name!r}{of} is no setting of a realtime session: do you mean {nearest[0]!r}?")
