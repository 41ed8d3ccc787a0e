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
    from .words import TERMINAL_TASK_STATUSES as TERMINAL_TASK_STATUSES
    from .words import AgentDefinition as AgentDefinition
    from .words import AssistantMessage as AssistantMessage
    from .words import AssistantMessageError as AssistantMessageError
    from .words import AsyncHookJSONOutput as AsyncHookJSONOutput
    from .words import BackgroundTaskSummary as BackgroundTaskSummary
    from .words import BaseHookInput as BaseHookInput
    from .words import CanUseTool as CanUseTool
    from .words import CanUseToolShadowedWarning as CanUseToolShadowedWarning
    from .words import ClaudeAgentOptions as ClaudeAgentOptions
    from .words import ClaudeSDKError as ClaudeSDKError
    from .words import CLIConnectionError as CLIConnectionError
    from .words import CLIJSONDecodeError as CLIJSONDecodeError
    from .words import CLINotFoundError as CLINotFoundError
    from .words import ContentBlock as ContentBlock
    from .words import ContextUsageCategory as ContextUsageCategory
    from .words import ContextUsageResponse as ContextUsageResponse
    from .words import ConversationResetMessage as ConversationResetMessage
    from .words import CwdChangedHookSpecificOutput as CwdChangedHookSpecificOutput
    from .words import DeferredToolUse as DeferredToolUse
    from .words import EffortLevel as EffortLevel
    from .words import ElicitationHookSpecificOutput as ElicitationHookSpecificOutput
    from .words import ElicitationResultHookSpecificOutput as ElicitationResultHookSpecificOutput
    from .words import FastModeDisabledReason as FastModeDisabledReason
    from .words import FastModeState as FastModeState
    from .words import FileChangedHookSpecificOutput as FileChangedHookSpecificOutput
    from .words import HookCallback as HookCallback
    from .words import HookContext as HookContext
    from .words import HookEffort as HookEffort
    from .words import HookEvent as HookEvent
    from .words import HookEventMessage as HookEventMessage
    from .words import HookInput as HookInput
    from .words import HookJSONOutput as HookJSONOutput
    from .words import HookMatcher as HookMatcher
    from .words import HookSpecificOutput as HookSpecificOutput
    from .words import McpClaudeAIProxyServerConfig as McpClaudeAIProxyServerConfig
    from .words import McpHttpServerConfig as McpHttpServerConfig
    from .words import McpSdkServerConfig as McpSdkServerConfig
    from .words import McpSdkServerConfigStatus as McpSdkServerConfigStatus
    from .words import McpServerConfig as McpServerConfig
    from .words import McpServerConnectionStatus as McpServerConnectionStatus
    from .words import McpServerInfo as McpServerInfo
    from .words import McpServerStatus as McpServerStatus
    from .words import McpServerStatusConfig as McpServerStatusConfig
    from .words import McpSSEServerConfig as McpSSEServerConfig
    from .words import McpStatusResponse as McpStatusResponse
    from .words import McpStdioServerConfig as McpStdioServerConfig
    from .words import McpToolAnnotations as McpToolAnnotations
    from .words import McpToolInfo as McpToolInfo
    from .words import Message as Message
    from .words import MessageDisplayHookSpecificOutput as MessageDisplayHookSpecificOutput
    from .words import MessageOrigin as MessageOrigin
    from .words import MessageOriginKind as MessageOriginKind
    from .words import MessageParseError as MessageParseError
    from .words import MirrorErrorMessage as MirrorErrorMessage
    from .words import ModelUsage as ModelUsage
    from .words import NotificationHookInput as NotificationHookInput
    from .words import NotificationHookSpecificOutput as NotificationHookSpecificOutput
    from .words import PermissionBehavior as PermissionBehavior
    from .words import PermissionDeniedHookSpecificOutput as PermissionDeniedHookSpecificOutput
    from .words import PermissionMode as PermissionMode
    from .words import PermissionRequestHookInput as PermissionRequestHookInput
    from .words import PermissionRequestHookSpecificOutput as PermissionRequestHookSpecificOutput
    from .words import PermissionResult as PermissionResult
    from .words import PermissionResultAllow as PermissionResultAllow
    from .words import PermissionResultDeny as PermissionResultDeny
    from .words import PermissionRuleValue as PermissionRuleValue
    from .words import PermissionUpdate as PermissionUpdate
    from .words import PermissionUpdateDestination as PermissionUpdateDestination
    from .words import PostModelSwitchHookSpecificOutput as PostModelSwitchHookSpecificOutput
    from .words import PostToolBatchHookSpecificOutput as PostToolBatchHookSpecificOutput
    from .words import PostToolUseFailureHookInput as PostToolUseFailureHookInput
    from .words import PostToolUseFailureHookSpecificOutput as PostToolUseFailureHookSpecificOutput
    from .words import PostToolUseHookInput as PostToolUseHookInput
    from .words import PostToolUseHookSpecificOutput as PostToolUseHookSpecificOutput
    from .words import PreCompactHookInput as PreCompactHookInput
    from .words import PreModelSwitchHookSpecificOutput as PreModelSwitchHookSpecificOutput
    from .words import PreToolUseHookInput as PreToolUseHookInput
    from .words import PreToolUseHookSpecificOutput as PreToolUseHookSpecificOutput
    from .words import ProcessError as ProcessError
    from .words import RateLimitEvent as RateLimitEvent
    from .words import RateLimitInfo as RateLimitInfo
    from .words import RateLimitStatus as RateLimitStatus
    from .words import RateLimitType as RateLimitType
    from .words import ResultError as ResultError
    from .words import ResultMessage as ResultMessage
    from .words import SandboxIgnoreViolations as SandboxIgnoreViolations
    from .words import SandboxNetworkConfig as SandboxNetworkConfig
    from .words import SandboxSettings as SandboxSettings
    from .words import SdkBeta as SdkBeta
    from .words import SdkPluginConfig as SdkPluginConfig
    from .words import ServerToolName as ServerToolName
    from .words import ServerToolResultBlock as ServerToolResultBlock
    from .words import ServerToolUseBlock as ServerToolUseBlock
    from .words import SessionCronSummary as SessionCronSummary
    from .words import SessionKey as SessionKey
    from .words import SessionListSubkeysKey as SessionListSubkeysKey
    from .words import SessionStartHookSpecificOutput as SessionStartHookSpecificOutput
    from .words import SessionStore as SessionStore
    from .words import SessionStoreEntry as SessionStoreEntry
    from .words import SessionStoreFlushMode as SessionStoreFlushMode
    from .words import SessionStoreListEntry as SessionStoreListEntry
    from .words import SessionSummaryEntry as SessionSummaryEntry
    from .words import SettingSource as SettingSource
    from .words import StopHookInput as StopHookInput
    from .words import StopHookSpecificOutput as StopHookSpecificOutput
    from .words import StreamEvent as StreamEvent
    from .words import SubagentStartHookInput as SubagentStartHookInput
    from .words import SubagentStartHookSpecificOutput as SubagentStartHookSpecificOutput
    from .words import SubagentStopHookInput as SubagentStopHookInput
    from .words import SubagentStopHookSpecificOutput as SubagentStopHookSpecificOutput
    from .words import SyncHookJSONOutput as SyncHookJSONOutput
    from .words import SystemInitData as SystemInitData
    from .words import SystemInitMcpServer as SystemInitMcpServer
    from .words import SystemInitPlugin as SystemInitPlugin
    from .words import SystemInitPluginError as SystemInitPluginError
    from .words import SystemMessage as SystemMessage
    from .words import SystemPromptCustom as SystemPromptCustom
    from .words import SystemPromptFile as SystemPromptFile
    from .words import SystemPromptPreset as SystemPromptPreset
    from .words import TaskBudget as TaskBudget
    from .words import TaskNotificationMessage as TaskNotificationMessage
    from .words import TaskNotificationOriginSubkind as TaskNotificationOriginSubkind
    from .words import TaskNotificationStatus as TaskNotificationStatus
    from .words import TaskProgressMessage as TaskProgressMessage
    from .words import TaskStartedMessage as TaskStartedMessage
    from .words import TaskUpdatedMessage as TaskUpdatedMessage
    from .words import TaskUpdatedStatus as TaskUpdatedStatus
    from .words import TaskUsage as TaskUsage
    from .words import TextBlock as TextBlock
    from .words import ThinkingBlock as ThinkingBlock
    from .words import ThinkingConfig as ThinkingConfig
    from .words import ThinkingConfigAdaptive as ThinkingConfigAdaptive
    from .words import ThinkingConfigDisabled as ThinkingConfigDisabled
    from .words import ThinkingConfigEnabled as ThinkingConfigEnabled
    from .words import ThinkingDisplay as ThinkingDisplay
    from .words import ToolPermissionContext as ToolPermissionContext
    from .words import ToolResultBlock as ToolResultBlock
    from .words import ToolsPreset as ToolsPreset
    from .words import ToolUseBlock as ToolUseBlock
    from .words import UserMessage as UserMessage
    from .words import UserPromptExpansionHookSpecificOutput as UserPromptExpansionHookSpecificOutput
    from .words import UserPromptSubmitHookInput as UserPromptSubmitHookInput
    from .words import UserPromptSubmitHookSpecificOutput as UserPromptSubmitHookSpecificOutput
    from .words import WorktreeCreateHookSpecificOutput as WorktreeCreateHookSpecificOutput
    from .words import parse_message as parse_message

offer()
