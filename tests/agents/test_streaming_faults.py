"""Streamed runs among parts that misbehave: a model that yields in its clean-up, a store that is taken over or lost."""

from __future__ import annotations

import gc
import logging
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce.agents import (
    Agent,
    Conversation,
    MemorySession,
    RawResponseEvent,
    RunHooks,
    Runner,
    RunResultStreaming,
    SQLiteSession,
    SQLiteStore,
    StoreConflict,
    StoreError,
    StreamEvent,
    function_tool,
)
from quiesce.agents.store import ItemAdded
from quiesce.models import (
    AssistantMessage,
    Item,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolResult,
    UserMessage,
)
from quiesce.testing import Answer, call
from tests.agents.scenes import scripted
from tests.kernel.temperaments import tidy_up

# A model that yields in its clean-up --------------------------------------------------------------------------------------


class Chatty:
    """Has something to say though its answer is being closed, and things to tidy up after that."""

    name = "chatty"

    def __init__(self, more: int) -> None:
        self._more = more
        self.tidied = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        try:
            yield TextDelta("so ")
            yield TextDelta("far")
            await anyio.sleep(3600)
        finally:
            for number in range(self._more):
                try:
                    yield TextDelta(f" bye {number}")
                except GeneratorExit:
                    if number + 1 == self._more:
                        raise
            await tidy_up(0.01)
            self.tidied += 1


def is_text(event: StreamEvent) -> bool:
    return isinstance(event, RawResponseEvent) and isinstance(event.data, TextDelta)


async def cancelled(result: RunResultStreaming) -> None:
    async for event in result.stream_events():
        if is_text(event):
            result.cancel()


async def left_in_a_block(result: RunResultStreaming) -> None:
    async with result:
        async for event in result.stream_events():
            if is_text(event):
                break


async def left_and_closed(result: RunResultStreaming) -> None:
    async for event in result.stream_events():
        if is_text(event):
            break
    await result.close()


ways = pytest.mark.parametrize("leave", [cancelled, left_in_a_block, left_and_closed])
Leave = Callable[[RunResultStreaming], Awaitable[None]]


@ways
@pytest.mark.parametrize("more", [1, 3])
async def test_a_model_that_yields_in_its_clean_up_is_closed_to_its_end(leave: Leave, more: int) -> None:
    """That nothing is left, and that the event loop has nothing to complain of, is checked after each test."""
    model = Chatty(more)
    result = Runner.run_streamed(Agent(name="a", model=model), "?")
    await leave(result)
    assert model.tidied == 1
    assert result.new_items == [AssistantMessage("so ", interrupted=True)]
    assert result.report is not None
    assert result.report.clean
    assert result.report.errors == []
    del model
    gc.collect()


async def test_an_error_of_the_consumer_is_raised_as_itself_though_the_model_yields_in_its_clean_up() -> None:
    async def fails(event: StreamEvent) -> None:
        raise LookupError("no such window")

    model = Chatty(2)
    conversation = Conversation(Agent(name="a", model=model))
    conversation.send_message("Hello")
    with pytest.raises(LookupError) as caught:
        await conversation.arun(on_event=fails)
    assert "model 'chatty' yields while its answer is being closed" in "".join(caught.value.__notes__)
    assert model.tidied == 1


async def test_a_model_whose_clean_up_never_stops_yielding_does_not_hold_the_stop_up() -> None:
    class Endless:
        name = "endless"

        def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            answers.append(self._answer())
            return answers[-1]

        async def _answer(self) -> AsyncGenerator[ModelEvent, None]:
            while not over:
                with suppress(GeneratorExit):
                    yield TextDelta("and ")

    answers: list[AsyncGenerator[ModelEvent, None]] = []
    over: list[bool] = []
    result = Runner.run_streamed(Agent(name="a", model=Endless()), "?")
    with anyio.fail_after(5):
        await left_in_a_block(result)
    assert result.report is not None
    assert result.report.clean
    over.append(True)  # else Python complains when it drops the generator, and rightly so
    assert [event async for event in answers[0]] == []


# A store that is taken over, or lost ---------------------------------------------------------------------------------------

BY_OTHERS = UserMessage("This is mine now.")


async def take_over(path: Path) -> None:
    """Another process writes to the conversation."""
    async with SQLiteStore(path) as store:
        log = store.open("talk")
        await log.read()
        await log.append([ItemAdded(item=BY_OTHERS)])


async def remove(path: Path) -> None:
    await anyio.Path(path).unlink()


async def forbid(path: Path) -> None:
    """What a file system does that has become read-only: each write fails."""
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TRIGGER no_more BEFORE INSERT ON quiesce_events BEGIN SELECT RAISE(ABORT, 'read-only'); END"
        )
    file.close()


FATES = {"taken over": take_over, "removed": remove, "read-only": forbid}
fates = pytest.mark.parametrize("fate", list(FATES))


def told(fate: str) -> Any:
    kind = StoreConflict if fate == "taken over" else StoreError
    return pytest.raises(
        kind, match=r"written to by another writer|was removed or replaced|chat.db': .*read-only"
    )


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def talker(path: Path, fate: str, at: str) -> Agent[Any]:
    """An agent whose store meets its fate in a tool, or while the model gives its last answer."""

    @function_tool
    async def look() -> str:
        if at == "tool":
            await FATES[fate](path)
        return "a door"

    async def last(request: object) -> Answer:
        if at == "answer":
            await FATES[fate](path)
        return Answer(["It ", "is ", "a door."])

    return scripted(call("look"), last, "more", tools=[look])


async def kept(path: Path) -> list[Item]:
    async with SQLiteSession("talk", path) as session:
        return await session.get_items()


