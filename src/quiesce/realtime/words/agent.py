"""An agent that speaks: a name, instructions, and what it may use. The model belongs to the session."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from quiesce.agents import FunctionTool
from quiesce.agents.inner import C, call_function

from .config import check_guardrails

if TYPE_CHECKING:
    from quiesce.agents import OutputGuardrail, RunContextWrapper
    from quiesce.agents.inner import ToolServer

    from .handoff import RealtimeHandoff

Instructions: TypeAlias = (
    "str | Callable[[RunContextWrapper[Any], RealtimeAgent[Any]], Awaitable[str] | str] | None"
)


@dataclass
class RealtimeAgent(Generic[C]):
    """What speaks in a `RealtimeSession`: instructions, with tools, guardrails and other agents to hand over to.

    ```python
    agent = RealtimeAgent(name="concierge", instructions="Be brief.", tools=[weather])
    ```

    - `instructions`: text, or a function of `(context, agent)`, async or sync.
    - `prompt`: a stored prompt of the provider, such as `{"id": "pmpt_..."}`.
    - `handoffs`: agents that it may hand over to, or `realtime_handoff(agent, ...)`.
    - `output_guardrails`: look at what it says while it says it.
    - `mcp_servers`: servers whose tools it may use; the session connects to those that are not connected, and closes them again.
    """

    name: str
    instructions: Instructions = None
    _: dataclasses.KW_ONLY
    prompt: Mapping[str, Any] | None = None
    tools: Sequence[FunctionTool] = ()
    mcp_servers: Sequence[ToolServer] = ()
    handoffs: Sequence[RealtimeAgent[Any] | RealtimeHandoff] = ()
    handoff_description: str | None = None
    output_guardrails: Sequence[OutputGuardrail] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"the name of an agent must be a str, not {self.name!r}")
        if not (
            self.instructions is None or isinstance(self.instructions, str) or callable(self.instructions)
        ):
            raise TypeError(
                f"the instructions of agent {self.name!r} must be a str or a function, "
                f"not {type(self.instructions).__name__}"
            )

        for tool in self.tools if isinstance(self.tools, Sequence) else [self.tools]:
            if not isinstance(tool, FunctionTool):
                raise TypeError(
                    f"the tools of agent {self.name!r} are functions decorated with @function_tool, in a list; {tool!r} is none"
                )
        check_guardrails(f"agent {self.name!r}", self.output_guardrails)

    def clone(self, **changes: Any) -> RealtimeAgent[C]:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    async def get_system_prompt(self, context: RunContextWrapper[Any]) -> str | None:
        """The instructions for this session."""
        if self.instructions is None or isinstance(self.instructions, str):
            return self.instructions
        text: Any = await call_function(self.instructions, context, self)
        if not isinstance(text, str):
            raise TypeError(
                f"the instructions of agent {self.name!r} returned {type(text).__name__}, and must return a str"
            )
        return text
