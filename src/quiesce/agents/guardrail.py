"""As `agents.guardrail` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .agent import GuardrailFunctionOutput as GuardrailFunctionOutput
    from .agent import InputGuardrail as InputGuardrail
    from .agent import InputGuardrailResult as InputGuardrailResult
    from .agent import OutputGuardrail as OutputGuardrail
    from .agent import OutputGuardrailResult as OutputGuardrailResult
    from .agent import input_guardrail as input_guardrail
    from .agent import output_guardrail as output_guardrail

offer()
