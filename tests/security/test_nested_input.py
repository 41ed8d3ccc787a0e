"""Threat: JSON that is nested so deeply that whoever reads it gives up with a RecursionError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from quiesce._safe.nested import decode_json, decoder_of, is_deep, load_json
from quiesce.agents import Agent, Conversation, Runner, SQLiteStore, function_tool
from quiesce.agents.store.events import decode_event
from quiesce.models import ToolCall, ToolResult, UserMessage
from quiesce.models.anthropic.messages import _object
from quiesce.models.words.items import decode_item
from quiesce.testing import ScriptedModel
from quiesce_chat.tools.toolbox import plain_arguments, preview_of, title_of
from tests.acp.served_client import connected

DEPTHS = [300, 900, 5_000, 200_000]
deep = pytest.mark.parametrize("depth", DEPTHS)


def nested(depth: int, kind: str = "list") -> str:
    return "[" * depth + "]" * depth if kind == "list" else '{"a":' * depth + "1" + "}" * depth


def test_it_is_bad_input_like_any_other() -> None:
    for read in (decode_json, decoder_of(dict[str, Any]), load_json):
        with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
            read(nested(200_000, "object"))
    assert not is_deep({"a": [1, {"b": 2}]})
    assert is_deep(decode_json(nested(300)))


@function_tool
async def keep(value: Any) -> str:
    """Keep something."""
    return "kept"


def asks(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
    return bool(arguments)


@function_tool(needs_approval=asks)
async def ask_first(value: Any) -> str:
    """Keep something, after a question."""
    return "kept"


@deep
@pytest.mark.parametrize("name", ["keep", "missing"])
async def test_a_run_goes_on(depth: int, name: str) -> None:
    bad = ToolCall("call_1", name, f'{{"value": {nested(depth)}}}')
    agent = Agent(name="helper", model=ScriptedModel([[bad], "done"]), tools=[keep])
    result = await Runner.run(agent, "go")
    assert result.final_output == "done"
    [answer] = [item for item in result.new_items if isinstance(item, ToolResult)]
    assert answer.outcome in ("failed", "finished")


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
@deep
async def test_over_acp_the_turn_goes_on_and_the_session_can_be_loaded(depth: int, tmp_path: Path) -> None:
    bad = ToolCall("call_1", "keep", f'{{"value": {nested(depth)}}}')
    agent = Agent(name="helper", model=ScriptedModel([[bad], "done", "again"]), tools=[keep])
    store = str(tmp_path / "sessions.db")
    async with connected(agent, store=store) as talk:
        assert await talk.say() == "end_turn"
        session_id = talk.session_id
    async with connected(agent, cwd=None, store=store) as talk:
        await talk.conn.load_session(cwd="/project", session_id=session_id, mcp_servers=[])
        talk.session_id = session_id
        assert await talk.say() == "end_turn"


@pytest.mark.real_time
@deep
async def test_a_stored_conversation_can_be_resumed(depth: int, tmp_path: Path) -> None:
    bad = ToolCall("call_1", "keep", f'{{"value": {nested(depth)}}}')
    first = Agent(name="helper", model=ScriptedModel([[bad], "done"]), tools=[keep])
    async with Conversation(first, store=SQLiteStore(tmp_path / "a.db"), conversation_id="c") as conversation:
        await conversation.asend_message("go")
        await conversation.arun()
    again = Agent(name="helper", model=ScriptedModel(["more"]), tools=[keep])
    async with Conversation(again, store=SQLiteStore(tmp_path / "a.db"), conversation_id="c") as conversation:
        await conversation.asend_message("go on")
        await conversation.arun()
        assert conversation.final_output == "more"


@deep
def test_records_of_a_log_are_refused_and_nothing_else(depth: int) -> None:
    for payload in (
        f'{{"event": "new", "data": {nested(depth)}}}',
        f'{{"type": "new", "data": {nested(depth)}}}',
        nested(depth),
    ):
        for read in (decode_event, decode_item):
            try:
                read(payload)
            except ValueError:
                pass


@deep
def test_a_call_can_be_shown_and_sent(depth: int, tmp_path: Path) -> None:
    arguments = f'{{"command": {nested(depth)}, "path": {nested(depth)}}}'
    assert plain_arguments(arguments) == {} or depth < 100
    for name in ("shell", "write_file", "read_file", "other"):
        assert title_of(name, arguments)
        assert preview_of(name, arguments, tmp_path)[0]
    assert isinstance(_object(arguments), dict)
    msgspec.json.encode(_object(arguments))


@deep
async def test_an_agent_as_a_tool_and_a_question_survive_it(depth: int) -> None:
    inner = Agent(name="inner", model=ScriptedModel(["inner answer"] * 3))
    bad = [
        ToolCall("call_1", "inner", nested(depth, "object")),
        ToolCall("call_2", "ask_first", f'{{"value": {nested(depth)}}}'),
    ]
    agent = Agent(
        name="outer", model=ScriptedModel([bad, "done"]), tools=[inner.as_tool("inner", "Asks."), ask_first]
    )
    conversation = Conversation(agent)
    async with conversation:
        await conversation.asend_message(UserMessage("go"))
        await conversation.arun()
        assert conversation.status in ("finished", "waiting_for_approval")


def test_the_script_of_a_chat_says_what_is_wrong(tmp_path: Path) -> None:
    from quiesce_chat.script import BadScript, load_script

    (tmp_path / "script.json").write_text(nested(200_000))
    with pytest.raises(BadScript):
        load_script(str(tmp_path / "script.json"))
