"""What a run costs, beside openai-agents and pydantic-ai, with the same scripted answers, in one process.

    make bench                               # with the others
    python bench/agents/run.py text tool     # some parts: text, guardrail, tool, stream, conversations

It makes an environment of its own for the three (build/bench-agents, the versions in versions.txt) and runs
itself there. CPU time, best of many short interleaved rounds; no tracing, no network. docs/performance.md
holds a result.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = ROOT / "build" / "bench-agents"
IS_THERE = "QUIESCE_BENCH_AGENTS"
PIECES = [f"word{number} " for number in range(200)]
Batch = Callable[[int], Awaitable[object]]


def go_there() -> int:
    """Make the environment, and run this file in it."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from throwaway import NotInstalled, build_wheel, make_environment

    try:
        wheel = build_wheel(ROOT / "build" / "bench-wheel")
        make_environment(ENVIRONMENT, Path(__file__).with_name("versions.txt"), wheel)
    except NotInstalled as error:
        print(f"the peers cannot be had here, so nothing is compared: {error}", file=sys.stderr)
        return 1
    python = str(ENVIRONMENT / "bin" / "python")
    return os.spawnve(os.P_WAIT, python, [python, *sys.argv], {**os.environ, IS_THERE: "1"})


# The same three runs, in each library's words


class Quiesce:
    """This library."""

    name = "quiesce"

    def __init__(self) -> None:
        from quiesce.agents import Agent, GuardrailFunctionOutput, Runner, function_tool, input_guardrail
        from quiesce.testing import Answer, ScriptedModel, call

        @function_tool
        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @input_guardrail
        async def passes(context: Any, agent: Any, said: Any) -> Any:
            return GuardrailFunctionOutput(None, False)

        def agent(kind: str) -> Any:
            turns: list[Any] = ["Hello!"]
            if kind == "tool":
                turns = [call("add", a=1, b=2), "It is 3."]
            elif kind == "stream":
                turns = [Answer(PIECES)]
            return Agent(
                name="bench",
                instructions="Be brief.",
                model=ScriptedModel(turns),
                tools=[add] if kind == "tool" else [],
                input_guardrails=[passes] if kind == "guardrail" else [],
            )

        self.agent = agent
        self.run = lambda agent: Runner.run(agent, "Hi")

        async def stream(agent: Any) -> int:
            count = 0
            async with Runner.run_streamed(agent, "Hi") as result:
                async for event in result.stream_events():
                    count += event.type == "raw_response_event"
            return count

        self.stream = stream


class OpenAIAgents:
    """openai-agents, with its own scripted model and without tracing."""

    name = "openai-agents"

    def __init__(self) -> None:
        sdk: Any = importlib.import_module("agents")
        testing: Any = importlib.import_module("agents.testing")
        responses: Any = importlib.import_module("openai.types.responses")
        function_tool: Callable[..., Any] = sdk.function_tool
        input_guardrail: Callable[..., Any] = sdk.input_guardrail
        assistant_message, function_call = testing.assistant_message, testing.function_call
        sdk.set_tracing_disabled(True)

        @function_tool
        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @input_guardrail
        async def passes(context: Any, agent: Any, said: Any) -> Any:
            return sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

        def deltas() -> list[Any]:
            return [
                responses.ResponseTextDeltaEvent(
                    type="response.output_text.delta",
                    delta=piece,
                    content_index=0,
                    item_id="m",
                    logprobs=[],
                    output_index=0,
                    sequence_number=number,
                )
                for number, piece in enumerate(PIECES)
            ]

        def agent(kind: str) -> Any:
            steps: list[Any] = [[assistant_message("Hello!")]]
            if kind == "tool":
                steps = [
                    [function_call("add", {"a": 1, "b": 2}, call_id="c1")],
                    [assistant_message("It is 3.")],
                ]
            elif kind == "stream":
                steps = [
                    testing.ModelStep(output=[assistant_message("".join(PIECES))], stream_events=streamed)
                ]
            return sdk.Agent(
                name="bench",
                instructions="Be brief.",
                model=testing.ScriptedModel(steps),
                tools=[add] if kind == "tool" else [],
                input_guardrails=[passes] if kind == "guardrail" else [],
            )

        async def streamed(call: Any) -> AsyncIterator[Any]:
            for event in deltas():
                yield event
            response = responses.Response.model_construct(
                id="r", output=[assistant_message("".join(PIECES))], usage=None, object="response"
            )
            yield responses.ResponseCompletedEvent.model_construct(
                type="response.completed", response=response, sequence_number=len(PIECES)
            )

        self.agent = agent
        self.run = lambda agent: sdk.Runner.run(agent, "Hi")

        async def stream(agent: Any) -> int:
            count = 0
            async for event in sdk.Runner.run_streamed(agent, "Hi").stream_events():
                count += event.type == "raw_response_event"
            return count

        self.stream = stream


