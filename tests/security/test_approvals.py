"""Threat: what somebody approves over ACP is not what they were shown."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quiesce.acp.tools import edit_file, run_command, write_file
from quiesce.agents import Agent, Rejected, RunConfig, Runner, function_tool
from quiesce.models import ToolResult
from quiesce.testing import ScriptedModel, call
from tests.acp.served_client import Client, connected


@function_tool(needs_approval=True)
async def transfer(account: str, amount: float) -> str:
    """Send money."""
    return "sent"


def asking(*asked: Any) -> Agent[Any]:
    tools = [write_file, edit_file, run_command, transfer]
    return Agent(name="helper", model=ScriptedModel([[*asked], "done"]), tools=tools)


async def question(folder: Path, asked: Any) -> dict[str, Any]:
    """What the user is asked; the answer is no."""
    client = Client()
    client.permission = "reject_once"
    async with connected(asking(asked), client, cwd=str(folder)) as talk:
        await talk.say()
    [one] = client.asked
    return one


def texts(asked: dict[str, Any]) -> str:
    """What is shown beside a diff: code, in which Markdown changes nothing."""
    [block] = [one["content"]["text"] for one in asked["content"] if one["type"] == "content"]
    fence, *lines, end = str(block).split("\n")
    assert re.fullmatch("`{3,}", fence)
    assert fence == end
    assert fence not in "\n".join(lines)
    return "\n".join(lines)


async def test_a_command_is_shown_as_it_is_with_its_line_ends(tmp_path: Path) -> None:
    asked = await question(tmp_path, call("run_command", command="echo  'a   b'\nrm -rf ~"))
    assert asked["title"] == "echo  'a   b'⏎rm -rf ~"
    assert texts(asked) == "echo  'a   b'\nrm -rf ~"


@pytest.mark.parametrize(
    "hidden",
    [
        'echo hello\n\n[a]: x "$(touch pwned)"\n\necho bye',  # a link definition
        "echo hello\n<!-- \nrm -rf ~\n-->",
        "echo hello\n```\nrm -rf ~\n````\n",
        "~~~\nrm -rf ~",
    ],
)
async def test_markdown_hides_nothing_of_a_command(tmp_path: Path, hidden: str) -> None:
    asked = await question(tmp_path, call("run_command", command=hidden))
    assert texts(asked) == hidden


async def test_the_end_of_a_long_command_is_never_hidden(tmp_path: Path) -> None:
    long = "echo " + "harmless " * 1000 + "; rm -rf ~"
    asked = await question(tmp_path, call("run_command", command=long, cwd=".", timeout_seconds=5))
    assert len(asked["title"]) <= 200
    assert asked["title"].endswith("; rm -rf ~")
    assert asked["title"].startswith("echo harmless")
    assert texts(asked).split("\n") == [long, "cwd: '.'", "timeout_seconds: 5"]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("\x1b[2K\rls", "␛[2K␍ls"),
        ("ls \u202e/ fr- mr", "ls \\u202e/ fr- mr"),
        ("rm\u00a0x", "rm\\u00a0x"),
        ("a\u200bb", "a\\u200bb"),
        ("a\x9b31mb", "a\\x9b31mb"),
        ("\x00", "␀"),
    ],
)
async def test_what_cannot_be_seen_is_spelled_out(tmp_path: Path, sent: str, shown: str) -> None:
    asked = await question(tmp_path, call("run_command", command=sent))
    assert asked["title"] == shown
    assert texts(asked) == shown


async def test_a_tool_without_a_look_of_its_own_shows_its_arguments(tmp_path: Path) -> None:
    asked = await question(tmp_path, call("transfer", account="a\u202eb", amount=5))
    assert asked["title"] == "transfer"
    assert texts(asked) == 'transfer {"account":"a\\u202eb","amount":5}'


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_an_edit_shows_the_whole_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x = 1\ny = 1\n")
    asked = await question(
        tmp_path, call("edit_file", path="a", old_text="1", new_text="2", replace_all=True)
    )
    [diff] = asked["content"]
    assert (diff["oldText"], diff["newText"]) == ("x = 1\ny = 1\n", "x = 2\ny = 2\n")


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_change_says_in_words_what_a_diff_does_not_show(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("a\n")
    (tmp_path / "link").symlink_to("real")
    asked = await question(tmp_path, call("write_file", path="link", content="a\nif x:\u202e pass\n"))
    assert texts(asked).split("\n") == [
        f"{tmp_path}/link is a link: the file that is written is {tmp_path}/real",
        "Line 2 has invisible characters: if x:\\u202e pass",
    ]


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_many_lines_with_unseen_characters_do_not_hide_one_more(tmp_path: Path) -> None:
    decoys = "".join(f"line {number}\u200b\n" for number in range(100))
    asked = await question(tmp_path, call("write_file", path="a", content=f"{decoys}rm\u202e\n"))
    assert "Line 101 has invisible characters: rm\\u202e" in texts(asked)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_line_ends_of_windows_are_one_remark_or_none(tmp_path: Path) -> None:
    content = "one\r\ntwo\r\n"
    asked = await question(tmp_path, call("write_file", path="new", content=content))
    assert texts(asked) == "Lines end with CR LF."
    (tmp_path / "old").write_bytes(b"one\r\n")
    asked = await question(tmp_path, call("write_file", path="old", content=content))
    assert [one["type"] for one in asked["content"]] == ["diff"]


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_what_cannot_be_shown_in_full_is_not_asked_about(tmp_path: Path) -> None:
    client = Client()
    content = "\u200b\n" * 2000
    async with connected(
        asking(call("write_file", path="a", content=content)), client, cwd=str(tmp_path)
    ) as talk:
        await talk.say()
    assert not client.asked
    assert not (tmp_path / "a").exists()


async def test_a_no_with_a_reason_tells_the_model_the_reason() -> None:
    model = ScriptedModel([call("transfer", account="a", amount=1), "done"])
    agent = Agent(name="helper", model=model, tools=[replace(transfer)])

    async def approve(context: Any, tool: Any) -> bool | Rejected:
        return Rejected("Not on a Sunday.")

    result = await Runner.run(agent, "go", run_config=RunConfig(approve=approve))
    [answer] = [item for item in result.new_items if isinstance(item, ToolResult)]
    assert (answer.outcome, answer.output) == ("rejected", "Not on a Sunday.")
    assert not Rejected("no")
