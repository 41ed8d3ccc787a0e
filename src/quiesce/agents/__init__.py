"""Agents that always stop: runs, guardrails, tools, transcripts and interruptible conversations.

```python
agent = Agent(name="assistant", instructions="Be brief.", model=OpenAIModel("gpt-5"), tools=[weather])
result = await Runner.run(agent, "How is the weather in Paris?")
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from quiesce._extras import require

require("msgspec", "agents", "quiesce.agents")

if TYPE_CHECKING:
    from ._agent import Agent as Agent
    from ._agent import Handoff as Handoff
    from ._agent import handoff as handoff
    from ._context import Rejected as Rejected
    from ._context import RunConfig as RunConfig
    from ._context import RunContextWrapper as RunContextWrapper
    from ._context import ToolContext as ToolContext
    from ._conversation import Conversation as Conversation
    from ._errors import AgentsException as AgentsException
    from ._errors import ConversationBusy as ConversationBusy
    from ._errors import ConversationClosed as ConversationClosed
    from ._errors import GuardrailTripwireTriggered as GuardrailTripwireTriggered
    from ._errors import InputGuardrailTripwireTriggered as InputGuardrailTripwireTriggered
    from ._errors import InvalidFinalOutput as InvalidFinalOutput
    from ._errors import InvalidToolArguments as InvalidToolArguments
    from ._errors import MaxTurnsExceeded as MaxTurnsExceeded
    from ._errors import OutputGuardrailTripwireTriggered as OutputGuardrailTripwireTriggered
    from ._errors import ToolInputGuardrailTripwireTriggered as ToolInputGuardrailTripwireTriggered
    from ._errors import ToolOutputGuardrailTripwireTriggered as ToolOutputGuardrailTripwireTriggered
    from ._errors import ToolTimeoutError as ToolTimeoutError
    from ._errors import UserError as UserError
    from ._events import AgentUpdatedStreamEvent as AgentUpdatedStreamEvent
    from ._events import RawResponseEvent as RawResponseEvent
    from ._events import RunItemStreamEvent as RunItemStreamEvent
    from ._events import StreamEvent as StreamEvent
    from ._guardrails import GuardrailFunctionOutput as GuardrailFunctionOutput
    from ._guardrails import InputGuardrail as InputGuardrail
    from ._guardrails import InputGuardrailResult as InputGuardrailResult
    from ._guardrails import OutputGuardrail as OutputGuardrail
    from ._guardrails import OutputGuardrailResult as OutputGuardrailResult
    from ._guardrails import ToolGuardrailFunctionOutput as ToolGuardrailFunctionOutput
    from ._guardrails import ToolInputGuardrail as ToolInputGuardrail
    from ._guardrails import ToolInputGuardrailData as ToolInputGuardrailData
    from ._guardrails import ToolOutputGuardrail as ToolOutputGuardrail
    from ._guardrails import ToolOutputGuardrailData as ToolOutputGuardrailData
    from ._guardrails import input_guardrail as input_guardrail
    from ._guardrails import output_guardrail as output_guardrail
    from ._guardrails import tool_input_guardrail as tool_input_guardrail
    from ._guardrails import tool_output_guardrail as tool_output_guardrail
    from ._hooks import AgentHooks as AgentHooks
    from ._hooks import RunHooks as RunHooks
    from ._log import ApprovalDecided as ApprovalDecided
    from ._log import ApprovalRequested as ApprovalRequested
    from ._log import ItemAdded as ItemAdded
    from ._log import ItemPopped as ItemPopped
    from ._log import ItemsCleared as ItemsCleared
    from ._log import Log as Log
    from ._log import MessageQueued as MessageQueued
    from ._log import RunEnded as RunEnded
    from ._log import RunStarted as RunStarted
    from ._log import StatusChanged as StatusChanged
    from ._log import Store as Store
    from ._log import StoreClosed as StoreClosed
    from ._log import StoreConflict as StoreConflict
    from ._log import StoreError as StoreError
    from ._log import ToolStarted as ToolStarted
    from ._log import UnknownEvent as UnknownEvent
    from ._log import UsageAdded as UsageAdded
    from ._mcp import MCPServerError as MCPServerError
    from ._mcp import MCPServerStdio as MCPServerStdio
    from ._mcp import MCPServerStreamableHttp as MCPServerStreamableHttp
    from ._mcp import MCPToolError as MCPToolError
    from ._memory_store import MemoryStore as MemoryStore
    from ._repair import repair as repair
    from ._result import RunErrorDetails as RunErrorDetails
    from ._result import RunResult as RunResult
    from ._result import RunState as RunState
    from ._runner import Runner as Runner
    from ._session import LogSession as LogSession
    from ._session import MemorySession as MemorySession
    from ._session import Session as Session
    from ._session import SQLiteSession as SQLiteSession
    from ._sqlite_store import SQLiteStore as SQLiteStore
    from ._stopping import Stopping as Stopping
    from ._streamed import RunResultStreaming as RunResultStreaming
    from ._tool import FunctionTool as FunctionTool
    from ._tool import function_tool as function_tool
    from ._tool_process import RemoteToolError as RemoteToolError
    from ._tool_process import ToolProcessError as ToolProcessError

_HOME = {
    "Agent": "_agent",
    "AgentHooks": "_hooks",
    "AgentUpdatedStreamEvent": "_events",
    "AgentsException": "_errors",
    "ApprovalDecided": "_log",
    "ApprovalRequested": "_log",
    "Conversation": "_conversation",
    "ConversationBusy": "_errors",
    "ConversationClosed": "_errors",
    "FunctionTool": "_tool",
    "GuardrailFunctionOutput": "_guardrails",
    "GuardrailTripwireTriggered": "_errors",
    "Handoff": "_agent",
    "InputGuardrail": "_guardrails",
    "InputGuardrailResult": "_guardrails",
    "InputGuardrailTripwireTriggered": "_errors",
    "InvalidFinalOutput": "_errors",
    "InvalidToolArguments": "_errors",
    "ItemAdded": "_log",
    "ItemPopped": "_log",
    "ItemsCleared": "_log",
    "Log": "_log",
    "LogSession": "_session",
    "MCPServerError": "_mcp",
    "MCPServerStdio": "_mcp",
    "MCPServerStreamableHttp": "_mcp",
    "MCPToolError": "_mcp",
    "MaxTurnsExceeded": "_errors",
    "MemorySession": "_session",
    "MemoryStore": "_memory_store",
    "MessageQueued": "_log",
    "OutputGuardrail": "_guardrails",
    "OutputGuardrailResult": "_guardrails",
    "OutputGuardrailTripwireTriggered": "_errors",
    "RawResponseEvent": "_events",
    "Rejected": "_context",
    "RemoteToolError": "_tool_process",
    "RunConfig": "_context",
    "RunContextWrapper": "_context",
    "RunEnded": "_log",
    "RunErrorDetails": "_result",
    "RunHooks": "_hooks",
    "RunItemStreamEvent": "_events",
    "RunResult": "_result",
    "RunResultStreaming": "_streamed",
    "RunStarted": "_log",
    "RunState": "_result",
    "Runner": "_runner",
    "SQLiteSession": "_session",
    "SQLiteStore": "_sqlite_store",
    "Session": "_session",
    "StatusChanged": "_log",
    "Stopping": "_stopping",
    "Store": "_log",
    "StoreClosed": "_log",
    "StoreConflict": "_log",
    "StoreError": "_log",
    "StreamEvent": "_events",
    "ToolContext": "_context",
    "ToolGuardrailFunctionOutput": "_guardrails",
    "ToolInputGuardrail": "_guardrails",
    "ToolInputGuardrailData": "_guardrails",
    "ToolInputGuardrailTripwireTriggered": "_errors",
    "ToolOutputGuardrail": "_guardrails",
    "ToolOutputGuardrailData": "_guardrails",
    "ToolOutputGuardrailTripwireTriggered": "_errors",
    "ToolProcessError": "_tool_process",
    "ToolStarted": "_log",
    "ToolTimeoutError": "_errors",
    "UnknownEvent": "_log",
    "UsageAdded": "_log",
    "UserError": "_errors",
    "function_tool": "_tool",
    "handoff": "_agent",
    "input_guardrail": "_guardrails",
    "output_guardrail": "_guardrails",
    "repair": "_repair",
    "tool_input_guardrail": "_guardrails",
    "tool_output_guardrail": "_guardrails",
}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