class PydanticAI:
    """pydantic-ai, with its own function model."""

    name = "pydantic-ai"

    def __init__(self) -> None:
        sdk: Any = importlib.import_module("pydantic_ai")
        messages_of: Any = importlib.import_module("pydantic_ai.messages")
        models: Any = importlib.import_module("pydantic_ai.models.function")
        response, text = messages_of.ModelResponse, messages_of.TextPart

        def answer(messages: Any, info: Any) -> Any:
            return response(parts=[text("Hello!")])

        def add_first(messages: Any, info: Any) -> Any:
            if len(messages) == 1:
                return response(parts=[messages_of.ToolCallPart("add", {"a": 1, "b": 2})])
            return response(parts=[text("It is 3.")])

        async def pieces(messages: Any, info: Any) -> AsyncIterator[str]:
            for piece in PIECES:
                yield piece

        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        def agent(kind: str) -> Any:
            if kind == "tool":
                return sdk.Agent(models.FunctionModel(add_first), instructions="Be brief.", tools=[add])
            model = (
                models.FunctionModel(stream_function=pieces)
                if kind == "stream"
                else models.FunctionModel(answer)
            )
            return sdk.Agent(model, instructions="Be brief.")

        self.agent = agent
        self.run = lambda agent: agent.run("Hi")

        async def stream(agent: Any) -> int:
            count = 0
            async with agent.run_stream("Hi") as result:
                async for _ in result.stream_text(delta=True, debounce_by=None):
                    count += 1
            return count

        self.stream = stream


