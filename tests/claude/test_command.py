"""How a CLI is started and greeted: with the command line, the environment and the first request that claude-agent-sdk gives for the same options."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace

import quiesce.claude as claude
from quiesce.claude import ClaudeAgentOptions, CLIConnectionError, CLINotFoundError, HookMatcher
from quiesce.claude.process.command import SDK_VERSION, command_of, environment_of
from quiesce.claude.process.find_cli import find_cli
from quiesce.claude.session.initialize import check_initialized, initialize_request
from tests.claude import option_sets
from tests.claude.sdk_facts import SDK, lister


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "settings.json").write_text(option_sets.SETTINGS, encoding="utf-8")
    (tmp_path / "list.json").write_text("[]")
    return tmp_path


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in option_sets.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def started_with(options: ClaudeAgentOptions) -> dict[str, Any]:
    try:
        command, environment = command_of(options, "claude"), environment_of(options)
        environment.pop("PYTEST_CURRENT_TEST", None)  # which pytest puts back
        return {"command": command, "environment": environment}
    except (CLIConnectionError, ValueError) as error:
        return {"error": type(error).__name__}


def test_the_facts_are_of_the_version_that_is_spoken() -> None:
    assert SDK["version"] == SDK_VERSION


@pytest.mark.parametrize("name", SDK["started"])
def test_a_cli_is_started_as_the_sdk_starts_it(
    name: str, directory: Path, environment: pytest.MonkeyPatch
) -> None:
    started = started_with(option_sets.option_sets(claude, directory)[name])
    assert lister.in_place(started, str(directory)) == SDK["started"][name]


@pytest.mark.parametrize("name", SDK["initialize"])
def test_a_cli_is_greeted_as_the_sdk_greets_it(name: str, directory: Path) -> None:
    request, _ = initialize_request(option_sets.option_sets(claude, directory)[name])
    assert lister.in_place(request, str(directory)) == SDK["initialize"][name]


def test_both_tables_have_all_sets_of_options(directory: Path) -> None:
    names = sorted(option_sets.option_sets(claude, directory))
    assert sorted(SDK["started"]) == sorted(SDK["initialize"]) == names


WRONG_SKILLS = list(zip(option_sets.WRONG_SKILLS, SDK["wrong_skills"], strict=True))


@pytest.mark.parametrize(
    ("skills", "expected"), WRONG_SKILLS, ids=[ascii(one) for one in option_sets.WRONG_SKILLS]
)
def test_a_name_that_is_no_skills_is_refused_as_the_sdk_refuses_it(
    skills: Any, expected: dict[str, str]
) -> None:
    with pytest.raises((TypeError, ValueError), match="skill") as wrong:
        command_of(ClaudeAgentOptions(skills=skills), "claude")
    assert type(wrong.value).__name__ == expected["error"]


def test_options_are_left_as_they_were(directory: Path) -> None:
    options = ClaudeAgentOptions(skills="all", allowed_tools=["Read"], sandbox={"enabled": True})
    command_of(options, "claude")
    assert options == ClaudeAgentOptions(skills="all", allowed_tools=["Read"], sandbox={"enabled": True})


def test_settings_that_cannot_be_read_are_an_error_that_says_so(directory: Path) -> None:
    options = ClaudeAgentOptions(sandbox={"enabled": True}, settings="missing.json", cwd=directory)
    with pytest.raises(CLIConnectionError, match=r"Failed to load settings: .*missing\.json"):
        command_of(options, "claude")


SPAN = trace.SpanContext(0x22222222222222222222222222222222, 0x2222222222222222, False, trace.TraceFlags(1))


def test_the_cli_is_told_of_the_open_span_and_not_of_an_older_one(environment: pytest.MonkeyPatch) -> None:
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(SPAN)))
    try:
        found = environment_of(ClaudeAgentOptions())
        chosen = environment_of(ClaudeAgentOptions(env={"TRACEPARENT": "mine", "TRACESTATE": "mine"}))
    finally:
        context.detach(token)
    assert found["TRACEPARENT"] == "00-22222222222222222222222222222222-2222222222222222-01"
    assert "TRACESTATE" not in found
    assert (chosen["TRACEPARENT"], chosen["TRACESTATE"]) == ("mine", "mine")


def test_each_id_of_a_hook_leads_to_its_callback() -> None:
    async def one(given: Any, tool_use_id: str | None, context: Any) -> Any: ...
    async def two(given: Any, tool_use_id: str | None, context: Any) -> Any: ...

    request, callbacks = initialize_request(
        ClaudeAgentOptions(
            hooks={
                "PreToolUse": [HookMatcher("Bash", [one, two]), HookMatcher()],
                "Stop": [HookMatcher(hooks=[one])],
            }
        )
    )
    assert callbacks == {"hook_0": one, "hook_1": two, "hook_2": one}
    assert request["hooks"]["Stop"] == [{"matcher": None, "hookCallbackIds": ["hook_2"]}]


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        ({}, "this CLI does not know"),
        ({"hook_on_failure_supported": False}, "this CLI does not know"),
        ({"hook_on_failure_supported": True, "hooks_applied": False}, "running already"),
        ({"hook_on_failure_supported": True}, None),
        ({"hook_on_failure_supported": True, "hooks_applied": True}, None),
    ],
)
def test_a_cli_that_would_let_pass_what_a_hook_fails_to_judge_is_refused(
    response: dict[str, Any], complaint: str | None
) -> None:
    lenient, _ = initialize_request(
        ClaudeAgentOptions(hooks={"Stop": [HookMatcher(on_failure="continue"), HookMatcher()]})
    )
    strict, _ = initialize_request(
        ClaudeAgentOptions(hooks={"Stop": [HookMatcher(), HookMatcher(on_failure="block")]})
    )
    check_initialized(lenient, response)
    check_initialized(initialize_request(ClaudeAgentOptions())[0], response)
    if complaint is None:
        check_initialized(strict, response)
        return
    with pytest.raises(CLIConnectionError, match=complaint):
        check_initialized(strict, response)


# Finding the CLI


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def nowhere(environment: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    environment.setenv("PATH", str(tmp_path / "bin"))
    environment.setenv("HOME", str(tmp_path / "home"))
    environment.setattr("sys.path", [str(tmp_path / "packages")])
    return environment


def test_the_cli_is_looked_for_where_the_options_say_then_in_the_sdk_then_on_the_path_then_at_home(
    nowhere: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_home = executable(tmp_path / "home" / ".claude" / "local" / "claude")
    assert find_cli(ClaudeAgentOptions()) == at_home
    on_path = executable(tmp_path / "bin" / "claude")
    assert find_cli(ClaudeAgentOptions()) == on_path
    (tmp_path / "packages" / "claude_agent_sdk").mkdir(parents=True)
    (tmp_path / "packages" / "claude_agent_sdk" / "__init__.py").write_text("raise SystemExit('imported')")
    importlib.invalidate_caches()
    assert find_cli(ClaudeAgentOptions()) == on_path
    bundled = executable(tmp_path / "packages" / "claude_agent_sdk" / "_bundled" / "claude")
    assert find_cli(ClaudeAgentOptions()) == bundled
    given = executable(tmp_path / "given")
    assert find_cli(ClaudeAgentOptions(cli_path=given)) == given
    assert find_cli(ClaudeAgentOptions(cli_path=Path("some/where"))) == "some/where"


def test_a_cli_that_is_nowhere_is_an_error_that_says_where_it_was_looked_for(
    nowhere: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if Path("/usr/local/bin/claude").exists():
        pytest.skip("this machine has one")
    with pytest.raises(CLINotFoundError) as wrong:
        find_cli(ClaudeAgentOptions())
    for said in (
        str(tmp_path / "bin"),
        "~/.local/bin/claude",
        "claude-agent-sdk",
        "npm install",
        "cli_path=",
    ):
        assert said in str(wrong.value)


def test_a_given_cli_that_is_no_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(CLINotFoundError, match=r"gone.*cli_path"):
        find_cli(ClaudeAgentOptions(cli_path=tmp_path / "gone"))
