"""The names of openai-agents' realtime sessions are here too, with their fields and parameters, or the documentation says that they are not.

sdk_surface.json was written by scripts/list_realtime_surface.py, with the SDK.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

import quiesce.realtime

ROOT = Path(__file__).parents[2]
SURFACE: dict[str, Any] = json.loads((Path(__file__).parent / "sdk_surface.json").read_text())
PAGE = (ROOT / "docs" / "realtime" / "from-openai-agents.md").read_text()

# What is not here of what is: field, key, parameter or method by name. Each is in the documentation.
LEFT_OUT = {
    "RealtimeAgent": {"hooks", "mcp_config"},
    "RealtimeModel": {"send_event_if"},
    "RealtimeRunConfig": {"tool_execution", "tool_error_formatter"},
    "RealtimeSession": {"on_event"},
    "OpenAIRealtimeWebSocketModel": {"send_event_if", "transport_config"},
}
NOT_FIELDS = {"type", "role", "object"}  # which are of the class here


def lister() -> Any:
    spec = importlib.util.spec_from_file_location("lister", ROOT / "scripts" / "list_realtime_surface.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


described = lister().described
HERE = [name for name in SURFACE["names"] if name in importlib.import_module("quiesce.realtime").__all__]


def test_every_name_is_here_or_the_documentation_says_that_it_is_not() -> None:
    missing = set(SURFACE["names"]) - set(HERE)
    assert {name for name in missing if f"`{name}`" not in PAGE} == set()
    told = set(re.findall(r"`(\w+)`", PAGE.split("Not here:")[1]))
    assert {name for name in HERE if name in told} == set()


def test_what_is_left_out_of_a_name_is_in_the_documentation() -> None:
    words = set(re.findall(r"\w+", PAGE))
    settings = {"tool_execution": "RealtimeToolExecutionConfig", "hooks": "RealtimeAgentHooks"}
    missing = {settings.get(name, name) for names in LEFT_OUT.values() for name in names} - words
    assert missing == set()


@pytest.mark.parametrize("name", HERE)
def test_a_name_has_all_that_it_has_in_the_sdk(name: str) -> None:
    theirs, ours = SURFACE["names"][name], described(getattr(quiesce.realtime, name))
    left_out = LEFT_OUT.get(name, set())
    if "fields" in theirs:
        missing = set(theirs["fields"]) - set(ours["fields"]) - NOT_FIELDS
        assert {field for field in missing if not hasattr(getattr(quiesce.realtime, name), field)} == left_out
        assert ours["type"] == theirs["type"]
    elif "keys" in theirs:
        assert set(theirs["keys"]) - set(ours["keys"]) == left_out
    elif "methods" in theirs:
        assert (
            set(theirs["methods"]) - set(ours["methods"])
            | (set(theirs["parameters"]) - set(ours["parameters"]))
            == left_out
        )
        for method, parameters in theirs["methods"].items():
            if method not in left_out and parameters is not None:
                mine = ours["methods"][method]
                assert [one for one in mine if one in parameters] == parameters, method
    elif "parameters" in theirs:
        assert [one for one in ours["parameters"] if one in theirs["parameters"]] == theirs["parameters"]
