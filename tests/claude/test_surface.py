"""Users of claude-agent-sdk find the names they know, with the fields, types and defaults they know.

`sdk_surface.json` lists them, `scripts/list_claude_surface.py` made it. What is missing is listed here, and why, and in the documentation. The
lists are exact: a name that has been added must be taken off them.
"""

from __future__ import annotations

import importlib
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import quiesce.claude as claude
from tests.claude.sdk_facts import SDK, lister

NAMES: list[str] = importlib.import_module("quiesce.claude").__all__

# Read and change transcripts on disk or in a store: there is nothing in them to stop, and claude-agent-sdk's own work beside this package.
TRANSCRIPTS = re.compile(
    r"(list|rename|tag|delete|fork)_session\w*|list_sessions\w*|get_session_\w+|list_subagents\w*|get_subagent_\w+|"
    r"SDKSessionInfo|SessionMessage|ForkSessionResult|InMemorySessionStore|fold_session_summary|project_key_for_directory|import_session_to_store"
)
OTHERWISE = {"__version__"}  # of a package that this is not: quiesce.__version__ is there
# Not pydantic models of the package mcp, but with all that they are made with.
OTHER_KINDS = {"ToolAnnotations"}
OURS = {
    "query": {"grace", "scope"},
    "ClaudeSDKClient": {"close", "process"},
}  # on top of what the SDK has
OTHER_FIELDS = {"SdkMcpTool": {"annotations"}}  # of any type: ours, or the package mcp's

EXPECTED = {
    name: facts
    for name, facts in SDK["exports"].items()
    if not TRANSCRIPTS.fullmatch(name) and name not in OTHERWISE | OTHER_KINDS
}


def test_the_names_are_all_there_but_those_that_are_listed() -> None:
    missing = {name for name in SDK["exports"] if not hasattr(claude, name) or name not in NAMES}
    assert {name for name in missing if not TRANSCRIPTS.fullmatch(name)} == OTHERWISE
    assert [name for name in SDK["exports"] if TRANSCRIPTS.fullmatch(name) and name not in missing] == []


def test_all_lists_what_there_is() -> None:
    assert [name for name in NAMES if not hasattr(claude, name)] == []
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_name_is_what_it_is_in_the_sdk(name: str) -> None:
    expected: dict[str, Any] = EXPECTED[name]
    found = lister.described(getattr(claude, name))
    for kind, names in found.items() if name in OURS else ():
        assert set(names) - set(expected[kind]) == OURS[name]
        found[kind] = [each for each in names if each not in OURS[name]]
    for field in OTHER_FIELDS.get(name, ()):
        assert expected["dataclass"].pop(field)[1] == found["dataclass"].pop(field)[1]
    assert list(found.get("dataclass", ())) == list(expected.get("dataclass", ()))  # in the same order
    assert found == expected


def test_a_client_has_what_everything_has_that_is_opened_and_closed() -> None:
    assert {"cancel", "close", "closed", "report", "token"} <= set(dir(claude.ClaudeSDKClient))


@pytest.mark.parametrize("name", sorted(name for name in SDK["types"] if name in NAMES))
def test_a_name_of_its_types_is_what_it_is_there(name: str) -> None:
    assert lister.described(getattr(claude, name)) == SDK["types"][name]


def test_the_names_of_its_types_are_there_too() -> None:
    assert [name for name in SDK["types"] if name not in NAMES] == []


def test_the_documentation_names_what_is_missing() -> None:
    text = (Path(__file__).parents[2] / "docs" / "claude" / "carry-over.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\w+", text))
    missing = [name for name in SDK["exports"] if name not in NAMES]
    assert [name for name in missing if name not in named] == []


def test_annotations_of_a_tool_are_made_with_either_spelling() -> None:
    one = claude.ToolAnnotations(readOnlyHint=True, max_result_size_chars=5, title="T", of_the_future=1)
    other = claude.ToolAnnotations(read_only_hint=True, maxResultSizeChars=5, title="T", of_the_future=1)
    assert one == other
    assert one != claude.ToolAnnotations(title="T")
    assert one.readOnlyHint is one.read_only_hint is True
    assert (one.maxResultSizeChars, one.destructive_hint, one.of_the_future) == (5, None, 1)
    assert repr(one) == "ToolAnnotations(title='T', readOnlyHint=True, maxResultSizeChars=5, of_the_future=1)"
    assert claude.ToolAnnotations(readOnlyHint=False, read_only_hint=True).readOnlyHint is False
    with pytest.raises(AttributeError, match="nothing"):
        one.nothing  # noqa: B018


RESULT = {
    "subtype": "error_max_turns",
    "errors": [" too many ", "", 5],
    "result": None,
    "api_error_status": 529,
    "terminal_reason": "max_turns",
    "session_id": 5,
}


BROKEN = claude.CLIJSONDecodeError("{", ValueError("end"))
BROKEN.stderr = "tail"


@pytest.mark.parametrize(
    "error",
    [
        claude.CLIConnectionError("no"),
        claude.CLINotFoundError(cli_path="/x"),
        claude.ProcessError("failed", 3, "tail"),
        claude.ResultError("failed", RESULT, 1),
        BROKEN,
        claude.MessageParseError("odd", {"type": "user"}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert {name: repr(value) for name, value in vars(again).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }


def test_types_are_where_users_import_them_from_and_nothing_else_is_there() -> None:
    types = importlib.import_module("quiesce.claude.types")
    assert types.__all__ == sorted(types.__all__)
    assert all(getattr(types, name) is getattr(claude, name) for name in types.__all__)
    elsewhere = {"ClaudeSDKClient", "Query", "Transport", "query", "tool", "create_sdk_mcp_server"}
    assert not elsewhere & set(types.__all__)
    assert {"ClaudeAgentOptions", "HookMatcher", "PermissionResultAllow", "TextBlock"} <= set(types.__all__)


def test_the_error_of_a_process_says_how_it_ended() -> None:
    error = claude.ProcessError("Command failed", 3, "tail")
    assert (error.exit_code, error.stderr) == (3, "tail")
    assert str(error) == "Command failed (exit code: 3)\nError output: tail"
    assert str(claude.ProcessError("Command failed")) == "Command failed"


def test_the_error_of_a_result_says_what_the_result_said() -> None:
    error = claude.ResultError("failed", RESULT, 1)
    assert isinstance(error, claude.ProcessError)
    assert (error.subtype, error.errors, error.result, error.exit_code) == (
        "error_max_turns",
        ["too many"],
        None,
        1,
    )
    assert (error.api_error_status, error.terminal_reason, error.session_id) == (529, "max_turns", None)
    assert error.data is RESULT
    assert claude.ResultError("failed").errors == []
    assert claude.ResultError("failed", {"errors": "one"}).errors == ["one"]
