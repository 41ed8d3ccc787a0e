"""Any quiesce agent, served over ACP: what the client sees of a turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from quiesce.acp import (
    RequestError,
    audio_block,
    embedded_blob_resource,
    embedded_text_resource,
    image_block,
    resource_block,
    resource_link_block,
    text_block,
)
from quiesce.acp import schema as s
from quiesce.acp.served.served_agent import ServedAgent
from quiesce.acp.tools import Session, current_session, shown_as
from quiesce.agents import Agent, GuardrailFunctionOutput, MemoryStore, function_tool, input_guardrail
from quiesce.models import Image, ModelOverloadedError, ModelRefusalError, Text, Usage, UserMessage
from quiesce.testing import ScriptedModel, call
from quiesce.testing.scripted import Answer
from tests.acp.served_client import CWD, FILES, Client, connected, until


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@function_tool
async def fail() -> str:
    """Fail."""
    raise ValueError("it does not work")


def scripted(*turns: Any, **options: Any) -> Agent[Any]:
    return Agent(name="helper", model=ScriptedModel(turns), tools=[add, fail], **options)


# What is said about the agent


async def test_the_agent_says_what_it_can_do() -> None:
    async with connected(scripted(), store=MemoryStore(), name="coder", version="1.2", cwd=None) as talk:
        answer = await talk.conn.initialize(protocol_version=7)
    able = answer.agent_capabilities
    assert answer.protocol_version == 1
    assert answer.agent_info == s.Implementation(name="coder", version="1.2")
    assert able.load_session
    assert able.prompt_capabilities == s.PromptCapabilities(image=True, embedded_context=True)
    assert able.mcp_capabilities == s.McpCapabilities(http=True)
    sessions = able.session_capabilities
    for one in (
        sessions.list,
        sessions.delete,
        sessions.resume,
        sessions.close,
        sessions.additional_directories,
    ):
        assert one is not None


async def test_without_a_store_no_session_can_be_taken_up_again_and_the_agent_says_so() -> None:
    async with connected(scripted(), images=False) as talk:
        able = talk.conn.agent_capabilities
        assert able is not None
        assert not able.load_session
        assert not able.prompt_capabilities.image
        sessions = able.session_capabilities
        assert (sessions.list, sessions.delete, sessions.resume) == (None, None, None)
        assert sessions.close is not None
        talk.conn._capabilities = None  # a client that does not look
        for asked in (
            talk.conn.load_session(CWD, talk.session_id),
            talk.conn.resume_session(talk.session_id, CWD),
            talk.conn.list_sessions(),
            talk.conn.delete_session(talk.session_id),
        ):
            with pytest.raises(RequestError) as refused:
                await asked
            assert refused.value.code == -32601


def test_only_an_agent_is_served() -> None:
    with pytest.raises(TypeError, match=r"a quiesce\.agents\.Agent, not str"):
        ServedAgent("an agent")  # type: ignore[arg-type]


async def test_one_served_agent_has_one_connection() -> None:
    async with connected(scripted()) as talk:
        with pytest.raises(RuntimeError, match="make one ServedAgent per connection"):
            talk.served.on_connect(talk.conn)


# A turn


async def test_text_thoughts_and_tools_are_told_as_they_come() -> None:
    agent = scripted(
        Answer(["I ", "add."], [call("add", a=1, b=2)], reasoning="numbers"), Answer(["It is ", "3."])
    )
    async with connected(agent) as talk:
        assert await talk.say("What is 1 + 2?\nQuickly.") == "end_turn"
    assert talk.client.kinds() == [
        "session_info_update",
        "agent_thought_chunk",
        "agent_message_chunk",
        "agent_message_chunk",
        "tool_call",
        "tool_call_update",
        "tool_call_update",
        "agent_message_chunk",
        "agent_message_chunk",
    ]
    updates = talk.client.updates
    assert updates[0]["title"] == "What is 1 + 2?"
    assert talk.client.text("agent_thought_chunk") == "numbers"
    assert talk.client.text() == "I add.It is 3."
    ids = [one["messageId"] for one in updates if one["sessionUpdate"] == "agent_message_chunk"]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert updates[4] == {
        "sessionUpdate": "tool_call",
        "toolCallId": "call_1",
        "title": "add",
        "name": "add",
        "kind": "other",
        "status": "pending",
        "rawInput": {"a": 1, "b": 2},
    }
    assert talk.client.statuses("call_1") == ["pending", "in_progress", "completed"]
    ended = talk.client.last("call_1")
    assert ended["content"] == [{"type": "content", "content": {"type": "text", "text": "3"}}]
    assert ended["rawOutput"] == {"outcome": "finished", "output": "3"}


async def test_the_title_is_told_once() -> None:
    async with connected(scripted("a", "b")) as talk:
        await talk.say("x" * 200)
        await talk.say("second")
    titles = [one["title"] for one in talk.client.updates if one["sessionUpdate"] == "session_info_update"]
    assert titles == ["x" * 79 + "…"]


async def test_a_session_that_begins_without_words_has_its_title_later() -> None:
    async with connected(scripted("a", "b")) as talk:
        await talk.say([image_block("AAAA", "image/png")])
        assert "session_info_update" not in talk.client.kinds()
        await talk.say("What is this?")
    assert [one["title"] for one in talk.client.updates if "title" in one] == ["What is this?"]


async def test_the_calls_of_an_agent_that_is_a_tool_are_its_own_business() -> None:
    from quiesce.acp.tools import write_file

    client = Client(s.ClientCapabilities(fs=FILES))
    inner = Agent(
        name="inner",
        model=ScriptedModel([call("write_file", "inner_call", path="a.txt", content="x"), "written"]),
        tools=[replace(write_file, needs_approval=False)],
    )
    agent = Agent(
        name="outer", model=ScriptedModel([call("inner", input="write"), "done"]), tools=[inner.as_tool()]
    )
    async with connected(agent, client) as talk:
        assert await talk.say() == "end_turn"
    assert client.files == {f"{CWD}/a.txt": "x"}
    assert {one["toolCallId"] for one in client.updates if "toolCallId" in one} == {"call_1"}
    assert client.statuses("call_1") == ["pending", "in_progress", "completed"]


async def test_a_tool_that_fails_is_told_as_failed_and_the_turn_goes_on() -> None:
    async with connected(scripted([call("fail"), call("add", a="x", b=1), call("nobody")], "done")) as talk:
        assert await talk.say() == "end_turn"
        talk.check_history()
    for number, words in ((1, "it does not work"), (2, "add"), (3, "no tool named")):
        assert talk.client.statuses(f"call_{number}")[-1] == "failed"
        assert words in talk.client.last(f"call_{number}")["content"][0]["content"]["text"]


async def test_tokens_are_told_if_the_size_of_the_context_is_known() -> None:
    answers = [Answer(["ok"], usage=Usage(1, 90, 10)), "nothing reported"]
    async with connected(scripted(*answers), context_window=1000) as talk:
        await talk.say()
        await talk.say()
    told = [one for one in talk.client.updates if one["sessionUpdate"] == "usage_update"]
    assert told == [{"sessionUpdate": "usage_update", "used": 100, "size": 1000}]
    async with connected(scripted(*answers)) as talk:
        await talk.say()
    assert "usage_update" not in talk.client.kinds()


@input_guardrail
async def no_secrets(context: Any, agent: Any, said: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="secret" in str(said))


@pytest.mark.parametrize(
    ("turns", "options", "reason"),
    [
        (["fine"], {}, "end_turn"),
        ([Answer(["too lo"], finish="length")], {}, "max_tokens"),
        ([call("add", a=1, b=1), call("add", a=1, b=1)], {"max_turns": 2}, "max_turn_requests"),
        ([ModelRefusalError("no", model="m")], {}, "refusal"),
    ],
)
async def test_why_a_turn_ends_is_told(turns: list[Any], options: dict[str, Any], reason: str) -> None:
    async with connected(scripted(*turns), **options) as talk:
        assert await talk.say() == reason
        talk.check_history()


async def test_a_guardrail_that_says_no_is_a_refusal_with_a_word() -> None:
    async with connected(scripted("never said", "hello", input_guardrails=[no_secrets])) as talk:
        assert await talk.say("my secret") == "refusal"
    assert "no_secrets" in talk.client.text()


async def test_a_model_that_fails_is_an_error_that_says_so_and_the_session_goes_on() -> None:
    agent = scripted(ModelOverloadedError("the model is overloaded", model="m"), "better")
    async with connected(agent) as talk:
        with pytest.raises(RequestError) as failed:
            await talk.say()
        assert failed.value.data == {"details": "the model is overloaded"}
        assert await talk.say("again") == "end_turn"
    assert talk.client.text() == "better"


async def test_one_turn_at_a_time_in_a_session_and_several_sessions_at_once() -> None:
    gate = anyio.Event()

    async def wait(request: Any) -> str:
        await gate.wait()
        return f"to {request.items[0].content}"

    async with connected(scripted(wait, wait)) as talk, anyio.create_task_group() as tasks:
        other = (await talk.conn.new_session(cwd=CWD, mcp_servers=[])).session_id
        tasks.start_soon(talk.say, "one")
        tasks.start_soon(talk.say, "two", other)
        model: Any = talk.served.agent.model
        await until(lambda: len(model.requests) == 2)
        with pytest.raises(RequestError) as refused:
            await talk.say("three")
        assert refused.value.code == -32600
        gate.set()
    assert sorted(one["content"]["text"] for one in talk.client.updates if "content" in one) == [
        "to one",
        "to two",
    ]


# What is said


async def test_every_kind_of_content_that_was_offered_reaches_the_model() -> None:
    agent = scripted("seen")
    async with connected(agent) as talk:
        await talk.say(
            [
                text_block("Look:"),
                resource_link_block("main.py", "file:///main.py"),
                resource_block(embedded_text_resource("file:///a.txt", "inside")),
                resource_block(embedded_blob_resource("file:///a.bin", "AAAA", mime_type="application/zip")),
                resource_block(embedded_blob_resource("file:///a.png", "BBBB", mime_type="image/png")),
                image_block("CCCC", "image/jpeg"),
            ]
        )
    model: Any = agent.model
    assert model.requests[0].items == [
        UserMessage(
            [
                Text("Look:"),
                Text("[main.py](file:///main.py)"),
                Text('<resource uri="file:///a.txt">\ninside\n</resource>'),
                Text('<resource uri="file:///a.bin" type="application/zip">3 bytes, not shown</resource>'),
                Image("data:image/png;base64,BBBB"),
                Image("data:image/jpeg;base64,CCCC"),
            ]
        )
    ]


@pytest.mark.parametrize(
    "blocks", [[], [audio_block("AAAA", "audio/wav")], [image_block("AAAA", "image/png")]]
)
async def test_content_that_was_not_offered_is_refused(blocks: list[Any]) -> None:
    async with connected(scripted("never"), images=False) as talk:
        with pytest.raises(RequestError) as refused:
            await talk.say(blocks)
        assert refused.value.code == -32602
        assert talk.items == []


# Authentication


async def test_nothing_is_answered_before_the_client_has_authenticated() -> None:
    async def check(method_id: str) -> None:
        if method_id != "key":
            raise RequestError.invalid_params({"methodId": "there is no such method"})

    methods = [s.AuthMethodAgent(id="key", name="A key")]
    async with connected(scripted("hello"), auth_methods=methods, authenticate=check, cwd=None) as talk:
        answer = await talk.conn.initialize(protocol_version=1)
        assert [one.id for one in answer.auth_methods] == ["key"]  # type: ignore[union-attr]
        for _ in range(2):
            with pytest.raises(RequestError) as refused:
                await talk.conn.new_session(cwd=CWD, mcp_servers=[])
            assert refused.value.code == -32000
            with pytest.raises(RequestError) as refused:
                await talk.conn.authenticate("guess")
            assert refused.value.code == -32602
        await talk.conn.authenticate("key")
        talk.session_id = (await talk.conn.new_session(cwd=CWD, mcp_servers=[])).session_id
        assert await talk.say() == "end_turn"


async def test_an_agent_that_needs_no_authentication_says_so() -> None:
    async with connected(scripted()) as talk:
        with pytest.raises(RequestError) as refused:
            await talk.conn.authenticate("key")
        assert refused.value.code == -32600


# What tools find


async def test_a_tool_finds_its_session_and_its_context() -> None:
    seen: list[Any] = []

    @function_tool
    async def look() -> str:
        """Look."""
        seen.append(current_session())
        return "ok"

    agent = Agent(name="helper", model=ScriptedModel([call("look"), "done"]), tools=[add, look])
    client = Client(s.ClientCapabilities(terminal=True))

    def make(session: Session) -> str:
        return f"context of {session.cwd}"

    async with connected(agent, client, context=make, cwd=None) as talk:
        answer = await talk.conn.new_session(cwd=CWD, additional_directories=["/elsewhere"], mcp_servers=[])
        await talk.say(session_id=answer.session_id)
        [session] = seen
        assert (session.id, session.cwd, session.additional_directories) == (
            answer.session_id,
            CWD,
            ("/elsewhere",),
        )
        assert session.has_terminals
        assert not session.can_read_files
        assert session.conversation.context == f"context of {CWD}"
    assert current_session() is None


@pytest.mark.real_time
async def test_a_tool_in_a_thread_finds_its_session_too() -> None:
    @function_tool
    def where() -> str:
        """Say where."""
        session = current_session()
        return session.cwd if session is not None else "nowhere"

    agent = Agent(name="helper", model=ScriptedModel([call("where"), "done"]), tools=[where])
    async with connected(agent) as talk:
        await talk.say()
    assert talk.client.last("call_1")["rawOutput"]["output"] == CWD


async def test_a_tool_is_shown_as_its_author_says() -> None:
    @function_tool
    async def search(query: str) -> str:
        """Search."""
        return "found"

    shown_as(
        search,
        "search",
        title=lambda given: f"Search for\n{given['query']}",
        locations=lambda given: [s.ToolCallLocation(path="/project/a.py", line=3)],
    )
    agent = Agent(
        name="helper",
        model=ScriptedModel([[call("search", query="x"), call("search", z=1)], "done"]),
        tools=[search],
    )
    async with connected(agent) as talk:
        await talk.say()
    first, second = [one for one in talk.client.updates if one["sessionUpdate"] == "tool_call"]
    assert (first["title"], first["kind"]) == ("Search for⏎x", "search")
    assert first["locations"] == [{"path": "/project/a.py", "line": 3}]
    assert (second["title"], second["kind"]) == ("search", "search")  # arguments that make no title


@pytest.mark.parametrize("cwd", ["relative", ""])
async def test_a_session_needs_an_absolute_directory(cwd: str) -> None:
    async with connected(scripted(), cwd=None) as talk:
        with pytest.raises(RequestError) as refused:
            await talk.conn.new_session(cwd=cwd, mcp_servers=[])
        assert refused.value.code == -32602


async def test_a_session_that_nobody_knows_is_not_found() -> None:
    async with connected(scripted(), store=MemoryStore()) as talk:
        for asked in (
            talk.say(session_id="nobody"),
            talk.conn.close_session("nobody"),
            talk.conn.set_session_mode("nobody", "ask"),
            talk.conn.load_session(CWD, "nobody"),
            talk.conn.resume_session("nobody", CWD),
        ):
            with pytest.raises(RequestError) as refused:
                await asked
            assert refused.value.code == -32002
