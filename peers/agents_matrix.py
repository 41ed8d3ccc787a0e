"""openai-agents, stopped wherever a run awaits code of its user: `python -m peers.agents_matrix agents|dropin`.

Each cell parks a run at one of 17 points, in code of the user that needs 50 ms to clean up, stops it in one
way, and looks at the moment when the stopper has control back: tasks that are still there, clean-up that was
not done, a thread that still runs, and an outcome that is not the one of that stop. The first three stops are
the 51 cells that quiesce counts; the others are the same, harder.

It prints a table, or with `--json` the cells as one line of JSON. `quiesce.dropin.agents` is the same program
with that import.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

import quiesce

MODULES = {"agents": "agents", "dropin": "quiesce.dropin.agents"}
CLEAN_UP = 0.05  # seconds that the parked code needs
PARKED = 5.0  # seconds that it would stay
THREAD = 0.6  # seconds that a sync tool takes
LIMIT = 10.0  # seconds until a cell counts as a hang


class Parking:
    """The point at which a run waits, and what became of it."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.is_parked = asyncio.Event()
        self.cleaned = False
        self.thread_ended: bool | None = None

    async def at(self, point: str) -> None:
        """Stay here, if this is the point."""
        if point != self.point or self.is_parked.is_set():
            return
        self.is_parked.set()
        try:
            await asyncio.sleep(PARKED)
        finally:
            await asyncio.sleep(CLEAN_UP)
            self.cleaned = True

    def in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        self.thread_ended = False
        self.cleaned = True  # a thread has no clean-up: what counts is that it has ended
        loop.call_soon_threadsafe(self.is_parked.set)
        token = quiesce.current_token()
        until = time.monotonic() + THREAD
        while time.monotonic() < until and not token.cancelled:
            time.sleep(0.01)
        self.thread_ended = True


def make_model(sdk: Any, parking: Parking, *, calls: tuple[str, ...]) -> Any:
    """A model that first calls the tools `calls`, all at once, and then answers."""

    def output(turn: int) -> list[Any]:
        if turn == 0 and calls:
            return [
                ResponseFunctionToolCall(
                    id=f"fc_{name}",
                    call_id=f"call_{name}",
                    name=name,
                    arguments='{"input": "x"}' if name == "ask" else "{}",
                    type="function_call",
                )
                for name in calls
            ]
        text = ResponseOutputText(text="done", type="output_text", annotations=[])
        return [
            ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        ]

    class Model(sdk.Model):  # type: ignore[name-defined, misc, unused-ignore]
        turn = -1

        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            self.turn += 1
            await parking.at("model")
            return sdk.ModelResponse(output=output(self.turn), usage=sdk.Usage(), response_id=None)

        async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            self.turn += 1
            await parking.at("model")
            response = Response(
                id="r",
                created_at=0,
                model="made up",
                object="response",
                output=output(self.turn),
                parallel_tool_calls=True,
                tool_choice="auto",
                tools=[],
            )
            yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)

    return Model()


def make_session(parking: Parking) -> Any:
    class Session:
        session_id = "s"
        session_settings = None

        async def get_items(self, limit: int | None = None) -> list[Any]:
            await parking.at("session.get_items")
            return []

        async def add_items(self, items: list[Any]) -> None:
            # Not the user's message, which is stored before the first turn.
            if any(isinstance(item, dict) and item.get("type") == "message" for item in items):
                await parking.at("session.add_items")

        async def pop_item(self) -> None:
            return None

        async def clear_session(self) -> None:
            return None

    return Session()


