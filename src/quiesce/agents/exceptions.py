"""As `agents.exceptions` of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from quiesce.models import ModelBehaviorError as ModelBehaviorError

    from .agent import AgentsException as AgentsException
    from .agent import InputGuardrailTripwireTriggered as InputGuardrailTripwireTriggered
    from .agent import MaxTurnsExceeded as MaxTurnsExceeded
    from .agent import OutputGuardrailTripwireTriggered as OutputGuardrailTripwireTriggered
    from .agent import RunErrorDetails as RunErrorDetails
    from .agent import ToolInputGuardrailTripwireTriggered as ToolInputGuardrailTripwireTriggered
    from .agent import ToolOutputGuardrailTripwireTriggered as ToolOutputGuardrailTripwireTriggered
    from .agent import ToolTimeoutError as ToolTimeoutError
    from .agent import UserError as UserError

offer()
