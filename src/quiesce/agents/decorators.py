"""The decorators that declare parts of an agent; `tool` is `function_tool`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent import function_tool as function_tool
    from .agent import function_tool as tool
    from .agent import input_guardrail as input_guardrail
    from .agent import output_guardrail as output_guardrail
    from .agent import tool_input_guardrail as tool_input_guardrail
    from .agent import tool_output_guardrail as tool_output_guardrail

offer()