def make_run(sdk: Any, parking: Parking) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a run that comes to the point of `parking`."""
    loop = asyncio.get_running_loop()
    point = parking.point

    async def instructions(context: Any, agent: Any) -> str:
        await parking.at("instructions")
        return "Be brief."

    class Hooks(sdk.RunHooks):  # type: ignore[name-defined, misc, unused-ignore]
        async def on_agent_start(self, *args: Any) -> None:
            await parking.at("on_agent_start")

        async def on_llm_start(self, *args: Any) -> None:
            await parking.at("on_llm_start")

        async def on_tool_start(self, *args: Any) -> None:
            await parking.at("on_tool_start")

        async def on_tool_end(self, *args: Any) -> None:
            await parking.at("on_tool_end")

        async def on_agent_end(self, *args: Any) -> None:
            await parking.at("on_agent_end")

    @sdk.input_guardrail  # type: ignore[untyped-decorator, unused-ignore]
    async def guard_input(context: Any, agent: Any, given: Any) -> Any:
        await parking.at("parallel input guardrail")
        return sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    @sdk.output_guardrail  # type: ignore[untyped-decorator, unused-ignore]
    async def guard_output(context: Any, agent: Any, given: Any) -> Any:
        await parking.at("output guardrail")
        return sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    @sdk.tool_input_guardrail  # type: ignore[untyped-decorator, unused-ignore]
    async def guard_tool_input(data: Any) -> Any:
        await parking.at("tool input guardrail")
        return sdk.ToolGuardrailFunctionOutput.allow()

    @sdk.tool_output_guardrail  # type: ignore[untyped-decorator, unused-ignore]
    async def guard_tool_output(data: Any) -> Any:
        await parking.at("tool output guardrail")
        return sdk.ToolGuardrailFunctionOutput.allow()

    @sdk.function_tool(tool_input_guardrails=[guard_tool_input], tool_output_guardrails=[guard_tool_output])  # type: ignore[untyped-decorator, unused-ignore]
    async def work() -> str:
        """Work."""
        for here in ("async tool", "async tool with a sibling"):
            await parking.at(here)
        return "worked"

    @sdk.function_tool  # type: ignore[untyped-decorator, unused-ignore]
    async def sibling() -> str:
        """Work beside."""
        await asyncio.sleep(PARKED)
        return "worked"

    @sdk.function_tool  # type: ignore[untyped-decorator, unused-ignore]
    def block() -> str:
        """Work in a thread."""
        parking.in_thread(loop)
        return "worked"

    calls = {
        "async tool with a sibling": ("work", "sibling"),
        "sync tool, in a thread": ("block",),
        "agent as a tool": ("ask",),
    }.get(point, ("work",) if "tool" in point else ())
    tools = [work, sibling, block]
    if point == "agent as a tool":

        @sdk.function_tool  # type: ignore[untyped-decorator, unused-ignore]
        async def inner_work() -> str:
            """Work, inside."""
            await parking.at("agent as a tool")
            return "worked"

        inner = sdk.Agent(
            name="inner", tools=[inner_work], model=make_model(sdk, parking, calls=("inner_work",))
        )
        tools = [inner.as_tool(tool_name="ask", tool_description="Ask another agent.")]
    agent = sdk.Agent(
        name="outer",
        instructions=instructions,
        model=make_model(sdk, parking, calls=calls),
        tools=tools,
        input_guardrails=[guard_input] if point == "parallel input guardrail" else [],
        output_guardrails=[guard_output] if point == "output guardrail" else [],
    )
    session = make_session(parking) if point.startswith("session") else None
    config = sdk.RunConfig(tracing_disabled=True)
    return (agent, "Go."), {"hooks": Hooks(), "session": session, "run_config": config}


POINTS = (
    "instructions",
    "session.get_items",
    "parallel input guardrail",
    "on_agent_start",
    "on_llm_start",
    "model",
    "tool input guardrail",
    "on_tool_start",
    "async tool",
    "async tool with a sibling",
    "sync tool, in a thread",
    "agent as a tool",
    "tool output guardrail",
    "on_tool_end",
    "output guardrail",
    "on_agent_end",
    "session.add_items",
)

Stop = Callable[[Any, Parking], Awaitable[str]]  # returns the outcome
NOT_THERE = "no event comes before this point"


async def outcome_of(task: asyncio.Task[Any], parking: Parking, times: int = 1) -> str:
    """Cancel `task`, `times` times, when the run is parked; say how it ended."""
    await parking.is_parked.wait()
    for number in range(times):
        if number:
            await asyncio.sleep(CLEAN_UP / 4)
        task.cancel()
    # As its caller sees it: this runs in the same turn as what awaits the task.
    await asyncio.wait({task}, timeout=LIMIT)
    if not task.done():
        return "hang"
    return "cancelled" if task.cancelled() else f"{task.exception()!r}" if task.exception() else "returned"


async def cancel_run(sdk: Any, parking: Parking, times: int = 1) -> str:
    args, options = make_run(sdk, parking)
    return await outcome_of(asyncio.create_task(sdk.Runner.run(*args, **options)), parking, times)


async def cancel_consumer(sdk: Any, parking: Parking, times: int = 1) -> str:
    args, options = make_run(sdk, parking)

    async def consume() -> None:
        async for _ in sdk.Runner.run_streamed(*args, **options).stream_events():
            pass

    return await outcome_of(asyncio.create_task(consume()), parking, times)


async def cancel_result(sdk: Any, parking: Parking) -> str:
    args, options = make_run(sdk, parking)
    result = sdk.Runner.run_streamed(*args, **options)

    async def cancel() -> None:
        await parking.is_parked.wait()
        result.cancel()

    canceller = asyncio.create_task(cancel())
    async for _ in result.stream_events():
        pass
    await canceller
    return "cancelled"


async def time_out(sdk: Any, parking: Parking) -> str:
    args, options = make_run(sdk, parking)
    limit = asyncio.timeout(None)

    async def trip() -> None:
        await parking.is_parked.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    tripper = asyncio.create_task(trip())
    try:
        async with limit:
            await sdk.Runner.run(*args, **options)
    except TimeoutError:
        return "cancelled"
    finally:
        await tripper
    return "returned"


async def break_off(sdk: Any, parking: Parking) -> str:
    """Out of a loop with the run parked further on; then `close()`, or what the SDK has for it."""
    args, options = make_run(sdk, parking)
    result = sdk.Runner.run_streamed(*args, **options)
    parked = asyncio.create_task(parking.is_parked.wait())
    async for _ in result.stream_events():
        await parked
        break
    if hasattr(result, "close"):
        await result.close()
    else:
        result.cancel()
    return "cancelled"


async def close_elsewhere(sdk: Any, parking: Parking) -> str:
    """A task that reads it is left in peace, and another one stops it."""
    args, options = make_run(sdk, parking)
    result = sdk.Runner.run_streamed(*args, **options)

    async def consume() -> None:
        async for _ in result.stream_events():
            pass

    consumer = asyncio.create_task(consume())
    await parking.is_parked.wait()
    if hasattr(result, "close"):
        await result.close()
    else:
        result.cancel()
    await asyncio.wait({consumer}, timeout=LIMIT)
    return "cancelled" if consumer.done() and not consumer.cancelled() else "the reader was cancelled"


STOPS: dict[str, Stop] = {
    "run: cancel": cancel_run,
    "stream: cancel the reader": cancel_consumer,
    "stream: result.cancel(), read on": cancel_result,
    "run: cancel twice": lambda sdk, parking: cancel_run(sdk, parking, 2),
    "run: timeout": time_out,
    "stream: cancel the reader twice": lambda sdk, parking: cancel_consumer(sdk, parking, 2),
    "stream: break": break_off,
    "stream: close from another task": close_elsewhere,
}
COUNTED = tuple(STOPS)[:3]


async def cell(sdk: Any, point: str, stop: str) -> dict[str, Any]:
    """Park, stop, look."""
    parking = Parking(point)
    before = asyncio.all_tasks()
    try:
        async with asyncio.timeout(LIMIT):
            outcome = await STOPS[stop](sdk, parking)
    except TimeoutError:
        outcome = "hang"
    except Exception as error:
        outcome = repr(error)
    left = sorted(name_of(task) for task in asyncio.all_tasks() - before)
    faults = [] if outcome == "cancelled" else [outcome]
    if not parking.is_parked.is_set():
        faults.append("did not come to the point")
    elif not parking.cleaned:
        faults.append("clean-up not done")
    if parking.thread_ended is False:
        faults.append("thread still runs")
        while not parking.thread_ended:  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.02)
    faults += [f"task {name} left" for name in left]
    return {"point": point, "stop": stop, "faults": faults}


def name_of(task: asyncio.Task[Any]) -> str:
    coro: Any = task.get_coro()
    return str(getattr(coro, "__qualname__", coro)).rpartition(".")[2]


def measure(which: str, stops: tuple[str, ...]) -> list[dict[str, Any]]:
    sdk = importlib.import_module(MODULES[which])
    sdk.set_tracing_disabled(True)
    return [asyncio.run(cell(sdk, point, stop)) for stop in stops for point in POINTS]


def table(cells: list[dict[str, Any]]) -> str:
    stops = list(dict.fromkeys(cell["stop"] for cell in cells))
    found = {(cell["point"], cell["stop"]): cell["faults"] for cell in cells}
    lines = ["| point | " + " | ".join(stops) + " |", "|---" * (len(stops) + 1) + "|"]
    for point in POINTS:
        row = [", ".join(found[point, stop]) or "ok" for stop in stops]
        lines.append(f"| {point} | " + " | ".join(row) + " |")
    counts = [sum(bool(found[point, stop]) for point in POINTS) for stop in stops]
    lines.append("| **leaks** | " + " | ".join(f"{count} of {len(POINTS)}" for count in counts) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Stop runs of openai-agents at every point.")
    parser.add_argument("which", nargs="?", choices=MODULES, default="agents")
    parser.add_argument("--counted", action="store_true", help="only the 51 cells")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cells = measure(options.which, COUNTED if options.counted else tuple(STOPS))
    print(json.dumps(cells) if options.json else table(cells))
    if not options.json:
        leaks = sum(bool(one["faults"]) for one in cells if one["stop"] in COUNTED)
        print(f"\n{MODULES[options.which]}: {leaks} of {len(POINTS) * len(COUNTED)} cells leak")
    return 0


if __name__ == "__main__":
    sys.exit(main())
