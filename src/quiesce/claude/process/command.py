"""The command line and the environment for a CLI; pure functions of the options.

Both are exactly what claude-agent-sdk (`SDK_VERSION`) makes of the same options, so the CLI behaves the same;
`tests/claude/sdk_surface.json` has what that gives. Values that may come from strangers (`resume` and its
like) are joined to their flag by `=`: as separate arguments, values that begin with a dash would be read as
flags.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from quiesce._safe.printed import logger
from quiesce.claude.words import (
    ClaudeAgentOptions,
    CLIConnectionError,
    PermissionMode,
    SystemPromptCustom,
    SystemPromptFile,
)

SDK_VERSION: Final = "0.2.182"  # of claude-agent-sdk, whose protocol this speaks

_STATE_FRAMES = "CLAUDE_CODE_SDK_READS_SESSION_STATE"  # makes the CLI report when it is idle
_DERIVED_APP = "CLAUDE_AGENT_SDK_DERIVED_CLIENT_APP"  # set by an outer session, for an app that is not ours
_INVALID_IN_SKILLS = re.compile("[(),\x00-\x1f\x7f-\x9f\ufeff\ud800-\udfff]")


def command_of(options: ClaudeAgentOptions, cli: str) -> list[str]:
    """Return the command line for these options."""
    return [
        *(cli, "--output-format", "stream-json", "--verbose"),
        *_prompt_and_tools(options),
        *_limits_and_model(options),
        *_permissions(options),
        *_which_session(options),
        *_settings_and_servers(options),
        *_messages(options),
        *_sources_and_plugins(options),
        *_extra(options),
        *_thinking_and_format(options),
        *("--input-format", "stream-json"),
    ]


def environment_of(options: ClaudeAgentOptions) -> dict[str, str]:
    """Return the whole environment for these options.

    It is the environment of this process, overridden by `options.env`, and by what tells the CLI who started
    it.
    """
    # A Claude Code that runs this program sets CLAUDECODE, and the CLI would take itself for a nested
    # session.
    inherited = {name: value for name, value in os.environ.items() if name != "CLAUDECODE"}
    environment = {
        **inherited,
        "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
        **options.env,
        "CLAUDE_AGENT_SDK_VERSION": SDK_VERSION,
    }
    environment.pop(_DERIVED_APP, None)
    if options.client_app is not None:
        environment["CLAUDE_AGENT_SDK_CLIENT_APP"] = options.client_app
    _add_trace(environment, options)
    if not any(name.upper() == _STATE_FRAMES for name in environment):
        environment[_STATE_FRAMES] = "1"
    if options.enable_file_checkpointing:
        environment["CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING"] = "true"
    if options.cwd:
        environment["PWD"] = str(options.cwd)
    return environment


def _prompt_and_tools(options: ClaudeAgentOptions) -> Iterator[str]:
    prompt = options.system_prompt
    if prompt is None or isinstance(prompt, str):
        # None is sent as an empty prompt: without the flag the CLI would use Claude Code's own.
        yield from ("--system-prompt", prompt or "")
    else:
        kind = prompt.get("type")
        if kind == "file":
            yield from ("--system-prompt-file", cast(SystemPromptFile, prompt)["path"])
        elif kind == "custom":
            yield from ("--system-prompt", cast(SystemPromptCustom, prompt)["prompt"])
        elif kind == "preset" and "append" in prompt:
            yield from ("--append-system-prompt", cast(str, prompt.get("append")))
    if options.tools is not None:
        yield from ("--tools", ",".join(options.tools) if isinstance(options.tools, list) else "default")
    if allowed := _allowed_tools(options):
        yield from ("--allowedTools", ",".join(allowed))


def _limits_and_model(options: ClaudeAgentOptions) -> Iterator[str]:
    if options.max_turns:
        yield from ("--max-turns", str(options.max_turns))
    if options.max_budget_usd is not None:
        yield from ("--max-budget-usd", str(options.max_budget_usd))
    if options.disallowed_tools:
        yield from ("--disallowedTools", ",".join(options.disallowed_tools))
    if options.task_budget is not None:
        yield from ("--task-budget", str(options.task_budget["total"]))
    if options.model:
        yield from ("--model", options.model)
    if options.fallback_model:
        yield from ("--fallback-model", options.fallback_model)
    if options.betas:
        yield from ("--betas", ",".join(options.betas))


def _permissions(options: ClaudeAgentOptions) -> Iterator[str]:
    # "stdio" makes the CLI ask over the control protocol.
    judge = "stdio" if options.can_use_tool is not None else options.permission_prompt_tool_name
    if judge:
        yield from ("--permission-prompt-tool", judge)
    mode: PermissionMode | None = options.permission_mode
    if mode:
        yield from ("--permission-mode", mode)


def _which_session(options: ClaudeAgentOptions) -> Iterator[str]:
    if options.continue_conversation:
        yield "--continue"
    if options.resume:
        yield f"--resume={options.resume}"
    if options.session_id:
        yield f"--session-id={options.session_id}"


def _settings_and_servers(options: ClaudeAgentOptions) -> Iterator[str]:
    if settings := _settings(options):
        yield from ("--settings", settings)
    for directory in options.add_dirs:
        yield from ("--add-dir", str(directory))
    servers = options.mcp_servers
    if servers and isinstance(servers, dict):
        yield from ("--mcp-config", json.dumps({"mcpServers": {n: _listed(c) for n, c in servers.items()}}))
    elif servers:
        yield from ("--mcp-config", str(servers))


def _messages(options: ClaudeAgentOptions) -> Iterator[str]:
    if options.include_partial_messages:
        yield "--include-partial-messages"
    if options.include_hook_events:
        yield "--include-hook-events"
    if options.strict_mcp_config:
        yield "--strict-mcp-config"
    if options.fork_session:
        yield "--fork-session"
    if options.resume_session_at:
        yield f"--resume-session-at={options.resume_session_at}"
    # "" is passed on too: the CLI refuses it, while without the flag it might drop any turn.
    if options.resume_drops_turn is not None:
        yield f"--resume-drops-turn={options.resume_drops_turn}"
    if options.session_store is not None:
        yield "--session-mirror"


def _sources_and_plugins(options: ClaudeAgentOptions) -> Iterator[str]:
    sources: list[Any] | None = options.setting_sources
    if sources is None and options.skills is not None:
        sources = ["user", "project"]  # where skills are found
    if sources is not None:
        yield f"--setting-sources={','.join(sources)}"
    for plugin in options.plugins:
        if plugin["type"] != "local":
            raise ValueError(f"a plugin must be of the type 'local', not {plugin['type']!r}: {plugin!r}")
        yield from ("--plugin-dir", plugin["path"])


def _extra(options: ClaudeAgentOptions) -> Iterator[str]:
    for flag, value in options.extra_args.items():
        if value is None:
            yield f"--{flag}"
        elif str(value).startswith("-"):
            yield f"--{flag}={value}"
        else:
            yield from (f"--{flag}", str(value))


def _thinking_and_format(options: ClaudeAgentOptions) -> Iterator[str]:
    thinking = options.thinking
    if thinking is not None:
        if thinking["type"] == "enabled":
            yield from ("--max-thinking-tokens", str(thinking["budget_tokens"]))
        elif thinking["type"] in ("adaptive", "disabled"):
            yield from ("--thinking", thinking["type"])
        if thinking["type"] != "disabled" and "display" in thinking:
            yield from ("--thinking-display", thinking["display"])
    elif options.max_thinking_tokens is not None:
        yield from ("--max-thinking-tokens", str(options.max_thinking_tokens))
    if options.effort is not None:
        yield from ("--effort", options.effort)
    wanted = options.output_format
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema" and wanted.get("schema") is not None:
        yield from ("--json-schema", json.dumps(wanted["schema"]))


def _listed(config: Any) -> Any:
    """Return the configuration for the CLI: without the server object, which only this process has."""
    if isinstance(config, dict) and config.get("type") == "sdk":
        return {name: value for name, value in config.items() if name != "instance"}
    return config


def _settings(options: ClaudeAgentOptions) -> str | None:
    """Return the settings, with the sandbox in them.

    Settings that cannot be read are an error: to start without them might allow what they forbid.
    """
    settings = options.settings
    if options.sandbox is None:
        return settings
    merged: Any = {}
    try:
        if settings is not None:
            text = settings.strip()
            if not (text.startswith("{") and text.endswith("}")):
                # A file; a relative path counts from the directory in which the CLI will run.
                text = (Path(options.cwd or "") / text).read_text(encoding="utf-8-sig")
            merged = json.loads(text)
        merged["sandbox"] = options.sandbox
    except (OSError, ValueError, TypeError) as error:
        raise CLIConnectionError(
            f"Failed to load settings: {error}; "
            "options.settings must be a JSON object, or the path of a file with one"
        ) from error
    return json.dumps(merged)


def _allowed_tools(options: ClaudeAgentOptions) -> list[str]:
    allowed = list(options.allowed_tools)
    skills: Any = options.skills
    if skills is None:
        return allowed
    if not isinstance(skills, list) and skills != "all":
        hint = f"; did you mean [{skills!r}]?" if isinstance(skills, str) else ""
        raise TypeError(f'skills must be a list of names of skills, or "all", not {skills!r}{hint}')
    # A rule for the tool `Skill` is what lets the agent use skills without asking for permission.
    rules = ["Skill"] if skills == "all" else [f"Skill({_checked_skill(name)})" for name in skills]
    for rule in rules:
        if rule not in allowed:
            allowed.append(rule)
    return allowed


def _checked_skill(name: Any) -> str:
    """Return the name if the rule `Skill(name)` allows exactly that skill, or raise.

    The CLI splits rules without regard to escapes, so other names would allow another skill, or none.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a skill must be a str, not {type(name).__name__}: {name!r}")
    wrong = None
    if not name.strip():
        wrong = "it is empty"
    elif _INVALID_IN_SKILLS.search(name):
        wrong = "it has a bracket, a comma, or a character that no directory's name can have"
    elif name != name.strip():
        wrong = "it begins or ends with white space"
    elif name == "*":
        wrong = 'for every skill, use skills="all"'
    elif name.endswith((":*", " *")):
        wrong = "list each skill by its own name, without wildcards"
    elif name.startswith("/"):
        wrong = "give the name of the skill, without the slash of its command"
    elif "\\\\" in name or name.endswith("\\"):
        wrong = "it has two backslashes in a row, or one at its end"
    if wrong is not None:
        raise ValueError(f"Invalid skill name {name!r}: {wrong}")
    return name


def _add_trace(environment: dict[str, str], options: ClaudeAgentOptions) -> None:
    """Make the CLI's spans children of the current one, if OpenTelemetry is installed; `options.env` wins."""
    try:
        from opentelemetry import propagate
    except ImportError:
        return
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier)
    except Exception:
        # A broken propagator must not break the session.
        logger.debug("OpenTelemetry could not give the trace context", exc_info=True)
        return
    if "traceparent" in carrier:
        # The inherited variables belong to another trace. The two go together, so neither may stay alone.
        for name in ("TRACEPARENT", "TRACESTATE"):
            if name not in options.env:
                environment.pop(name, None)
    for name, value in carrier.items():
        if name.upper() not in options.env:
            environment[name.upper()] = value
