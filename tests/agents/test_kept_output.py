"""What is kept of a tool's output: little of much, and what was left out is said; also if the tool is stopped."""

from __future__ import annotations

import sys
import threading
from typing import Any

import anyio
import pytest

from quiesce.agents import Runner, ToolContext, function_tool
from quiesce.agents.agent.context import KEPT, TruncatedOutput
from quiesce.testing import call
from tests.agents.conversations import running, talk
from tests.agents.scenes import results_in, scripted
from tests.kernel.temperaments import virtual_worlds

PIECE = "hello\n" * 10_000


def kept(*pieces: str, most: int = 4) -> str:
    output = TruncatedOutput(most)
    for piece in pieces:
        output.add(piece)
    return str(output)


def test_what_fits_is_kept_as_it_was() -> None:
    assert kept() == ""
    assert kept("ab", "", "cd", "efgh") == "abcdefgh"


@pytest.mark.parametrize("size", [1, 3, 4, 5, 100])
def test_of_more_the_beginning_and_the_end_are_kept_in_whatever_pieces_it_came(size: int) -> None:
    text = "0123456789" * 10
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    assert kept(*pieces) == "0123\n[... 92 characters left out ...]\n6789"


def test_it_can_be_read_on_the_way() -> None:
    output = TruncatedOutput(2)
    for number, expected in enumerate(["0", "01", "012", "0123", "01\n[... 1 characters left out ...]\n34"]):
        output.add(str(number))
        assert str(output) == expected


def test_it_takes_little_room_however_much_comes() -> None:
    output = TruncatedOutput()
    for _ in range(200):
        output.add(PIECE)
    assert sum(map(sys.getsizeof, [*output._head, *output._tail])) < 5 * KEPT


def test_threads_may_add_at_the_same_time() -> None:
    output = TruncatedOutput(100)

    def add() -> None:
        for _ in range(2_000):
            output.add("x")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert str(output) == f"{'x' * 100}\n[... 7800 characters left out ...]\n{'x' * 100}"


@virtual_worlds
async def test_a_tool_over_its_time_gives_the_beginning_and_the_end_of_what_it_said() -> None:
    @function_tool(timeout=2)
    async def talks(context: ToolContext[Any]) -> str:
        context.progress("begin ")
        for _ in range(20):
            context.progress(PIECE)
        context.progress(" end")
        await anyio.sleep_forever()
        return "never"

    result = await Runner.run(scripted(call("talks"), "ok", tools=[talks]), "?")
    (told,) = results_in(result.new_items)
    assert "Output so far:\nbegin hello\n" in told.output
    assert told.output.endswith("hello\n end")
    assert "characters left out" in told.output
    assert len(told.output) < 2 * KEPT + 200


async def test_an_interrupted_tool_gives_the_beginning_and_the_end_of_what_it_said() -> None:
    reached = anyio.Event()

    @function_tool
    async def talks(context: ToolContext[Any]) -> str:
        for _ in range(20):
            context.progress(PIECE)
        reached.set()
        await anyio.sleep_forever()
        return "never"

    conversation = talk(call("talks"), tools=(talks,))
    async with running(conversation):
        await reached.wait()
        await conversation.interrupt()
    (told,) = results_in(conversation.items)
    assert "Interrupted after" in told.output
    assert f"[... {20 * len(PIECE) - 2 * KEPT} characters left out ...]" in told.output
    assert len(told.output) < 2 * KEPT + 200
