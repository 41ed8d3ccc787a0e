"""Tools that need approval, in an agent served over ACP: the user is asked, by way of the client."""

from __future__ import annotations

from typing import Any

import pytest

from quiesce.acp import RequestError
from quiesce.acp.tools import ask_client, edit_file, write_file
from quiesce.agents import Agent, RunConfig, Runner, function_tool
from quiesce.testing import ScriptedModel, call
from tests.acp.served_client import CWD, Client, connected


def helper(*turns: Any, made: list[str] | None = None) -> Agent[Any]:
    done = made if made is not None else []

    @function_tool(needs_approval=True)
    async def delete(name: str) -> str:
        """Delete something."""
        done.append(name)
        return f"{name} is gone"

    @function_tool(needs_approval=True)
    async def send(name: str) -> str:
        """Send something."""
        done.append(f"sent {name}")
        return f"{name} is on its way"

    return Agent(name="helper", model=ScriptedModel(turns), tools=[delete, send, edit_file, write_file])


async def test_the_user_is_asked_before_a_tool_runs_that_needs_it() -> None:
    made: list[str] = []
    async with connected(helper(call("delete", name="a"), "done", made=made)) as talk:
        assert await talk.say() == "end_turn"
    [asked] = talk.client.asked
    assert asked["options"] == ["allow_once", "allow_always", "reject_once"]
    assert (asked["toolCallId"], asked["title"], asked["rawInput"]) == ("call_1", "delete", {"name": "a"})
    assert talk.client.statuses("call_1") == ["pending", "in_progress", "completed"]
    assert made == ["a"]


async def test_a_rejected_call_is_not_made_and_the_model_is_told() -> None:
    made: list[str] = []
    agent = helper(call("delete", name="a"), "a pity", made=made)
    client = Client()
    client.permission = "reject_once"
    async with connected(agent, client) as talk:
        assert await talk.say() == "end_turn"
        [result] = talk.check_history()
    assert made == []
    assert (result.outcome, client.statuses("call_1")) == ("rejected", ["pending", "failed"])
    assert client.text() == "a pity"


async def test_what_is_allowed_once_is_asked_again() -> None:
    async with connected(helper(call("delete", name="a"), call("delete", name="b"), "done")) as talk:
        await talk.say()
    assert len(talk.client.asked) == 2


async def test_what_is_always_allowed_is_that_tool_in_that_session() -> None:
    agent = helper(
        [call("delete", name="a"), call("delete", name="b")],
        call("send", name="c"),
        "done",
        call("delete", name="d"),
        "done",
    )
    client = Client()
    client.permission = "allow_always"
    async with connected(agent, client) as talk:
        await talk.say()
        assert [one["title"] for one in client.asked] == ["delete", "send"]
        other = (await talk.conn.new_session(cwd=CWD, mcp_servers=[])).session_id
        await talk.say(session_id=other)
        assert [one["title"] for one in client.asked] == ["delete", "send", "delete"]


async def test_in_the_mode_that_approves_everything_nobody_is_asked() -> None:
    made: list[str] = []
    agent = helper(call("delete", name="a"), "done", call("delete", name="b"), "done", made=made)
    async with connected(agent) as talk:
        session = await talk.conn.new_session(cwd=CWD, mcp_servers=[])
        assert session.modes is not None
        assert session.modes.current_mode_id == "ask"
        assert [mode.id for mode in session.modes.available_modes] == ["ask", "auto"]
        await talk.conn.set_session_mode(session.session_id, "auto")
        await talk.say(session_id=session.session_id)
        assert talk.client.asked == []
        await talk.conn.set_session_mode(session.session_id, "ask")
        await talk.say(session_id=session.session_id)
        assert len(talk.client.asked) == 1
        with pytest.raises(RequestError) as refused:
            await talk.conn.set_session_mode(session.session_id, "yolo")
        assert "available: ask, auto" in str(refused.value.data)
    assert made == ["a", "b"]


async def test_a_client_that_cannot_ask_has_not_said_yes(caplog: pytest.LogCaptureFixture) -> None:
    made: list[str] = []

    async def broken() -> None:
        raise RequestError.method_not_found("session/request_permission")

    client = Client()
    client.permission = broken
    async with connected(helper(call("delete", name="a"), "done", made=made), client) as talk:
        assert await talk.say() == "end_turn"
    assert made == []
    assert "the client could not ask the user whether 'delete' may run" in caplog.text


async def test_an_option_that_was_not_offered_is_no_yes() -> None:
    made: list[str] = []
    client = Client()
    client.permission = "something else"
    async with connected(helper(call("delete", name="a"), "done", made=made), client) as talk:
        await talk.say()
    assert made == []


async def test_who_decides_otherwise_is_asked_instead() -> None:
    asked: list[str] = []

    async def decide(context: Any, tool: Any) -> bool:
        asked.append(tool.name)
        return True

    async with connected(
        helper(call("delete", name="a"), "done"), run_config=RunConfig(approve=decide)
    ) as talk:
        await talk.say()
    assert asked == ["delete"]
    assert talk.client.asked == []


async def test_the_user_sees_the_change_before_saying_yes() -> None:
    from quiesce.acp import schema as s
    from tests.acp.served_client import FILES

    client = Client(s.ClientCapabilities(fs=FILES))
    client.files[f"{CWD}/a.txt"] = "old\ntext\n"
    agent = helper(
        call("edit_file", path="a.txt", old_text="old", new_text="new"),
        call("write_file", path=f"{CWD}/a.txt", content="all new\n"),
        call("write_file", path="b.txt", content="created\n"),
        call("edit_file", path="a.txt"),
        "done",
    )
    async with connected(agent, client) as talk:
        await talk.say()
    edit, write, create, senseless = client.asked
    assert edit["title"] == "Edit a.txt"
    assert edit["kind"] == "edit"
    assert edit["locations"] == [{"path": f"{CWD}/a.txt"}]
    assert edit["content"] == [
        {"type": "diff", "path": f"{CWD}/a.txt", "oldText": "old\ntext\n", "newText": "new\ntext\n"}
    ]
    assert write["content"][0]["oldText"] == "new\ntext\n"
    assert create["content"] == [{"type": "diff", "path": f"{CWD}/b.txt", "newText": "created\n"}]
    assert senseless["content"][0]["content"]["text"] == '```\nedit_file {"path":"a.txt"}\n```'
    assert client.files == {f"{CWD}/a.txt": "all new\n", f"{CWD}/b.txt": "created\n"}


async def test_the_user_is_asked_for_an_agent_that_is_a_tool_if_that_is_said() -> None:
    made: list[str] = []
    inner = helper(call("delete", name="a"), "done", made=made)
    tool = inner.as_tool("research", "Looks things up.", run_config=RunConfig(approve=ask_client))
    outer = Agent(name="outer", model=ScriptedModel([call("research", input="go"), "done"]), tools=[tool])
    async with connected(outer) as talk:
        assert await talk.say() == "end_turn"
    assert [asked["title"] for asked in talk.client.asked] == ["delete"]
    assert made == ["a"]


async def test_outside_of_acp_there_is_nobody_to_ask() -> None:
    with pytest.raises(RuntimeError, match="served over ACP"):
        await Runner.run(helper(call("delete", name="a")), "go", run_config=RunConfig(approve=ask_client))
