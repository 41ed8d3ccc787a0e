"""Agents that always stop: runs, guardrails, tools, transcripts and interruptible conversations.

```python
agent = Agent(name="assistant", instructions="Be brief.", model=OpenAIModel("gpt-5"), tools=[weather])
result = await Runner.run(agent, "How is the weather in Paris?")
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce import __version__ as __version__
from quiesce._extras import require
from quiesce._lazy import offer

require("msgspec", "agents", "quiesce.agents")

if TYPE_CHECKING:
    from quiesce.models import AssistantMessage as MessageOutputItem
    from quiesce.models import Item as RunItem
    from quiesce.models import Model as Model
    from quiesce.models import ModelBehaviorError as ModelBehaviorError
    from quiesce.models import ModelSettings as ModelSettings
    from quiesce.models import OpenAIChatCompletionsModel as OpenAIChatCompletionsModel
    from quiesce.models import OpenAIResponsesModel as OpenAIResponsesModel
    from quiesce.models import Reasoning as ReasoningItem
    from quiesce.models import ToolCall as ToolCallItem
    from quiesce.models import ToolResult as ToolCallOutputItem
    from quiesce.models import Usage as Usage
    from quiesce.models.inner import InputItem as TResponseInputItem

    from .agent import Agent as Agent
    from .agent import Agent as AgentBase
    from .agent import AgentHooks as AgentHooks
    from .agent import AgentsException as AgentsException
    from .agent import AgentToolStreamEvent as AgentToolStreamEvent
    from .agent import CallModelData as CallModelData
    from .agent import ConversationBusy as ConversationBusy
    from .agent import ConversationClosed as ConversationClosed
    from .agent import FunctionTool as FunctionTool
    from .agent import FunctionTool as Tool
    from .agent import FunctionToolResult as FunctionToolResult
    from .agent import GuardrailFunctionOutput as GuardrailFunctionOutput
    from .agent import GuardrailTripwireTriggered as GuardrailTripwireTriggered
    from .agent import Handoff as Handoff
    from .agent import HandoffInputData as HandoffInputData
    from .agent import InputGuardrail as InputGuardrail
    from .agent import InputGuardrailResult as InputGuardrailResult
    from .agent import InputGuardrailTripwireTriggered as InputGuardrailTripwireTriggered
    from .agent import InvalidFinalOutput as InvalidFinalOutput
    from .agent import InvalidToolArguments as InvalidToolArguments
    from .agent import ItemHelpers as ItemHelpers
    from .agent import MaxTurnsExceeded as MaxTurnsExceeded
    from .agent import ModelInputData as ModelInputData
    from .agent import ModelResponse as ModelResponse
    from .agent import OutputGuardrail as OutputGuardrail
    from .agent import OutputGuardrailResult as OutputGuardrailResult
    from .agent import OutputGuardrailTripwireTriggered as OutputGuardrailTripwireTriggered
    from .agent import Rejected as Rejected
    from .agent import RemoteToolError as RemoteToolError
    from .agent import RunConfig as RunConfig
    from .agent import RunContextWrapper as AgentHookContext
    from .agent import RunContextWrapper as RunContextWrapper
    from .agent import RunErrorDetails as RunErrorDetails
    from .agent import RunHooks as RunHooks
    from .agent import StopAtTools as StopAtTools
    from .agent import ToolContext as ToolContext
    from .agent import ToolGuardrailFunctionOutput as ToolGuardrailFunctionOutput
    from .agent import ToolInputGuardrail as ToolInputGuardrail
    from .agent import ToolInputGuardrailData as ToolInputGuardrailData
    from .agent import ToolInputGuardrailTripwireTriggered as ToolInputGuardrailTripwireTriggered
    from .agent import ToolOutputGuardrail as ToolOutputGuardrail
    from .agent import ToolOutputGuardrailData as ToolOutputGuardrailData
    from .agent import ToolOutputGuardrailTripwireTriggered as ToolOutputGuardrailTripwireTriggered
    from .agent import ToolProcessError as ToolProcessError
    from .agent import ToolsToFinalOutputFunction as ToolsToFinalOutputFunction
    from .agent import ToolsToFinalOutputResult as ToolsToFinalOutputResult
    from .agent import ToolTimeoutError as ToolTimeoutError
    from .agent import UserError as UserError
    from .agent import function_tool as function_tool
    from .agent import handoff as handoff
    from .agent import input_guardrail as input_guardrail
    from .agent import output_guardrail as output_guardrail
    from .agent import tool_input_guardrail as tool_input_guardrail
    from .agent import tool_output_guardrail as tool_output_guardrail
    from .conversation import Conversation as Conversation
    from .conversation import EventFeed as EventFeed
    from .history_repair import repair as repair
    from .mcp import MCPServerError as MCPServerError
    from .mcp import MCPServerStdio as MCPServerStdio
    from .mcp import MCPServerStreamableHttp as MCPServerStreamableHttp
    from .mcp import MCPToolError as MCPToolError
    from .run import AgentUpdatedStreamEvent as AgentUpdatedStreamEvent
    from .run import DecodedStreamEvent as DecodedStreamEvent
    from .run import RawResponseEvent as RawResponseEvent
    from .run import RawResponseEvent as RawResponsesStreamEvent
    from .run import RemoteAgent as RemoteAgent
    from .run import RunItemStreamEvent as RunItemStreamEvent
    from .run import Runner as Runner
    from .run import RunResult as RunResult
    from .run import RunResultStreaming as RunResultStreaming
    from .run import RunState as RunState
    from .run import Stopping as Stopping
    from .run import StreamEvent as StreamEvent
    from .run import ToolApprovalItem as ToolApprovalItem
    from .run import UnknownStreamEvent as UnknownStreamEvent
    from .run import decode_stream_event as decode_stream_event
    from .run import encode_stream_event as encode_stream_event
    from .store import ApprovalDecided as ApprovalDecided
    from .store import ApprovalRequested as ApprovalRequested
    from .store import Event as Event
    from .store import Holder as Holder
    from .store import ItemAdded as ItemAdded
    from .store import ItemPopped as ItemPopped
    from .store import ItemsCleared as ItemsCleared
    from .store import Lease as Lease
    from .store import Log as Log
    from .store import LogSession as LogSession
    from .store import MemorySession as MemorySession
    from .store import MemoryStore as MemoryStore
    from .store import MessageQueued as MessageQueued
    from .store import Posted as Posted
    from .store import PostgresStore as PostgresStore
    from .store import Recovered as Recovered
    from .store import RunEnded as RunEnded
    from .store import RunStarted as RunStarted
    from .store import Session as Session
    from .store import Snapshot as Snapshot
    from .store import SQLiteSession as SQLiteSession
    from .store import SQLiteStore as SQLiteStore
    from .store import StatusChanged as StatusChanged
    from .store import StopRequested as StopRequested
    from .store import Store as Store
    from .store import StoreClosed as StoreClosed
    from .store import StoreConflict as StoreConflict
    from .store import StoreError as StoreError
    from .store import StoreFenced as StoreFenced
    from .store import StoreHeld as StoreHeld
    from .store import StoreInDoubt as StoreInDoubt
    from .store import ToolStarted as ToolStarted
    from .store import UnknownEvent as UnknownEvent
    from .store import UsageAdded as UsageAdded
    from .store import decode_event as decode_event
    from .store import encode_event as encode_event
    from .store import recover as recover
    from .tracing import Span as Span
    from .tracing import Trace as Trace
    from .tracing import custom_span as custom_span
    from .tracing import gen_trace_id as gen_trace_id
    from .tracing import set_tracing_disabled as set_tracing_disabled
    from .tracing import trace as trace

offer()
