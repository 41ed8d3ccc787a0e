"""A turn of a served agent, cancelled in each of its phases: what the history, the client and the machine are left with."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import current_token
from quiesce.acp import RequestError
from quiesce.acp import schema as s
from quiesce.acp.tools import edit_file, read_file, run_command
from quiesce.agents import Agent, Conversation, MemoryStore, function_tool
from quiesce.kernel.process.pipe import Tail
from quiesce.models import AssistantMessage, Note
from quiesce.testing import ScriptedModel, call
from quiesce.testing.scripted import Answer
from quiesce.wire import ConnectionEnded
from tests.acp.served_client import CWD, FILES, Client, Talk, Terminal, check_items, connected, until
from tests.kernel.processes import is_gone


class Streaming(ScriptedModel):
    """Says a few words, and never ends its sentence, unless it is asked again."""

    async def stream(self, request: Any) -> Any:
        if self.requests:
            async for event in super().stream(request):
                yield event
            return
        from quiesce.models import TextDelta

        self.requests.append(request)
        yield TextDelta("I was ")
        await anyio.sleep_forever()


@function_tool
async def wait_long() -> str:
    """Wait."""
    await anyio.sleep_forever()
    return "never"


@function_tool(needs_approval=True)
async def dangerous() -> str:
    """Do something."""
    return "done"


@asynccontextmanager
async def cancelled(
    agent: Agent[Any], client: Client, ready: Callable[[Talk], Any], **options: Any
) -> AsyncIterator[Talk]:
    """A turn that was cancelled when it was ready for it, and looked at."""
    async with connected(agent, client, **options) as talk:
        assert await talk.cancel_when(lambda: ready(talk)) == "cancelled"
        for result in talk.check_history():
            assert client.statuses(result.call_id)[-1:] == ["failed"]
            assert result.outcome in ("interrupted", "not_started")
        yield talk
        # and the session goes on
        model: Any = agent.model
        model._script += ["still here"] * 10
        before = len(client.updates)
        assert await talk.say("and now?") == "end_turn"
        talk.check_history()
        assert len(client.updates) > before


def helper(*turns: Any, tools: Any = (wait_long, dangerous)) -> Agent[Any]:
    return Agent(name="helper", model=ScriptedModel(turns), tools=list(tools))


async def test_while_the_model_speaks() -> None:
    client = Client()
    agent = Agent(name="helper", model=Streaming(["unused"]))
    async with cancelled(agent, client, lambda talk: until(client.text)) as talk:
        assert client.text() == "I was "
        said, note = talk.items[-2:]
        assert said == AssistantMessage("I was ", interrupted=True)
        assert isinstance(note, Note)
        assert "on purpose" in note.text


async def test_while_an_async_tool_runs() -> None:
    client = Client()
    agent = helper([call("wait_long"), call("wait_long")])

    async def ready(talk: Talk) -> None:
        await until(lambda: client.statuses("call_2")[-1:] == ["in_progress"])

    async with cancelled(agent, client, ready) as talk:
        for number in (1, 2):
            assert client.statuses(f"call_{number}") == ["pending", "in_progress", "failed"]
            ended = client.last(f"call_{number}")
            assert ended["rawOutput"]["outcome"] == "interrupted"
            assert "Interrupted" in ended["content"][0]["content"]["text"]
        assert [one.outcome for one in talk.check_history()] == ["interrupted", "interrupted"]


@pytest.mark.real_time
async def test_while_a_tool_runs_in_a_thread() -> None:
    ended: list[str] = []

    @function_tool
    def block() -> str:
        """Block."""
        current_token().wait_sync(60)
        ended.append("the thread")
        current_token().raise_if_cancelled()
        return "never"

    client = Client()
    agent = helper(call("block"), tools=[block])
    async with cancelled(
        agent, client, lambda talk: until(lambda: client.statuses("call_1")[-1:] == ["in_progress"])
    ):
        assert ended == ["the thread"]


def sleep_in_a_process(path: str) -> str:
    """Leave a sign, and sleep."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)
    return "never"


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_while_a_tool_runs_in_a_process(tmp_path: Path) -> None:
    sign = tmp_path / "pid"
    tool = function_tool(sleep_in_a_process, isolation="process")
    client = Client()
    agent = helper(call("sleep_in_a_process", path=str(sign)), tools=[tool])
    async with cancelled(agent, client, lambda talk: until(lambda: sign.exists() and sign.read_text())):
        pid = int(sign.read_text())
        assert is_gone(pid)


