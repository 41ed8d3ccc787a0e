"""List what users of openai-agents' realtime sessions write: the names of `agents.realtime`, with their
fields and parameters.

    python -m venv sdk && sdk/bin/pip install openai-agents==0.24.0
    sdk/bin/python scripts/list_realtime_surface.py > tests/realtime/sdk_surface.json

Run it with the Python that has the package. tests/realtime/test_sdk_surface.py holds `quiesce.realtime` against it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
from importlib.metadata import version
from typing import Any

# They are not exported, and users import them all the same.
BESIDE = {
    "agents.realtime.items": ["AssistantAudio", "InputImage"],
    "agents.realtime.config": [
        "RealtimeAudioConfig",
        "RealtimeAudioInputConfig",
        "RealtimeAudioOutputConfig",
        "RealtimeUserInputImage",
    ],
    "agents.realtime.events": ["RealtimeInputAudioTimeoutTriggered"],
    "agents.realtime.model_events": [
        "RealtimeModelInputAudioTimeoutTriggeredEvent",
        "RealtimeModelRawServerEvent",
    ],
}


def described(thing: Any) -> dict[str, Any]:
    """A name of a library: what it is, and its fields, parameters, keys or methods."""
    fields = fields_of(thing)
    if fields is not None:
        kind = getattr(thing, "type", None) or default_of(thing, "type")
        return {"fields": sorted(fields), "type": kind if isinstance(kind, str) else None}
    if hasattr(thing, "__required_keys__"):  # a TypedDict, of whichever module
        return {"keys": sorted(thing.__annotations__)}
    if inspect.isclass(thing):
        methods = {
            name: list(inspect.signature(value).parameters) if inspect.isfunction(value) else None
            for name, value in inspect.getmembers(thing)
            if not name.startswith("_")
        }
        return {"methods": methods, "parameters": list(inspect.signature(thing).parameters)}
    if inspect.isfunction(thing):
        return {"parameters": list(inspect.signature(thing).parameters)}
    return {"alias": None}


def fields_of(thing: Any) -> list[str] | None:
    if dataclasses.is_dataclass(thing):
        return [field.name for field in dataclasses.fields(thing)]
    if not inspect.isclass(thing):
        return None
    names = getattr(thing, "model_fields", None) or getattr(thing, "__struct_fields__", None)
    return list(names) if names is not None else None


def default_of(thing: Any, name: str) -> Any:
    if dataclasses.is_dataclass(thing):
        return next((field.default for field in dataclasses.fields(thing) if field.name == name), None)
    field = getattr(thing, "model_fields", {}).get(name)
    return field.default if field is not None else None


def listed() -> dict[str, Any]:
    realtime = importlib.import_module("agents.realtime")
    names = {name: described(getattr(realtime, name)) for name in realtime.__all__}
    for module, beside in BESIDE.items():
        names |= {name: described(getattr(importlib.import_module(module), name)) for name in beside}
    return {"version": version("openai-agents"), "names": names}


def main() -> int:
    surface = listed()
    rows = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(surface["names"].items())
    )
    print(f'{{\n "version": {json.dumps(surface["version"])},\n "names": {{\n{rows}\n }}\n}}')
    return 0


if __name__ == "__main__":
    sys.exit(main())
