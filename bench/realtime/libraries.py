"""Two libraries with the same words: one model for both, which says what it is told to, and one way to count
what a session makes of it.
"""

from __future__ import annotations

import asyncio
import importlib
from importlib.metadata import version
from typing import Any

FRAME_IN = bytes(4800)  # 100 ms at 24 kHz, as a model sends it
FRAME_OUT = bytes(960)  # 20 ms, as a microphone gives it


class Library:
    """One of them."""

    def __init__(self, name: str, sdk: str, realtime: str) -> None:
        self.name = name
        self.sdk: Any = importlib.import_module(sdk)
        self.realtime: Any = importlib.import_module(realtime)
        self.version = version(name)
        self.model_type = model_type(self.realtime)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def agent(self, **given: Any) -> Any:
        return self.realtime.RealtimeAgent(name="bench", instructions="Be brief.", **given)

    async def session(self, model: Any, agent: Any = None, url: str | None = None, **config: Any) -> Any:
        """A session, not opened yet; over a WebSocket if there is a URL, else with that model."""
        runner = self.realtime.RealtimeRunner(
            agent if agent is not None else self.agent(),
            model=model,
            config={"tracing_disabled": True, **config},
        )
        if url is None:
            return await runner.run()
        # The script says when somebody answers, and not the silence.
        settings = {"turn_detection": None, "tracing": None}
        return await runner.run(
            model_config={"url": url, "api_key": "none", "initial_model_settings": settings}
        )

    def tool(self, function: Any, **given: Any) -> Any:
        return self.sdk.function_tool(**given)(function)

    def guardrail(self, function: Any = None) -> Any:
        async def passes(context: Any, agent: Any, said: Any) -> Any:
            return self.sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

        return self.sdk.output_guardrail(function or passes)

    # What a model says

    def audio(self) -> Any:
        return self.realtime.RealtimeModelAudioEvent(
            data=FRAME_IN, response_id="resp_1", item_id="item_1", content_index=0
        )

    def delta(self, text: str = "word ") -> Any:
        return self.realtime.RealtimeModelTranscriptDeltaEvent(
            item_id="item_1", delta=text, response_id="resp_1"
        )

    def call(self, name: str, number: int) -> Any:
        return self.realtime.RealtimeModelToolCallEvent(name=name, call_id=f"call_{number}", arguments="{}")


def libraries() -> list[Library]:
    both = [
        Library("quiesce", "quiesce.agents", "quiesce.realtime"),
        Library("openai-agents", "agents", "agents.realtime"),
    ]
    both[1].sdk.set_tracing_disabled(True)
    return both


def model_type(realtime: Any) -> Any:
    """The scripted model, as a model of that library."""

    class Scripted(realtime.RealtimeModel):  # type: ignore[misc]
        def __init__(self) -> None:
            self.listeners: list[Any] = []
            self.sent = 0
            self.outputs = 0  # of tools
            self.closed = False

        def add_listener(self, listener: Any) -> None:
            self.listeners.append(listener)

        def remove_listener(self, listener: Any) -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        async def connect(self, options: Any) -> None:
            pass

        async def send_event(self, event: Any) -> None:
            self.sent += 1
            self.outputs += type(event).__name__ == "RealtimeModelSendToolOutput"

        async def say(self, event: Any, count: int, in_a_turn: int) -> None:
            """The same event again and again; so many of them between two turns of the event loop."""
            for number in range(1, count + 1):
                for listener in self.listeners:
                    await listener.on_event(event)
                if number % in_a_turn == 0:
                    await asyncio.sleep(0)

        async def close(self) -> None:
            self.closed = True

    return Scripted


async def read(session: Any, kind: str, count: int) -> None:
    """Until so many events of a kind have come."""
    async for event in session:
        if event.type == kind:
            count -= 1
            if not count:
                return


async def read_raw(session: Any, kind: str, count: int) -> None:
    """Until so many events of the model have come, of a kind."""
    async for event in session:
        if event.type == "raw_model_event" and event.data.type == kind:
            count -= 1
            if not count:
                return
