"""The Claude Code CLI, driven and stopped for real.

The names are those of claude-agent-sdk, so a program that uses that package only changes its imports.
`docs/claude/carry-over.md` lists what carries over, and what differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce import __version__ as __version__
from quiesce._extras import require
from quiesce._lazy import offer

require("msgspec", "agents", "quiesce.claude")

if TYPE_CHECKING:
    from .process import Transport as Transport
    from .session import ClaudeSDKClient as ClaudeSDKClient
    from .session import Query as Query
    from .session import query as query
    from .tools import SdkMcpTool as SdkMcpTool
    from .tools import ToolAnnotations as ToolAnnotations
    from .tools import create_sdk_mcp_server as create_sdk_mcp_server
    from .tools import tool as tool
    from .types import TERMINAL_TASK_STATUSES as TERMINAL_TASK_STATUSES
    from .types import AgentDefinition as AgentDefinition
    from .types import AssistantMessage as AssistantMessage
    from .types import AssistantMessageError as AssistantMessageError
    from .types import AsyncHookJSONOutput as AsyncHookJSONOutput
    from .types import BackgroundTaskSummary as BackgroundTaskSummary
    from .types import BaseHookInput as BaseHookInput
    from .types import CanUseTool as CanUseTool
    from .types import CanUseToolShadowedWarning as CanUseToolShadowedWarning
    from .types import ClaudeAgentOptions as ClaudeAgentOptions
    from .types import ClaudeSDKError as ClaudeSDKError
    from .types import CLIConnectionError as CLIConnectionError
    from .types import CLIJSONDecodeError as CLIJSONDecodeError
    from .types import CLINotFoundError as CLINotFoundError
    from .types import ContentBlock as ContentBlock
    from .types import ContextUsageCategory as ContextUsageCategory
    from .types import ContextUsageResponse as ContextUsageResponse
    from .types import ConversationResetMessage as ConversationResetMessage
    from .types import CwdChangedHookSpecificOutput as CwdChangedHookSpecificOutput
    from .types import DeferredToolUse as DeferredToolUse
    from .types import EffortLevel as EffortLevel
    from .types import ElicitationHookSpecificOutput as ElicitationHookSpecificOutput
    from .types import ElicitationResultHookSpecificOutput as ElicitationResultHookSpecificOutput
    from .types import FastModeDisabledReason as FastModeDisabledReason
    from .types import FastModeState as FastModeState
    from .types import FileChangedHookSpecificOutput as FileChangedHookSpecificOutput
    from .types import HookCallback as HookCallback
    from .types import HookContext as HookContext
    from .types import HookEffort as HookEffort
    from .types import HookEvent as HookEvent
    from .types import HookEventMessage as HookEventMessage
    from .types import HookInput as HookInput
    from .types import HookJSONOutput as HookJSONOutput
    from .types import HookMatcher as HookMatcher
    from .types import HookSpecificOutput as HookSpecificOutput
    from .types import McpClaudeAIProxyServerConfig as McpClaudeAIProxyServerConfig
    from .types import McpHttpServerConfig as McpHttpServerConfig
    from .types import McpSdkServerConfig as McpSdkServerConfig
    from .types import McpSdkServerConfigStatus as McpSdkServerConfigStatus
    from .types import McpServerConfig as McpServerConfig
    from .types import McpServerConnectionStatus as McpServerConnectionStatus
    from .types import McpServerInfo as McpServerInfo
    from .types import McpServerStatus as McpServerStatus
    from .types import McpServerStatusConfig as McpServerStatusConfig
    from .types import McpSSEServerConfig as McpSSEServerConfig
    from .types import McpStatusResponse as McpStatusResponse
    from .types import McpStdioServerConfig as McpStdioServerConfig
    from .types import McpToolAnnotations as McpToolAnnotations
    from .types import McpToolInfo as McpToolInfo
    from .types import Message as Message
    from .types import MessageDisplayHookSpecificOutput as MessageDisplayHookSpecificOutput
    from .types import MessageOrigin as MessageOrigin
    from .types import MessageOriginKind as MessageOriginKind
    from .types import MessageParseError as MessageParseError
    from .types import MirrorErrorMessage as MirrorErrorMessage
    from .types import ModelUsage as ModelUsage
    from .types import NotificationHookInput as NotificationHookInput
    from .types import NotificationHookSpecificOutput as NotificationHookSpecificOutput
    from .types import PermissionBehavior as PermissionBehavior
    from .types import PermissionDeniedHookSpecificOutput as PermissionDeniedHookSpecificOutput
    from .types import PermissionMode as PermissionMode
    from .types import PermissionRequestHookInput as PermissionRequestHookInput
    from .types import PermissionRequestHookSpecificOutput as PermissionRequestHookSpecificOutput
    from .types import PermissionResult as PermissionResult
    from .types import PermissionResultAllow as PermissionResultAllow
    from .types import PermissionResultDeny as PermissionResultDeny
    from .types import PermissionRuleValue as PermissionRuleValue
    from .types import PermissionUpdate as PermissionUpdate
    from .types import PermissionUpdateDestination as PermissionUpdateDestination
    from .types import PostModelSwitchHookSpecificOutput as PostModelSwitchHookSpecificOutput
    from .types import PostToolBatchHookSpecificOutput as PostToolBatchHookSpecificOutput
    from .types import PostToolUseFailureHookInput as PostToolUseFailureHookInput
    from .types import PostToolUseFailureHookSpecificOutput as PostToolUseFailureHookSpecificOutput
    from .types import PostToolUseHookInput as PostToolUseHookInput
    from .types import PostToolUseHookSpecificOutput as PostToolUseHookSpecificOutput
    from .types import PreCompactHookInput as PreCompactHookInput
    from .types import PreModelSwitchHookSpecificOutput as PreModelSwitchHookSpecificOutput
    from .types import PreToolUseHookInput as PreToolUseHookInput
    from .types import PreToolUseHookSpecificOutput as PreToolUseHookSpecificOutput
    from .types import ProcessError as ProcessError
    from .types import RateLimitEvent as RateLimitEvent
    from .types import RateLimitInfo as RateLimitInfo
    from .types import RateLimitStatus as RateLimitStatus
    from .types import RateLimitType as RateLimitType
    from .types import ResultError as ResultError
    from .types import ResultMessage as ResultMessage
    from .types import SandboxIgnoreViolations as SandboxIgnoreViolations
    from .types import SandboxNetworkConfig as SandboxNetworkConfig
    from .types import SandboxSettings as SandboxSettings
    from .types import SdkBeta as SdkBeta
    from .types import SdkPluginConfig as SdkPluginConfig
    from .types import ServerToolName as ServerToolName
    from .types import ServerToolResultBlock as ServerToolResultBlock
    from .types import ServerToolUseBlock as ServerToolUseBlock
    from .types import SessionCronSummary as SessionCronSummary
    from .types import SessionKey as SessionKey
    from .types import SessionListSubkeysKey as SessionListSubkeysKey
    from .types import SessionStartHookSpecificOutput as SessionStartHookSpecificOutput
    from .types import SessionStore as SessionStore
    from .types import SessionStoreEntry as SessionStoreEntry
    from .types import SessionStoreFlushMode as SessionStoreFlushMode
    from .types import SessionStoreListEntry as SessionStoreListEntry
    from .types import SessionSummaryEntry as SessionSummaryEntry
    from .types import SettingSource as SettingSource
    from .types import StopHookInput as StopHookInput
    from .types import StopHookSpecificOutput as StopHookSpecificOutput
    from .types import StreamEvent as StreamEvent
    from .types import SubagentStartHookInput as SubagentStartHookInput
    from .types import SubagentStartHookSpecificOutput as SubagentStartHookSpecificOutput
    from .types import SubagentStopHookInput as SubagentStopHookInput
    from .types import SubagentStopHookSpecificOutput as SubagentStopHookSpecificOutput
    from .types import SyncHookJSONOutput as SyncHookJSONOutput
    from .types import SystemInitData as SystemInitData
    from .types import SystemInitMcpServer as SystemInitMcpServer
    from .types import SystemInitPlugin as SystemInitPlugin
    from .types import SystemInitPluginError as SystemInitPluginError
    from .types import SystemMessage as SystemMessage
    from .types import SystemPromptCustom as SystemPromptCustom
    from .types import SystemPromptFile as SystemPromptFile
    from .types import SystemPromptPreset as SystemPromptPreset
    from .types import TaskBudget as TaskBudget
    from .types import TaskNotificationMessage as TaskNotificationMessage
    from .types import TaskNotificationOriginSubkind as TaskNotificationOriginSubkind
    from .types import TaskNotificationStatus as TaskNotificationStatus
    from .types import TaskProgressMessage as TaskProgressMessage
    from .types import TaskStartedMessage as TaskStartedMessage
    from .types import TaskUpdatedMessage as TaskUpdatedMessage
    from .types import TaskUpdatedStatus as TaskUpdatedStatus
    from .types import TaskUsage as TaskUsage
    from .types import TextBlock as TextBlock
    from .types import ThinkingBlock as ThinkingBlock
    from .types import ThinkingConfig as ThinkingConfig
    from .types import ThinkingConfigAdaptive as ThinkingConfigAdaptive
    from .types import ThinkingConfigDisabled as ThinkingConfigDisabled
    from .types import ThinkingConfigEnabled as ThinkingConfigEnabled
    from .types import ThinkingDisplay as ThinkingDisplay
    from .types import ToolPermissionContext as ToolPermissionContext
    from .types import ToolResultBlock as ToolResultBlock
    from .types import ToolsPreset as ToolsPreset
    from .types import ToolUseBlock as ToolUseBlock
    from .types import UserMessage as UserMessage
    from .types import UserPromptExpansionHookSpecificOutput as UserPromptExpansionHookSpecificOutput
    from .types import UserPromptSubmitHookInput as UserPromptSubmitHookInput
    from .types import UserPromptSubmitHookSpecificOutput as UserPromptSubmitHookSpecificOutput
    from .types import WorktreeCreateHookSpecificOutput as WorktreeCreateHookSpecificOutput
    from .types import parse_message as parse_message

offer()
