"""What is running in a chat, and since when: the model, tools, a question, a shell command of the user."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quiesce.agents import Agent, FunctionTool, ModelResponse, RunContextWrapper, RunHooks, ToolContext
from quiesce.inner import shortened
from quiesce.models import Item
from quiesce_chat.tools import title_of

#: The key of the model's turn among the running items. Tools are listed under their call ids.
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Running:
    """Something that is running, and since when."""

    name: str
    title: str
    since: float

    @property
    def age(self) -> float:
        """How many seconds it has been running."""
        return time.monotonic() - self.since


class RunningItems(dict[str, Running]):
    """The running items by call id. `on_change` is called when one starts or finishes."""

    def __init__(self, on_change: Callable[[], object]) -> None:
        super().__init__()
        self._on_change = on_change

    def start(self, key: str, name: str, title: str = "") -> None:
        """Add an item that starts now."""
        self[key] = Running(name, title, time.monotonic())
        self._on_change()

    def finish(self, key: str) -> None:
        """Remove an item, if it is there."""
        if self.pop(key, None) is not None:
            self._on_change()

    def summaries(self) -> list[str]:
        """Describe each item in a few words."""
        return [f"{item.name} {shortened(item.title, 40)}".strip() for item in self.values()]


class ActivityHooks(RunHooks[Any]):
    """Keeps the running items up to date during a run.

    There is no `on_tool_end`: the chat removes a tool when it sees the result, and clears the rest when the run ends.
    """

    def __init__(self, running: RunningItems, model_name: Callable[[], str]) -> None:
        self._running = running
        self._model_name = model_name

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[Item],
    ) -> None:
        self._running.start(MODEL, self._model_name(), "answering")

    async def on_llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        self._running.finish(MODEL)

    async def on_tool_start(self, context: ToolContext[Any], agent: Agent[Any], tool: FunctionTool) -> None:
        self._running.start(context.tool_call_id, tool.name, title_of(tool.name, context.tool_arguments))
