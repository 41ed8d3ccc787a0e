"""An agent in a session: its instructions, its tools and its handoffs, as the model gets them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.agents import UserError
from quiesce.agents.inner import is_enabled
from quiesce.realtime.words import RealtimeHandoff, as_handoff

if TYPE_CHECKING:
    from quiesce.agents import FunctionTool, RunContextWrapper
    from quiesce.agents.inner import ToolServer
    from quiesce.realtime.words import RealtimeAgent, RealtimeSessionModelSettings


@dataclass(frozen=True, slots=True)
class ActiveAgent:
    """An agent as the model knows it from some moment on; it answers the calls that the model makes then."""

    agent: RealtimeAgent[Any]
    tools: dict[str, FunctionTool]
    handoffs: dict[str, RealtimeHandoff]
    settings: RealtimeSessionModelSettings
    servers: dict[FunctionTool, ToolServer]  # the MCP servers of tools that are not the agent's own

    def identity(self, tool: FunctionTool) -> object:
        """Return what identifies a tool across activations: an MCP server lists a new object each time."""
        server = self.servers.get(tool)
        return tool if server is None else (server, tool.name)


class AgentActivation:
    """Makes an `ActiveAgent` of an agent."""

    def __init__(
        self,
        context: RunContextWrapper[Any],
        base: RealtimeSessionModelSettings,
        servers: AsyncExitStack,
        is_closing: Callable[[], bool],
    ) -> None:
        self._context = context
        self._base = base
        self._servers = servers
        self._is_closing = is_closing
        self._in_use: list[ToolServer] = []

    async def activate(
        self, agent: RealtimeAgent[Any], overrides: RealtimeSessionModelSettings | None = None
    ) -> ActiveAgent:
        """Determine what the model gets for this agent now; `overrides` win over the agent's own settings."""
        instructions = await agent.get_system_prompt(self._context)
        tools = list(agent.tools)
        servers: dict[FunctionTool, ToolServer] = {}
        for server in agent.mcp_servers:
            if server not in self._in_use:
                await self._use(server)
            listed = await server.list_tools()
            servers.update(dict.fromkeys(listed, server))
            tools += listed
        settings: RealtimeSessionModelSettings = {**self._base, "instructions": instructions or ""}
        settings["tools"] = tools
        settings["handoffs"] = [as_handoff(target) for target in agent.handoffs]
        if agent.prompt is not None:
            settings["prompt"] = agent.prompt
        settings.update(overrides or {})
        enabled = [tool for tool in settings["tools"] if await self._is_enabled(tool, agent)]
        handoffs = [handoff for handoff in settings["handoffs"] if await self._is_enabled(handoff, agent)]
        settings["tools"], settings["handoffs"] = enabled, handoffs
        names = [tool.name for tool in enabled] + [handoff.tool_name for handoff in handoffs]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(
                f"agent {agent.name!r} has several tools named {', '.join(map(repr, duplicates))}"
            )
        return ActiveAgent(
            agent,
            {tool.name: tool for tool in enabled},
            {handoff.tool_name: handoff for handoff in handoffs},
            settings,
            servers,
        )

    async def _use(self, server: ToolServer) -> None:
        """Connect a server, unless the session is closing."""
        self._check_open()
        await self._servers.enter_async_context(server.use())
        self._in_use.append(server)
        if self._is_closing():
            # The session may have closed its servers before this one was among them: nothing else would close
            # it.
            await self._servers.aclose()
            self._check_open()

    def _check_open(self) -> None:
        if self._is_closing():
            raise UserError("the session is closed: no MCP server is connected any more")

    async def _is_enabled(self, thing: Any, agent: RealtimeAgent[Any]) -> bool:
        return thing.is_enabled is True or await is_enabled(thing, self._context, agent)