async def test_while_the_user_is_asked() -> None:
    client = Client()
    settled: list[str] = []

    async def think() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            settled.append("the question")
        return "allow_once"

    client.permission = think
    agent = helper([call("dangerous"), call("wait_long"), call("dangerous")])
    async with cancelled(agent, client, lambda talk: until(lambda: client.asked)) as talk:
        assert settled == ["the question"]
        assert [one.outcome for one in talk.check_history()] == ["not_started"] * 3
        assert len(client.asked) == 1
        for number in (1, 2, 3):
            assert client.statuses(f"call_{number}") == ["pending", "failed"]


async def test_a_question_that_the_client_calls_cancelled_ends_the_turn() -> None:
    client = Client()

    async def gone() -> s.RequestPermissionResponse:
        return s.RequestPermissionResponse(outcome=s.DeniedOutcome(outcome="cancelled"))

    client.permission = gone
    async with connected(helper(call("dangerous"), "next"), client) as talk:
        assert await talk.say() == "cancelled"
        assert [one.outcome for one in talk.check_history()] == ["not_started"]
        assert client.statuses("call_1") == ["pending", "failed"]
        assert await talk.say() == "end_turn"


async def test_while_a_command_runs_in_a_terminal_of_the_client() -> None:
    client = Client(s.ClientCapabilities(terminal=True))
    client.command = lambda command: Terminal(command, output="so far\n")

    async def ready(talk: Talk) -> None:
        await until(lambda: client.terminals and client.terminals["terminal-1"].awaited.is_set())

    agent = helper(call("run_command", command="sleep 600"), tools=[run_command])
    async with cancelled(agent, client, ready) as talk:
        terminal = client.terminals["terminal-1"]
        assert terminal.killed
        assert terminal.released
        [result] = talk.check_history()
        assert result.outcome == "interrupted"
        assert "so far" in result.output


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_while_a_command_of_ours_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []

    class Told(Tail):
        def add(self, data: bytes) -> None:
            super().add(data)
            heard.append(data)

    monkeypatch.setattr("quiesce.acp.served.commands.Tail", Told)
    client = Client()
    sign = tmp_path / "pid"
    command = "echo begun; echo $$ > pid; sleep 600 & wait"
    agent = helper(call("run_command", command=command), tools=[run_command])

    async def ready(talk: Talk) -> None:
        await until(lambda: heard and sign.exists() and sign.read_text())

    async with cancelled(agent, client, ready, cwd=str(tmp_path)) as talk:
        assert is_gone(int(sign.read_text()))
        [result] = talk.check_history()
        assert "begun" in result.output


@pytest.mark.parametrize("tool", ["read_file", "edit_file"])
async def test_while_the_client_reads_a_file(tool: str) -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.reading = anyio.sleep_forever
    arguments = (
        {"path": "a.txt"} if tool == "read_file" else {"path": "a.txt", "old_text": "a", "new_text": "b"}
    )
    agent = helper(call(tool, **arguments), tools=[read_file, edit_file])
    async with cancelled(agent, client, lambda talk: until(lambda: client.requests)):
        assert client.requests == ["fs/read_text_file"]


async def test_in_the_very_moment_of_the_prompt() -> None:
    reasons: list[str] = []

    async def answer(request: Any) -> str:
        if not reasons:
            await anyio.sleep_forever()
        return "next"

    async with connected(helper(answer, answer)) as talk:

        async def say() -> None:
            reasons.append(await talk.say())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            await until_asked(talk)
            await talk.conn.cancel(talk.session_id)
        assert reasons == ["cancelled"]
        check_items(talk.items)
        assert await talk.say() == "end_turn"


