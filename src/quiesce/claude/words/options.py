"""The options of a session.

`ClaudeAgentOptions` has the fields of claude-agent-sdk's class, in its order and with its defaults. `command`
and `initialize` turn them into flags and requests. `check_options` refuses those that contradict each other.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from .hooks import HookEvent, HookMatcher
from .mcp_servers import McpServerConfig
from .permissions import CanUseTool, CanUseToolShadowedWarning, PermissionMode, shadowed_by
from .session_store import SessionStore, SessionStoreFlushMode

SdkBeta: TypeAlias = Literal["context-1m-2025-08-07"]
SettingSource: TypeAlias = Literal["user", "project", "local"]
EffortLevel: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]
ThinkingDisplay: TypeAlias = Literal["summarized", "omitted"]


class SystemPromptPreset(TypedDict):
    """Claude Code's own system prompt, with an optional text after it.

    `exclude_dynamic_sections` keeps out what differs from user to user, so that caches hold across them;
    `snapshot` says whether the session keeps the prompt that it began with.
    """

    type: Literal["preset"]
    preset: Literal["claude_code"]
    append: NotRequired[str]
    exclude_dynamic_sections: NotRequired[bool]
    snapshot: NotRequired[bool]


class SystemPromptCustom(TypedDict):
    """A system prompt of your own, if you want to set `snapshot`."""

    type: Literal["custom"]
    prompt: str
    snapshot: NotRequired[bool]


class SystemPromptFile(TypedDict):
    """A system prompt in a file."""

    type: Literal["file"]
    path: str


class ToolsPreset(TypedDict):
    """The tools of Claude Code."""

    type: Literal["preset"]
    preset: Literal["claude_code"]


class TaskBudget(TypedDict):
    """How many tokens the model should try to stay within."""

    total: int


class ThinkingConfigAdaptive(TypedDict):
    """The model decides how much to think."""

    type: Literal["adaptive"]
    display: NotRequired[ThinkingDisplay]


class ThinkingConfigEnabled(TypedDict):
    """Up to so many tokens of thinking."""

    type: Literal["enabled"]
    budget_tokens: int
    display: NotRequired[ThinkingDisplay]


class ThinkingConfigDisabled(TypedDict):
    """No thinking."""

    type: Literal["disabled"]


ThinkingConfig: TypeAlias = ThinkingConfigAdaptive | ThinkingConfigEnabled | ThinkingConfigDisabled


class SdkPluginConfig(TypedDict):
    """A plugin in a directory."""

    type: Literal["local"]
    path: str


class SandboxNetworkConfig(TypedDict, total=False):
    """What commands in the sandbox may reach."""

    allowedDomains: list[str]
    deniedDomains: list[str]
    allowManagedDomainsOnly: bool
    allowUnixSockets: list[str]
    allowAllUnixSockets: bool
    allowLocalBinding: bool
    allowMachLookup: list[str]
    httpProxyPort: int
    socksProxyPort: int


SandboxIgnoreViolations: TypeAlias = dict[str, list[str]]
"""Violations that the sandbox does not report, by a part of the command; `"*"` stands for every command."""


class SandboxSettings(TypedDict, total=False):
    """The sandbox of the commands that the agent runs."""

    enabled: bool
    autoAllowBashIfSandboxed: bool
    excludedCommands: list[str]
    allowUnsandboxedCommands: bool
    network: SandboxNetworkConfig
    ignoreViolations: SandboxIgnoreViolations
    enableWeakerNestedSandbox: bool


@dataclass
class AgentDefinition:
    """A sub-agent that the agent may call. Its fields go to the CLI by these names."""

    description: str
    prompt: str
    tools: list[str] | None = None
    disallowedTools: list[str] | None = None  # noqa: N815
    model: str | None = None
    skills: list[str] | None = None
    memory: Literal["user", "project", "local"] | None = None
    mcpServers: list[str | dict[str, Any]] | None = None  # noqa: N815
    initialPrompt: str | None = None  # noqa: N815
    maxTurns: int | None = None  # noqa: N815
    background: bool | None = None
    effort: EffortLevel | int | None = None
    permissionMode: PermissionMode | None = None  # noqa: N815


@dataclass
class ClaudeAgentOptions:
    """The options of a session; all are optional."""

    tools: list[str] | ToolsPreset | None = None  # the available ones; [] for none
    allowed_tools: list[str] = field(default_factory=list)  # the ones that need no permission
    system_prompt: str | SystemPromptPreset | SystemPromptCustom | SystemPromptFile | None = None
    mcp_servers: dict[str, McpServerConfig] | str | Path = field(default_factory=dict)  # or a file, or JSON
    strict_mcp_config: bool = False  # no servers but these
    permission_mode: PermissionMode | None = None
    continue_conversation: bool = False  # the last conversation in this directory
    resume: str | None = None  # the session with this id
    session_id: str | None = None  # for a new session: a UUID
    max_turns: int | None = None
    max_budget_usd: float | None = None
    disallowed_tools: list[str] = field(default_factory=list)
    model: str | None = None
    fallback_model: str | None = None
    betas: list[SdkBeta] = field(default_factory=list)
    permission_prompt_tool_name: str | None = None  # an MCP tool to ask instead of `can_use_tool`
    cwd: str | Path | None = None
    cli_path: str | Path | None = None  # searched for unless given
    settings: str | None = None  # a file, or JSON
    add_dirs: list[str | Path] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)  # added to the environment of this process
    extra_args: dict[str, str | None] = field(default_factory=dict)  # without "--"; None for a bare flag
    max_buffer_size: int | None = None  # the longest line, in bytes
    debug_stderr: Any = sys.stderr  # not used: see `stderr`
    stderr: Callable[[str], None] | None = None  # called with each line
    can_use_tool: CanUseTool | None = None
    hooks: dict[HookEvent, list[HookMatcher]] | None = None
    user: str | None = None  # to run the CLI as
    include_partial_messages: bool = False  # `StreamEvent`s too
    include_hook_events: bool = False  # `HookEventMessage`s too
    forward_subagent_text: bool = False  # also what sub-agents say and think
    verbatim_prompts: bool = False  # no `@file` and `/command` in prompts
    fork_session: bool = False  # with `resume`: as a new session
    resume_session_at: str | None = None  # with `resume`: up to this message
    resume_drops_turn: str | None = None  # and this is the only turn that may be dropped
    agents: dict[str, AgentDefinition] | None = None
    setting_sources: list[SettingSource] | None = None  # all by default; [] for none
    skills: list[str] | Literal["all"] | None = None
    sandbox: SandboxSettings | None = None
    plugins: list[SdkPluginConfig] = field(default_factory=list)
    max_thinking_tokens: int | None = None  # `thinking` wins
    thinking: ThinkingConfig | None = None
    effort: EffortLevel | None = None
    output_format: dict[str, Any] | None = None  # {"type": "json_schema", "schema": …}
    enable_file_checkpointing: bool = False
    session_store: SessionStore | None = None  # refused: see `check_options`
    session_store_flush: SessionStoreFlushMode = "batched"
    load_timeout_ms: int = 60_000
    task_budget: TaskBudget | None = None
    client_app: str | None = None  # the name of your app, for the API


def check_options(options: ClaudeAgentOptions) -> None:
    """Raise for options that contradict each other; warn if `can_use_tool` will not be asked.

    Called once per session, before anything starts.
    """
    if options.session_store is not None:
        raise NotImplementedError(
            "quiesce.claude does not copy transcripts to a session_store, or resume from one: "
            "leave session_store out, and the CLI keeps its transcripts on disk"
        )
    if options.can_use_tool is None:
        return
    if options.permission_prompt_tool_name:
        raise ValueError(
            "can_use_tool and permission_prompt_tool_name both decide about tools: set only one of them"
        )
    allowed = options.allowed_tools
    if options.skills == "all":  # it allows the tool `Skill` without conditions
        allowed = [*allowed, "Skill"]
    if (shadowed := shadowed_by(options.permission_mode, allowed)) is not None:
        warnings.warn(shadowed, CanUseToolShadowedWarning, stacklevel=2)