@pytest.mark.real_time
@fates
@pytest.mark.parametrize("at", ["tool", "answer"])
@pytest.mark.parametrize("block", [True, False], ids=["block", "bare"])
async def test_a_session_that_is_lost_in_a_streamed_run_is_one_clear_error(
    fate: str, at: str, block: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "chat.db"
    async with SQLiteSession("talk", path) as session:
        result = Runner.run_streamed(talker(path, fate, at), "Hello", session=session)
        with told(fate) as caught:
            if block:
                async with result:
                    async for _ in result.stream_events():
                        pass
            else:
                async for _ in result.stream_events():
                    pass
        assert not getattr(caught.value, "__notes__", None)
        report = await result.close()
        assert report.errors == [caught.value]
        assert [event async for event in result.stream_events()] == []
    assert logged(caplog) == []
    if fate == "taken over":  # nothing is mixed in, also not when the run was settled
        assert (await kept(path))[-1] == BY_OTHERS
    elif fate == "removed":  # nor is the end of it alone kept in a new file
        assert not path.exists() or await kept(path) == []


@pytest.mark.real_time
@fates
async def test_a_block_that_is_left_early_raises_that_the_session_was_lost(
    fate: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "chat.db"
    async with SQLiteSession("talk", path) as session:
        result = Runner.run_streamed(talker(path, fate, "answer"), "Hello", session=session)
        with told(fate):
            await left_in_a_block(result)
        assert len((await result.close()).errors) == 1
    assert logged(caplog) == []


@pytest.mark.real_time
async def test_what_the_report_of_close_has_told_is_not_raised_at_the_end_of_the_block(
    tmp_path: Path,
) -> None:
    path = tmp_path / "chat.db"
    agent = talker(path, "taken over", "answer")
    async with (
        SQLiteSession("talk", path) as session,
        Runner.run_streamed(agent, "?", session=session) as result,
    ):
        async for event in result.stream_events():
            if is_text(event):
                (error,) = (await result.close()).errors
                assert isinstance(error, StoreConflict)


@pytest.mark.real_time
@pytest.mark.parametrize("closed", [True, False])
async def test_after_a_bare_break_the_report_or_else_the_log_tells_that_the_session_was_lost(
    closed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "chat.db"
    async with SQLiteSession("talk", path) as session:
        result = Runner.run_streamed(talker(path, "taken over", "answer"), "Hello", session=session)
        async for event in result.stream_events():
            if is_text(event):
                break
        if closed:
            (error,) = (await result.close()).errors
            assert isinstance(error, StoreConflict)
        else:
            with anyio.fail_after(5):
                while result.report is None or not logged(caplog):
                    await anyio.sleep(0.01)
    assert len(logged(caplog)) == (0 if closed else 1)


@pytest.mark.real_time
@fates
async def test_a_cancelled_stream_raises_once_that_the_session_was_lost(
    fate: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "chat.db"
    async with SQLiteSession("talk", path) as session:
        result = Runner.run_streamed(talker(path, fate, "answer"), "Hello", session=session)
        with told(fate):
            async with result:
                async for event in result.stream_events():
                    if is_text(event):
                        result.cancel()
    assert logged(caplog) == []


@pytest.mark.real_time
@pytest.mark.parametrize("fate", ["removed", "read-only"])
@pytest.mark.parametrize("how", ["runs", "is interrupted"])
async def test_a_conversation_whose_store_is_lost_says_so_once_for_each_call(
    fate: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "chat.db"
    conversation = Conversation(talker(path, fate, "answer"), store=path, conversation_id="talk")
    await conversation.asend_message("Hello")

    async def listen(event: StreamEvent) -> None:
        if how == "is interrupted" and is_text(event):
            conversation.interrupt()

    with told(fate) as caught:
        await conversation.arun(on_event=listen)
    assert not getattr(caught.value, "__notes__", None)
    await conversation.close()
    assert logged(caplog) == []


@pytest.mark.real_time
async def test_a_conversation_logs_that_its_end_is_lost_if_nobody_was_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "chat.db"
    conversation = Conversation(talker(path, "read-only", "answer"), store=path, conversation_id="talk")
    await conversation.asend_message("Hello")
    reached = anyio.Event()

    async def listen(event: StreamEvent) -> None:
        if is_text(event):
            reached.set()
            await anyio.sleep(60)

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cut() -> None:
                await reached.wait()
                scope.cancel()

            group.start_soon(cut)
            await conversation.arun(on_event=listen)
    await conversation.close()
    assert len(logged(caplog)) == 1
    assert "the end of conversation 'talk' could not be saved" in logged(caplog)[0]


async def test_a_block_that_is_left_early_raises_what_a_hook_has_raised_at_the_end() -> None:
    class Failing(RunHooks[Any]):
        async def on_settled(self, context: Any, agent: Any, report: Any) -> None:
            raise LookupError("no such meter")

    result = Runner.run_streamed(scripted(Answer(["a", "b"])), "?", hooks=Failing())
    with pytest.raises(LookupError, match="no such meter"):
        await left_in_a_block(result)


async def test_a_session_that_fails_for_a_moment_gets_everything_when_the_run_is_settled() -> None:
    class Moody(MemorySession):
        failed = False

        async def add_items(self, items: Any) -> None:
            if not self.failed and any(isinstance(item, ToolCall) for item in items):
                self.failed = True
                raise StoreError("the disk is full: make room")
            await super().add_items(items)

    session = Moody("s")
    look = function_tool(_look, name_override="look")
    with pytest.raises(StoreError, match="make room"):
        await Runner.run(scripted(call("look"), tools=[look]), "Hello", session=session)
    assert [type(item) for item in await session.get_items()] == [UserMessage, ToolCall, ToolResult]


async def _look() -> str:
    return "a door"
