"""What users declare: agents, tools and their schemas, guardrails, hooks, and the context of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent import Agent, ToolServer, check_tools, function_name
    from .agent_tool import AgentToolStreamEvent
    from .argument_checks import (
        check_each,
        check_function,
        check_max_turns,
        check_run_config,
        check_run_hooks,
        check_session,
        has,
        refuse,
    )
    from .context import C, Rejected, RunConfig, RunContextWrapper, ToolContext, TruncatedOutput
    from .errors import (
        AgentsException,
        ConversationBusy,
        ConversationClosed,
        GuardrailTripwireTriggered,
        InputGuardrailTripwireTriggered,
        InvalidFinalOutput,
        InvalidToolArguments,
        MaxTurnsExceeded,
        OutputGuardrailTripwireTriggered,
        RunErrorDetails,
        ToolInputGuardrailTripwireTriggered,
        ToolOutputGuardrailTripwireTriggered,
        ToolTimeoutError,
        UserError,
    )
    from .guardrails import (
        GuardrailFunctionOutput,
        InputGuardrail,
        InputGuardrailResult,
        OutputGuardrail,
        OutputGuardrailResult,
        ToolGuardrailFunctionOutput,
        ToolInputGuardrail,
        ToolInputGuardrailData,
        ToolOutputGuardrail,
        ToolOutputGuardrailData,
        call_function,
        input_guardrail,
        is_async,
        output_guardrail,
        tool_input_guardrail,
        tool_output_guardrail,
    )
    from .handoffs import Handoff, HandoffInputData, as_handoff, handoff
    from .hooks import AgentHooks, Callbacks, RunHooks
    from .invoke import TimedOutCall, failure_text, invoke_in_time, is_enabled, move_on_after, needs_approval
    from .model_input import CallModelData, ModelInputData, filtered
    from .model_response import ItemHelpers, ModelResponse
    from .output import OutputType
    from .tool import FunctionTool, NeedsApproval, function_tool, output_text
    from .tool_process import RemoteToolError, ToolProcessError, how_it_ended
    from .tool_use import (
        FunctionToolResult,
        StopAtTools,
        ToolsToFinalOutputFunction,
        ToolsToFinalOutputResult,
        final_of,
    )

offer()
