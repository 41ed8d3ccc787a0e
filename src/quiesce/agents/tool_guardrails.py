"""As `agents.tool_guardrails` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent import ToolGuardrailFunctionOutput as ToolGuardrailFunctionOutput
    from .agent import ToolInputGuardrail as ToolInputGuardrail
    from .agent import ToolInputGuardrailData as ToolInputGuardrailData
    from .agent import ToolOutputGuardrail as ToolOutputGuardrail
    from .agent import ToolOutputGuardrailData as ToolOutputGuardrailData
    from .agent import tool_input_guardrail as tool_input_guardrail
    from .agent import tool_output_guardrail as tool_output_guardrail

offer()