def measure(peers: list[Any], kind: str, rounds: int = 12, runs: int = 20) -> dict[str, float]:
    """CPU seconds of one run for each peer, best of many interleaved rounds; agents are made beforehand."""

    async def once(peer: Any) -> float:
        agents = [peer.agent(kind) for _ in range(runs + 1)]
        act = peer.stream if kind == "stream" else peer.run
        await act(agents.pop())
        start = time.process_time()
        for agent in agents:
            await act(agent)
        return (time.process_time() - start) / runs

    best = {peer.name: float("inf") for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            gc.collect()
            best[peer.name] = min(best[peer.name], asyncio.run(once(peer)))
    return best


def compare(parts: list[str], peers: list[Any]) -> None:
    """The table of runs."""
    titles = {
        "text": "one text turn",
        "guardrail": "with an input guardrail",
        "tool": "a tool, then text",
        "stream": f"streaming, an event ({len(PIECES)} in a run)",
    }
    print("\n### A run\n")
    print(
        f"| | {peers[0].name} (µs) | " + " | ".join(f"{peer.name} (µs, ratio)" for peer in peers[1:]) + " |"
    )
    print("|---|" + "---|" * len(peers))
    for part in parts:
        there = [peer for peer in peers if not (part == "guardrail" and peer.name == "pydantic-ai")]
        took = measure(there, part)
        scale = 1e6 / (len(PIECES) if part == "stream" else 1)
        cells = [f"{took[peers[0].name] * scale:.1f}"]
        for peer in peers[1:]:
            if peer.name not in took:
                cells.append("has none")
                continue
            cells.append(f"{took[peer.name] * scale:.1f}, {took[peer.name] / took[peers[0].name]:.1f}×")
        print(f"| {titles[part]} | " + " | ".join(cells) + " |", flush=True)


# Ten thousand conversations


def idle_memory(count: int) -> float:
    """Bytes of one idle conversation beyond its history."""
    from quiesce.agents import Agent, Conversation
    from quiesce.testing import ScriptedModel

    agent: Agent[None] = Agent(name="bench", model=ScriptedModel([]))
    held = [Conversation(agent) for _ in range(10)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    held = [Conversation(agent) for _ in range(count)]
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    for conversation in held:
        conversation.close_sync()
    return (after - before) / count


async def cancel_bare_tasks(count: int) -> float:
    """CPU seconds to cancel and drain bare tasks that wait."""
    tasks = [asyncio.create_task(asyncio.sleep(3600)) for _ in range(count)]
    await asyncio.sleep(0)
    start = time.process_time()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return time.process_time() - start


async def interrupt_conversations(count: int) -> float:
    """CPU seconds to interrupt and settle running conversations, each in a model call."""
    from quiesce.agents import Agent, Conversation
    from quiesce.testing import ScriptedModel

    async def silent(request: Any) -> str:
        await asyncio.sleep(3600)
        return "never"

    conversations = [Conversation(Agent(name="bench", model=ScriptedModel([silent]))) for _ in range(count)]
    for conversation in conversations:
        conversation.send_message("Hi")
    runs = [asyncio.create_task(conversation.arun()) for conversation in conversations]
    for _ in range(10):
        await asyncio.sleep(0)
    start = time.process_time()
    stoppings = [conversation.interrupt() for conversation in conversations]
    for stopping in stoppings:
        assert (await stopping).clean
    await asyncio.gather(*runs)
    took = time.process_time() - start
    assert all(conversation.status == "paused" for conversation in conversations)
    for conversation in conversations:
        await conversation.close()
    return took


def without_collector(timed: Callable[[int], Coroutine[Any, Any, float]], count: int) -> float:
    """As all benchmarks here: the collector would look at ten thousand living conversations again and again."""
    gc.collect()
    gc.disable()
    try:
        return asyncio.run(timed(count))
    finally:
        gc.enable()


def conversations(count: int = 10_000, rounds: int = 5) -> None:
    """Memory of idle ones, and what it costs to interrupt running ones."""
    bare = ours = float("inf")
    for _ in range(rounds):
        bare = min(bare, without_collector(cancel_bare_tasks, count))
        ours = min(ours, without_collector(interrupt_conversations, count))
    print(f"\n### {count:,} conversations\n")
    print("| | |\n|---|---|")
    print(f"| memory of an idle one, beyond its history | {idle_memory(count) / 1024:.2f} KiB |")
    print(f"| cancel and drain {count:,} bare tasks | {bare / count * 1e6:.1f} µs each |")
    print(f"| interrupt and settle {count:,} running ones | {ours / count * 1e6:.1f} µs each |")
    print(f"| ratio | {ours / bare:.1f} |", flush=True)


def main() -> int:
    parts = sys.argv[1:] or ["text", "guardrail", "tool", "stream", "conversations"]
    unknown = set(parts) - {"text", "guardrail", "tool", "stream", "conversations"}
    if unknown:
        print(f"no such part: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if IS_THERE not in os.environ:
        return go_there()
    versions = []
    for package in ("quiesce", "openai-agents", "pydantic-ai-slim"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} (none)")
    print(f"CPython {platform.python_version()}, {', '.join(versions)}")
    runs = [part for part in parts if part != "conversations"]
    if runs:
        compare(runs, [Quiesce(), OpenAIAgents(), PydanticAI()])
    if "conversations" in parts:
        conversations()
    return 0


if __name__ == "__main__":
    sys.exit(main())
