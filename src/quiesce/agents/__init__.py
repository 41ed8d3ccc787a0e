"""Agents that always stop: runs, guardrails, tools, transcripts and interruptible conversations."""

from __future__ import annotations

from .._extras import require

require("msgspec", "agents", "quiesce.agents")

from ._agent import Agent, Handoff, handoff  # noqa: E402
from ._runner import Runner  # noqa: E402
from ._tool import FunctionTool, function_tool  # noqa: E402
from ._context import RunConfig, RunContextWrapper, ToolContext  # noqa: E402
from ._guardrails import *  # noqa: E402,F403
from ._errors import *  # noqa: E402,F403
from ._hooks import AgentHooks, RunHooks  # noqa: E402
