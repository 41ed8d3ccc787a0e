"""`RealtimeRunner`: starts sessions of one agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .session import RealtimeSession

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.realtime.words import RealtimeAgent, RealtimeModel, RealtimeModelConfig, RealtimeRunConfig


class RealtimeRunner:
    """Starts sessions of an agent, with the same model and settings for each.

    ```python
    runner = RealtimeRunner(agent, config={"model_settings": {"voice": "marin"}})
    async with await runner.run() as session:
        ...
    ```

    A model that you pass serves one session at a time. By default, each session has an
    `OpenAIRealtimeWebSocketModel` of its own.
    """

    def __init__(
        self,
        starting_agent: RealtimeAgent[Any],
        *,
        model: RealtimeModel | None = None,
        config: RealtimeRunConfig | None = None,
    ) -> None:
        self._starting_agent = starting_agent
        self._model = model
        self._config = config

    async def run(
        self,
        *,
        context: Any = None,
        model_config: RealtimeModelConfig | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> RealtimeSession:
        """Return a new session; open it with `async with`."""
        from quiesce.realtime.openai import OpenAIRealtimeWebSocketModel

        return RealtimeSession(
            self._model if self._model is not None else OpenAIRealtimeWebSocketModel(),
            self._starting_agent,
            context,
            model_config,
            self._config,
            grace=grace,
            scope=scope,
        )
