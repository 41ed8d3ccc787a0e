"""The settings of a session in the form of the protocol: the `session` of `session.update`.

The flat names and those under `audio` mean the same, and `audio` wins. The first update contains everything,
with defaults for what was not given; a later one contains only what was given. A name that does not exist is
refused here, because the server would report it only in an event.
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

_FIXED_IN_CALLS = ("model_name", "input_audio_format", "output_audio_format")  # an existing call has them

_INPUT = {  # from the names under audio.input to the flat names
    "format": "input_audio_format",
    "noise_reduction": "input_audio_noise_reduction",
    "transcription": "input_audio_transcription",
    "turn_detection": "turn_detection",
}
_OUTPUT = {"format": "output_audio_format", "voice": "voice", "speed": "speed"}

_OF_SERVER_VAD = frozenset(("idle_timeout_ms", "prefix_padding_ms", "silence_duration_ms", "threshold"))

_UNCHANGED = ("prompt", "max_output_tokens", "parallel_tool_calls", "reasoning", "tracing")


def wire_session(
    settings: RealtimeSessionModelSettings, *, is_first: bool = False, is_joined: bool = False
) -> dict[str, Any]:
    """Return the `session` of an update; `is_joined`: the first one for an existing call."""
    _check_names(settings, RealtimeSessionModelSettings, "setting", always=True)
    flat = _flat(settings)
    if is_first:
        defaults = _DEFAULTS
        if is_joined:
            defaults = {name: value for name, value in _DEFAULTS.items() if name not in _FIXED_IN_CALLS}
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
    session.update({name: flat[name] for name in _UNCHANGED if name in flat and _is_given(name, flat)})
    return session


def _is_given(name: str, flat: Mapping[str, Any]) -> bool:
    return flat[name] is not None or name == "tracing"  # None turns tracing off


def _flat(settings: RealtimeSessionModelSettings) -> dict[str, Any]:
    """Return all settings by their flat names."""
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
    # In the protocol, null turns these off. For the others, None means "not given".
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
        raise UserError(
            f"tools must be made by function_tool(), or be a FunctionTool, not {type(tool).__name__}"
        )
    return spec


def _tool_choice(given: Any) -> Any:
    if isinstance(given, str) and given not in ("auto", "none", "required"):
        return {"type": "function", "name": given}
    return given


def _check_names(given: Any, form: Any, what: str, *, always: bool = False) -> None:
    """Refuse unknown names; without `always`, only if they look like a mistake, as servers may have more."""
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
            raise UserError(
                f"{name!r}{of} is not a setting of a realtime session: did you mean {nearest[0]!r}?"
            )
