"""What runs now in a chat, and since when: the model, tools, a question, a command of the user's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quiesce._safe.text import shortened
from quiesce.agents import Agent, FunctionTool, RunContextWrapper, RunHooks, ToolContext
from quiesce.cli.chat.tools import title_of
from quiesce.models import ModelRequest, ResponseDone

MODEL = "model"  # the key of its turn among what runs


@dataclass(frozen=True, slots=True)
class Running:
    """Something that runs now, and since when."""

    name: str
    title: str
    since: float

    @property
    def age(self) -> float:
        """In seconds."""
        return time.monotonic() - self.since


class WhatRuns(dict[str, Running]):
    """By the id of the call; `changed` is called when something begins or ends."""

    def __init__(self, changed: Callable[[], object]) -> None:
        super().__init__()
        self._changed = changed

    def begins(self, key: str, name: str, title: str = "") -> None:
        """From now on."""
        self[key] = Running(name, title, time.monotonic())
        self._changed()

    def ends(self, key: str) -> None:
        """If it was there."""
        if self.pop(key, None) is not None:
            self._changed()

    def in_words(self) -> list[str]:
        """Each in a few words."""
        return [f"{item.name} {shortened(item.title, 40)}".strip() for item in self.values()]


class Watch(RunHooks[Any]):
    """Notes what a run does."""

    def __init__(self, running: WhatRuns, who_answers: Callable[[], str]) -> None:
        self._running = running
        self._who_answers = who_answers

    async def on_llm_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], request: ModelRequest
    ) -> None:
        self._running.begins(MODEL, self._who_answers(), "answering")

    async def on_llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ResponseDone
    ) -> None:
        self._running.ends(MODEL)

    async def on_tool_start(self, context: ToolContext[Any], agent: Agent[Any], tool: FunctionTool) -> None:
        self._running.begins(context.tool_call_id, tool.name, title_of(tool.name, context.tool_arguments))