async def until_asked(talk: Talk) -> None:
    """Until the prompt is on its way, and no longer."""
    while not talk.conn._peer.statistics().calls_waiting:
        await anyio.sleep(0)


async def test_while_the_client_reads_nothing() -> None:
    """A client that is busy with the first word, while the model says more than fits in between."""
    client, stuck = Client(), anyio.Event()
    reasons: list[str] = []

    async def look(session_id: str, update: Any, **kwargs: Any) -> None:
        stuck.set()
        await anyio.sleep_forever()

    client.session_update = look  # type: ignore[method-assign]
    agent = Agent(name="helper", model=ScriptedModel([Answer(["x" * 10_000] * 5_000)]))
    async with connected(agent, client) as talk:
        conversation = talk.served._sessions[talk.session_id].conversation

        async def say() -> None:
            try:
                reasons.append(await talk.say())
            except ConnectionEnded:
                reasons.append("never answered")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            await stuck.wait()
            await until(lambda: conversation.status == "running")
            await talk.conn.cancel(talk.session_id)
            await until(lambda: conversation.status == "paused")
            check_items(conversation.items)
            assert reasons == []  # the answer waits behind the updates
            await talk.conn.close()
        # whether the answer had come by then, behind the updates, depends on what fits in between
        assert reasons in (["cancelled"], ["never answered"])


async def test_an_idle_cancel_is_nothing() -> None:
    async with connected(helper("fine")) as talk:
        await talk.conn.cancel(talk.session_id)
        assert await talk.say() == "end_turn"


# Other ways to stop


async def test_a_session_that_is_closed_in_its_turn_is_stopped_first() -> None:
    store = MemoryStore()
    async with connected(helper(call("wait_long")), store=store) as talk:
        reasons = []

        async def say() -> None:
            reasons.append(await talk.say())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            await until(lambda: talk.client.statuses("call_1")[-1:] == ["in_progress"])
            await talk.conn.close_session(talk.session_id)
            assert talk.client.statuses("call_1")[-1] == "failed"
        assert reasons == ["cancelled"]
        with pytest.raises(RequestError):
            await talk.say()
    check_items(Conversation(helper(), store=store, conversation_id=talk.session_id).items)


@pytest.mark.parametrize("tool", ["wait_long", "dangerous"])
async def test_a_client_that_goes_in_the_middle_leaves_a_history_that_is_complete(tool: str) -> None:
    store = MemoryStore()
    client = Client()
    client.permission = anyio.sleep_forever
    async with connected(helper(call(tool)), client, store=store) as talk:

        async def say() -> None:
            with pytest.raises(ConnectionEnded):
                await talk.say()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            await until(lambda: client.asked or client.statuses("call_1")[-1:] == ["in_progress"])
            await talk.conn.close()
    again = Conversation(helper("hello again"), store=store, conversation_id=talk.session_id)
    check_items(again.items)
    assert again.status == "paused"
    if tool == "wait_long":
        assert isinstance(again.items[-1], Note)
        assert "the client disconnected" in again.items[-1].text
    again.send_message("back")
    assert await again.arun() == "finished"


async def test_what_runs_in_other_sessions_is_left_alone() -> None:
    gate = anyio.Event()

    @function_tool
    async def until_told() -> str:
        """Wait until told."""
        await gate.wait()
        return "told"

    agent = helper(call("until_told"), call("wait_long"), "fine", tools=[until_told, wait_long])
    async with connected(agent) as talk:
        other = (await talk.conn.new_session(cwd=CWD, mcp_servers=[])).session_id
        reasons: list[str] = []

        async def say_there() -> None:
            reasons.append(await talk.say(session_id=other))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say_there)
            await until(lambda: talk.client.statuses("call_1")[-1:] == ["in_progress"])
            ready = lambda: until(lambda: talk.client.statuses("call_2")[-1:] == ["in_progress"])  # noqa: E731
            assert await talk.cancel_when(ready) == "cancelled"
            assert talk.client.statuses("call_1")[-1] == "in_progress"
            gate.set()
        assert reasons == ["end_turn"]
