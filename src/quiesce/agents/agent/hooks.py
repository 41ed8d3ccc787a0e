"""Hooks: functions of yours that are called during a run (`RunHooks`), or for one agent in it (`AgentHooks`).

The run waits for each: a slow hook slows the run, and one that raises ends it. `on_cancel` and `on_settled`
are called when everything has been drained, and further cancels of the run do not interrupt them. What they
raise becomes a note on what the run raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from .context import C

if TYPE_CHECKING:
    from quiesce import Reason, StopReport
    from quiesce.models import Item

    from .agent import Agent
    from .context import RunContextWrapper, ToolContext
    from .model_response import ModelResponse
    from .tool import FunctionTool


class RunHooks(Generic[C]):
    """Hooks for a whole run: derive from it, and override what you are interested in.

    ```python
    class Meter(RunHooks):
        async def on_settled(self, context, agent, report):
            print(agent.name, context.usage.total_tokens, report)
    ```
    """

    async def on_agent_start(self, context: RunContextWrapper[C], agent: Agent[C]) -> None:
        """An agent begins: at the start, and after each handoff."""

    async def on_agent_end(self, context: RunContextWrapper[C], agent: Agent[C], output: Any) -> None:
        """An agent has given the final output."""

    async def on_llm_start(
        self,
        context: RunContextWrapper[C],
        agent: Agent[C],
        system_prompt: str | None,
        input_items: list[Item],
    ) -> None:
        """The model is about to be asked: with these instructions, and with these items."""

    async def on_llm_end(
        self, context: RunContextWrapper[C], agent: Agent[C], response: ModelResponse
    ) -> None:
        """The model has answered; no guardrail has looked at the answer yet."""

    async def on_tool_start(self, context: ToolContext[C], agent: Agent[C], tool: FunctionTool) -> None:
        """A tool is about to be called."""

    async def on_tool_end(
        self, context: ToolContext[C], agent: Agent[C], tool: FunctionTool, result: str
    ) -> None:
        """A tool has returned, or has failed, which its result then says."""

    async def on_handoff(
        self, context: RunContextWrapper[C], from_agent: Agent[C], to_agent: Agent[C]
    ) -> None:
        """One agent hands over to another."""

    async def on_cancel(self, context: RunContextWrapper[C], agent: Agent[C], reason: Reason) -> None:
        """The run was stopped before its end, and everything has been drained."""

    async def on_settled(self, context: RunContextWrapper[C], agent: Agent[C], report: StopReport) -> None:
        """The run has ended: `report` says what became of its tasks, and what is left over."""


class AgentHooks(Generic[C]):
    """Hooks for one agent."""

    async def on_start(self, context: RunContextWrapper[C], agent: Agent[C]) -> None:
        """This agent begins."""

    async def on_end(self, context: RunContextWrapper[C], agent: Agent[C], output: Any) -> None:
        """This agent has given the final output."""

    async def on_llm_start(
        self,
        context: RunContextWrapper[C],
        agent: Agent[C],
        system_prompt: str | None,
        input_items: list[Item],
    ) -> None:
        """Its model is about to be asked."""

    async def on_llm_end(
        self, context: RunContextWrapper[C], agent: Agent[C], response: ModelResponse
    ) -> None:
        """Its model has answered."""

    async def on_tool_start(self, context: ToolContext[C], agent: Agent[C], tool: FunctionTool) -> None:
        """One of its tools is about to be called."""

    async def on_tool_end(
        self, context: ToolContext[C], agent: Agent[C], tool: FunctionTool, result: str
    ) -> None:
        """One of its tools has returned."""

    async def on_handoff(self, context: RunContextWrapper[C], agent: Agent[C], source: Agent[C]) -> None:
        """Another agent, `source`, hands over to this one."""


class Callbacks:
    """The hooks of a run and of the agent whose turn it is, called one after the other, if there are any."""

    __slots__ = ("run",)

    def __init__(self, run: RunHooks[Any] | None) -> None:
        self.run = run

    async def agent_start(self, context: RunContextWrapper[Any], agent: Agent[Any]) -> None:
        if self.run is not None:
            await self.run.on_agent_start(context, agent)
        if agent.hooks is not None:
            await agent.hooks.on_start(context, agent)

    async def agent_end(self, context: RunContextWrapper[Any], agent: Agent[Any], output: Any) -> None:
        if self.run is not None:
            await self.run.on_agent_end(context, agent, output)
        if agent.hooks is not None:
            await agent.hooks.on_end(context, agent, output)

    async def llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[Item],
    ) -> None:
        for hooks in (self.run, agent.hooks):
            if hooks is not None:
                await hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        for hooks in (self.run, agent.hooks):
            if hooks is not None:
                await hooks.on_llm_end(context, agent, response)

    async def tool_start(self, context: ToolContext[Any], agent: Agent[Any], tool: FunctionTool) -> None:
        for hooks in (self.run, agent.hooks):
            if hooks is not None:
                await hooks.on_tool_start(context, agent, tool)

    async def tool_end(
        self, context: ToolContext[Any], agent: Agent[Any], tool: FunctionTool, result: str
    ) -> None:
        for hooks in (self.run, agent.hooks):
            if hooks is not None:
                await hooks.on_tool_end(context, agent, tool, result)

    async def handoff(self, context: RunContextWrapper[Any], source: Agent[Any], target: Agent[Any]) -> None:
        if self.run is not None:
            await self.run.on_handoff(context, source, target)
        if target.hooks is not None:
            await target.hooks.on_handoff(context, target, source)
