"""The settings of a session on the local server: the initial ones, and how a client changes them."""

from __future__ import annotations

from typing import Any

_VAD = {
    "type": "server_vad",
    "threshold": 0.5,
    "prefix_padding_ms": 300,
    "silence_duration_ms": 500,
    "idle_timeout_ms": None,
    "create_response": True,
    "interrupt_response": True,
}
_SEMANTIC_VAD = {
    "type": "semantic_vad",
    "eagerness": "auto",
    "create_response": True,
    "interrupt_response": True,
}


def first_settings(session_id: str, model: str | None) -> dict[str, Any]:
    """Return the initial settings of a session."""
    pcm = {"type": "audio/pcm", "rate": 24000}
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": model or "gpt-realtime",
        "output_modalities": ["audio"],
        "instructions": "",
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "tracing": None,
        "prompt": None,
        "include": None,
        "audio": {
            "input": {
                "format": pcm,
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": dict(_VAD),
            },
            "output": {"format": pcm, "voice": "marin", "speed": 1.0},
        },
    }


def change_settings(settings: dict[str, Any], given: dict[str, Any]) -> None:
    """Change settings as `session.update` does."""
    _merge(settings, {name: value for name, value in given.items() if name not in ("id", "object")})
    audio = settings["audio"]["input"]
    detection = audio.get("turn_detection")
    if detection is not None:
        default = _SEMANTIC_VAD if detection.get("type") == "semantic_vad" else _VAD
        audio["turn_detection"] = {**default, **detection}


def _merge(settings: dict[str, Any], given: dict[str, Any]) -> None:
    """Replace settings by the given ones; the parts of `audio` one by one."""
    for name, value in given.items():
        if (
            name in ("audio", "input", "output")
            and isinstance(value, dict)
            and isinstance(settings.get(name), dict)
        ):
            _merge(settings[name], value)
        elif not (name == "format" and value is None):
            settings[name] = value
