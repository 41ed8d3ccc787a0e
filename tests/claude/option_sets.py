"""Options that both libraries are given: `sdk` is claude_agent_sdk or quiesce.claude, `directory` one with `settings.json` in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SETTINGS = '\ufeff{"permissions": {"deny": ["WebFetch"]}, "model": "ü"}'  # with the mark that some editors begin files with

# What both are started in.
ENVIRONMENT = {
    "HOME": "/nowhere",
    "PATH": "/bin",
    "CLAUDECODE": "1",
    "CLAUDE_CODE_ENTRYPOINT": "cli",
    "CLAUDE_AGENT_SDK_DERIVED_CLIENT_APP": "outer/1.0",
    "TRACEPARENT": "00-11111111111111111111111111111111-1111111111111111-01",
    "TRACESTATE": "of=outer",
}


async def allow(name: str, given: dict[str, Any], context: Any) -> Any:
    raise NotImplementedError


async def first(given: Any, tool_use_id: str | None, context: Any) -> Any:
    raise NotImplementedError


async def second(given: Any, tool_use_id: str | None, context: Any) -> Any:
    raise NotImplementedError


def option_sets(sdk: Any, directory: Path) -> dict[str, Any]:
    make, matcher, agent = sdk.ClaudeAgentOptions, sdk.HookMatcher, sdk.AgentDefinition
    add = sdk.tool("add", "Add", {"a": int})(first)
    here = sdk.create_sdk_mcp_server("calc", tools=[add])
    preset = {"type": "preset", "preset": "claude_code"}
    sandbox = {"enabled": True, "network": {"allowLocalBinding": True}}
    schema = {"type": "object", "properties": {"größe": {"type": "number"}}}
    return {
        "nothing": make(),
        "a prompt": make(system_prompt="You are a pirate."),
        "a preset": make(system_prompt=preset),
        "a preset with more": make(system_prompt={**preset, "append": "Be brief."}),
        "a preset for caches": make(
            system_prompt={**preset, "exclude_dynamic_sections": True, "snapshot": False}
        ),
        "a prompt that may change": make(system_prompt={"type": "custom", "prompt": "P", "snapshot": False}),
        "a prompt with what only others have": make(
            system_prompt={"type": "custom", "prompt": "P", "exclude_dynamic_sections": True, "snapshot": 1}
        ),
        "a prompt in a file with what only others have": make(
            system_prompt={"type": "file", "path": "p", "exclude_dynamic_sections": True, "snapshot": True}
        ),
        "a prompt in a file": make(system_prompt={"type": "file", "path": "prompt.md"}),
        "tools": make(tools=["Bash", "Read"]),
        "no tools": make(tools=[]),
        "the preset's tools": make(tools=preset),
        "tools allowed and not": make(
            allowed_tools=["Read", "Bash(ls:*)"], disallowed_tools=["WebFetch", "Write"]
        ),
        "limits": make(max_turns=3, max_budget_usd=0.5, task_budget={"total": 1000}),
        "no turns and no money": make(max_turns=0, max_budget_usd=0),
        "models": make(model="a", fallback_model="b", betas=["context-1m-2025-08-07", "other"]),
        "a tool that is asked": make(permission_prompt_tool_name="mcp__ask__me", permission_mode="plan"),
        "a callback that is asked": make(can_use_tool=allow, permission_mode="acceptEdits"),
        "the last conversation": make(continue_conversation=True),
        "a session resumed": make(
            resume="--dangerous", fork_session=True, resume_session_at="u1", resume_drops_turn=""
        ),
        "a session's id": make(
            session_id="123e4567-e89b-12d3-a456-426614174000", resume="", resume_session_at=""
        ),
        "settings in a file": make(settings="settings.json"),
        "settings as JSON": make(settings=' {"a": 1}'),
        "a sandbox": make(sandbox=sandbox),
        "a sandbox and settings as JSON": make(sandbox=sandbox, settings=' {"sandbox": 1, "a": "ü"} '),
        "a sandbox and settings in a file": make(sandbox=sandbox, settings="settings.json", cwd=directory),
        "a sandbox and settings that are missing": make(
            sandbox=sandbox, settings="missing.json", cwd=directory
        ),
        "a sandbox and settings that are a list": make(
            sandbox=sandbox, settings=str(directory / "list.json")
        ),
        "directories": make(add_dirs=["/a", Path("/b c")]),
        "servers": make(
            mcp_servers={
                "calc": here,
                "files": {"command": "files", "args": ["-x"], "env": {"A": "ü"}},
                "web": {"type": "http", "url": "http://localhost", "headers": {"H": "1"}},
            },
            strict_mcp_config=True,
        ),
        "servers in a file": make(mcp_servers=Path("servers.json")),
        "servers as JSON": make(mcp_servers='{"mcpServers": {}}'),
        "what is sent": make(
            include_partial_messages=True, include_hook_events=True, forward_subagent_text=True
        ),
        "sources": make(setting_sources=["user", "local"]),
        "no sources": make(setting_sources=[]),
        "all skills": make(skills="all", allowed_tools=["Read"]),
        "some skills": make(
            skills=["pdf", "office:docx"], allowed_tools=["Skill(pdf)"], setting_sources=["project"]
        ),
        "no skills": make(skills=[]),
        "a plugin": make(plugins=[{"type": "local", "path": "/p"}, {"type": "local", "path": "q"}]),
        "a plugin of no known type": make(plugins=[{"type": "remote", "path": "/p"}]),
        "more arguments": make(extra_args={"debug-to-stderr": None, "name": "x", "dash": "-1", "number": 5}),
        "adaptive thinking": make(
            thinking={"type": "adaptive", "display": "summarized"}, max_thinking_tokens=5
        ),
        "so much thinking": make(thinking={"type": "enabled", "budget_tokens": 99, "display": "omitted"}),
        "no thinking": make(thinking={"type": "disabled"}, effort="low"),
        "thinking tokens": make(max_thinking_tokens=0, effort="max"),
        "a format": make(output_format={"type": "json_schema", "schema": schema}),
        "a format of no known type": make(output_format={"type": "text", "schema": schema}),
        "agents": make(
            agents={
                "reviewer": agent(
                    "Reviews", "Review it", ["Read"], model="sonnet", maxTurns=2, background=False
                ),
                "writer": agent(
                    description="Writes", prompt="", mcpServers=["calc", {"x": {"command": "x"}}]
                ),
            }
        ),
        "hooks": make(
            hooks={
                "PreToolUse": [
                    matcher("Bash", [first, second], 5.0),
                    matcher(hooks=[first], on_failure="continue"),
                ],
                "Stop": [],
                "PostToolUse": [matcher()],
                "Notification": [matcher(None, [second])],
            }
        ),
        "an environment": make(
            env={
                "CLAUDE_CODE_ENTRYPOINT": "mine",
                "CLAUDE_AGENT_SDK_VERSION": "0",
                "X": "1",
                "TRACESTATE": "of=mine",
            },
            cwd=str(directory),
            enable_file_checkpointing=True,
        ),
        "an app": make(client_app="mine/1.0", env={"CLAUDE_AGENT_SDK_CLIENT_APP": "other"}),
        "no app": make(client_app=""),
        "state frames of the user's choice": make(env={"claude_code_sdk_reads_session_state": "0"}),
    }


WRONG_SKILLS: list[Any] = ["pdf", ("pdf",), [5], [""], [" pdf"], ["*"], ["a:*"], ["a *"], ["/pdf"], ["a,b"], ["a(b"], ["a\\"], ["a\\\\b"], ["\ufeffa"], ["a\ud800"], ["a\nb"]]  # fmt: skip
