"""The tools for files and commands: by way of the client, on this machine, and outside of ACP."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce.acp import schema as s
from quiesce.acp.served.tool_calls import _displays, display_of
from quiesce.acp.tools import CHARACTERS, LINES, edit_file, read_file, run_command, shown_as, write_file
from quiesce.agents import Agent, FunctionTool, RunConfig, Runner, function_tool
from quiesce.models import ToolResult
from quiesce.testing import ScriptedModel, call
from tests.acp.served_client import CWD, FILES, Client, Talk, Terminal, connected
from tests.kernel.processes import is_gone

TOOLS = [read_file, write_file, edit_file, run_command]
here = [pytest.mark.real_time, pytest.mark.worlds("asyncio", "trio")]


def on_this_machine(test: Any) -> Any:
    for mark in here:
        test = mark(test)
    return test


def calls(*asked: Any) -> Agent[Any]:
    return Agent(name="helper", model=ScriptedModel([[*asked], "done"]), tools=TOOLS)


async def outputs(talk: Talk) -> list[str]:
    """Let the agent make its calls; what came of them."""
    await talk.say()
    return [f"{'' if one.outcome == 'finished' else 'FAILED '}{one.output}" for one in talk.check_history()]


# By way of the client


async def test_files_of_the_client_are_read_and_written() -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.files[f"{CWD}/a.txt"] = "one\ntwo\nthree\n"
    agent = calls(
        call("read_file", path="a.txt"),
        call("read_file", path=f"{CWD}/sub/../a.txt", line=2, limit=1),
        call("read_file", path="missing.txt"),
    )
    async with connected(agent, client) as talk:
        assert await outputs(talk) == [
            "one\ntwo\nthree\n",
            "two\n[there is more: read on from line 3]",
            f"FAILED An error occurred while running the tool: there is no file '{CWD}/missing.txt'",
        ]
    shown = [one for one in client.updates if one["sessionUpdate"] == "tool_call"]
    assert [one["title"] for one in shown[:2]] == ["Read a.txt", f"Read {CWD}/sub/../a.txt"]
    assert shown[1]["kind"] == "read"
    assert shown[1]["locations"] == [{"path": f"{CWD}/a.txt", "line": 2}]


async def test_a_change_is_shown_as_a_diff_and_stays_so() -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.files[f"{CWD}/a.txt"] = "one\ntwo\n"
    agent = Agent(
        name="helper",
        model=ScriptedModel(
            [
                call("edit_file", path="a.txt", old_text="two", new_text="2"),
                call("write_file", path="b.txt", content="new"),
                "done",
            ]
        ),
        tools=[replace(edit_file, needs_approval=False), replace(write_file, needs_approval=False)],
    )
    async with connected(agent, client) as talk:
        assert await outputs(talk) == [
            f"Replaced 1 place in {CWD}/a.txt.",
            f"Wrote 3 characters to {CWD}/b.txt.",
        ]
    assert client.asked == []
    assert client.files == {f"{CWD}/a.txt": "one\n2\n", f"{CWD}/b.txt": "new"}
    edited = [one for one in client.updates if one.get("toolCallId") == "call_1" and "content" in one]
    assert [one["content"] for one in edited] == [
        [{"type": "diff", "path": f"{CWD}/a.txt", "oldText": "one\ntwo\n", "newText": "one\n2\n"}]
    ]
    assert edited[0]["locations"] == [{"path": f"{CWD}/a.txt", "line": 2}]
    assert client.statuses("call_1")[-1] == "completed"
    created = [one for one in client.updates if one.get("toolCallId") == "call_2" and "content" in one]
    assert created[0]["content"] == [{"type": "diff", "path": f"{CWD}/b.txt", "newText": "new"}]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"old_text": "nowhere", "new_text": "x"}, "old_text is not in"),
        ({"old_text": "", "new_text": "x"}, "old_text is not in"),
        ({"old_text": "a", "new_text": "x"}, "3 times: give more"),
    ],
)
async def test_an_edit_that_is_not_clear_changes_nothing(arguments: dict[str, str], complaint: str) -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.files[f"{CWD}/a.txt"] = "a a a"
    async with connected(calls(call("edit_file", path="a.txt", **arguments)), client) as talk:
        [said] = await outputs(talk)
    assert said.startswith("FAILED")
    assert complaint in said
    assert client.files == {f"{CWD}/a.txt": "a a a"}
    assert client.statuses("call_1")[-1] == "failed"


async def test_all_places_are_replaced_if_that_is_said() -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.files[f"{CWD}/a.txt"] = "a a a"
    agent = calls(call("edit_file", path="a.txt", old_text="a", new_text="b", replace_all=True))
    async with connected(agent, client) as talk:
        assert await outputs(talk) == [f"Replaced 3 places in {CWD}/a.txt."]
    assert client.files == {f"{CWD}/a.txt": "b b b"}


async def test_a_command_runs_in_a_terminal_that_the_user_sees() -> None:
    client = Client(s.ClientCapabilities(terminal=True))
    client.command = lambda command: Terminal(command, "1 failed\n", exit_code=1)
    async with connected(calls(call("run_command", command="make test")), client) as talk:
        assert await outputs(talk) == ["1 failed\n[exit code 1]"]
    terminal = client.terminals["terminal-1"]
    assert terminal.command == "make test"
    assert terminal.released
    assert not terminal.killed
    [asked] = client.asked
    assert (asked["title"], asked["kind"]) == ("make test", "execute")
    shown = [
        one["content"] for one in client.updates if one.get("toolCallId") == "call_1" and "content" in one
    ]
    assert shown == [[{"type": "terminal", "terminalId": "terminal-1"}]]


async def test_a_command_in_a_terminal_is_ended_when_its_time_is_over() -> None:
    client = Client(s.ClientCapabilities(terminal=True))
    client.command = lambda command: Terminal(command, "so far\n")
    agent = calls(call("run_command", command="sleep 600", timeout_seconds=0.2))
    async with connected(agent, client) as talk:
        assert await outputs(talk) == ["so far\n[stopped after 0.2 s, its time limit]"]
    assert client.terminals["terminal-1"].killed
    assert client.terminals["terminal-1"].released


async def test_much_is_given_a_piece_at_a_time() -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.files[f"{CWD}/long.txt"] = "".join(f"{number}\n" for number in range(1, LINES + 10))
    client.files[f"{CWD}/wide.txt"] = "one\n" + "x" * 2 * CHARACTERS
    agent = calls(call("read_file", path="long.txt"), call("read_file", path="wide.txt"))
    async with connected(agent, client) as talk:
        long, wide = await outputs(talk)
    assert long.endswith(f"\n{LINES}\n[there is more: read on from line {LINES + 1}]")
    assert len(wide) < CHARACTERS + 100
    assert wide.endswith(f"[cut after {CHARACTERS} characters: read on from line 2]")


async def test_lines_are_counted_as_the_client_counts_them() -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.files[f"{CWD}/pages.txt"] = "".join(f"{number}\x0c\u2028\n" for number in range(1, LINES + 1))
    client.read_text_file = reader(client)  # type: ignore[method-assign]
    async with connected(calls(call("read_file", path="pages.txt")), client) as talk:
        [said] = await outputs(talk)
    assert said == client.files[f"{CWD}/pages.txt"]


@on_this_machine
async def test_lines_are_counted_in_the_same_way_here(tmp_path: Path) -> None:
    (tmp_path / "pages.txt").write_text("one\x0c\u2028 still one\ntwo\nthree")
    agent = calls(
        call("read_file", path="pages.txt", line=2, limit=1), call("read_file", path="pages.txt", line=3)
    )
    async with connected(agent, cwd=str(tmp_path)) as talk:
        assert await outputs(talk) == ["two\n[there is more: read on from line 3]", "three"]


def reader(client: Client) -> Any:
    async def read(
        session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> s.ReadTextFileResponse:
        lines = client.files[path].split("\n")[(line or 1) - 1 :]
        return s.ReadTextFileResponse(content="\n".join(lines[:limit]))

    return read


async def test_a_line_that_is_too_long_is_cut_and_the_next_one_named() -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.files[f"{CWD}/wide.txt"] = "one\n" + "x" * (CHARACTERS + 1) + "\n" + "y" * (CHARACTERS + 1)
    agent = calls(
        call("read_file", path="wide.txt", line=2), call("read_file", path="wide.txt", line=3, limit=1)
    )
    async with connected(agent, client) as talk:
        second, third = await outputs(talk)
    assert f"[line 2 is cut after {CHARACTERS} characters: " in second
    assert second.endswith("read on from line 3]")
    assert f"[line 3 is cut after {CHARACTERS} characters: " in third
    assert third.endswith("it is the last one]")


# Where they may work


OUTSIDE = ["/etc/hostname", "../other/a.txt", "/projects/a.txt", "sub/../../a.txt", "/"]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_a_path_that_leads_out_of_the_session_is_refused(path: str) -> None:
    client = Client(s.ClientCapabilities(fs=FILES, terminal=True))
    agent = calls(
        call("read_file", path=path),
        call("write_file", path=path, content="x"),
        call("edit_file", path=path, old_text="a", new_text="b"),
        call("run_command", command="true", cwd=path),
    )
    async with connected(agent, client) as talk:
        for said in await outputs(talk):
            assert f"{path!r} is not in {CWD}: " in said
    assert client.requests == []
    assert client.terminals == {}


async def test_additional_directories_are_of_the_session_too() -> None:
    client = Client(s.ClientCapabilities(fs=FILES))
    client.files["/library/a.txt"] = "there"
    async with connected(calls(call("read_file", path="/library/a.txt")), client, cwd=None) as talk:
        answer = await talk.conn.new_session(cwd=CWD, additional_directories=["/library"], mcp_servers=[])
        talk.session_id = answer.session_id
        assert await outputs(talk) == ["there"]


@on_this_machine
async def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (inside / "file").symlink_to(outside / "secret.txt")
    (inside / "directory").symlink_to(outside)
    (inside / "dangling").symlink_to(outside / "new.txt")
    (inside / "real.txt").write_text("mine")
    (inside / "fine").symlink_to(inside / "real.txt")
    (tmp_path / "way").symlink_to(inside)
    agent = calls(
        call("read_file", path="file"),
        call("read_file", path="directory/secret.txt"),
        call("write_file", path="directory/new.txt", content="x"),
        call("write_file", path="dangling", content="x"),
        call("read_file", path="fine"),
        call("read_file", path=str(tmp_path / "way" / "real.txt")),
    )
    async with connected(agent, cwd=str(tmp_path / "way")) as talk:
        *refused, one, other = await outputs(talk)
    assert all("the file tools work only there" in said for said in refused)
    assert (one, other) == ("mine", "mine")
    assert sorted(os.listdir(outside)) == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "secret"


# On this machine


@on_this_machine
async def test_files_here_are_read_and_written_if_the_client_has_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    agent = Agent(
        name="helper",
        model=ScriptedModel(
            [
                call("read_file", path="a.txt"),
                call("edit_file", path="a.txt", old_text="two", new_text="zwei"),
                call("write_file", path="new/b.txt", content="ä\n"),
                call("write_file", path="a.txt", content="short\n"),
                "done",
            ]
        ),
        tools=TOOLS,
    )
    async with connected(agent, cwd=str(tmp_path)) as talk:
        said = await outputs(talk)
        assert said[0] == "one\r\ntwo\r\n"
    diffs = [
        one["content"][0]
        for one in talk.client.updates
        if one.get("content") and one.get("toolCallId") == "call_2"
    ]
    assert diffs[0]["newText"] == "one\r\nzwei\r\n"
    assert (tmp_path / "a.txt").read_bytes() == b"short\n"
    assert (tmp_path / "new" / "b.txt").read_text() == "ä\n"


@on_this_machine
async def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 9 << 20)
    agent = calls(
        *(call("read_file", path=name) for name in ("binary", "directory", "pipe", "huge")),
        call("write_file", path="pipe", content="x"),
        call("write_file", path="directory", content="x"),
    )
    async with connected(agent, cwd=str(tmp_path)) as talk:
        binary, directory, pipe, huge, *writes = await outputs(talk)
    assert "is not UTF-8 text" in binary
    assert "is a folder" in directory
    assert "is not a regular file" in pipe
    assert "at most 8388608 can be read" in huge
    assert all(said.startswith("FAILED") for said in writes)


@on_this_machine
async def test_a_command_here_says_what_it_printed_and_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    agent = calls(
        call("run_command", command="echo out; echo err >&2; exit 3"),
        call("run_command", command='basename "$PWD"', cwd="sub"),
        call("run_command", command="true"),
        call("run_command", command="kill -9 $$"),
        call("run_command", command="kill -35 $$"),  # a signal without a name
        call("run_command", command="cat"),
    )
    async with connected(agent, cwd=str(tmp_path)) as talk:
        assert await outputs(talk) == [
            "out\nerr\n[exit code 3]",
            "sub",
            "[no output]",
            "[killed by SIGKILL]",
            "[killed by signal 35]",
            "[no output]",
        ]


@on_this_machine
async def test_a_command_here_leaves_nothing_in_the_background(tmp_path: Path) -> None:
    command = "sleep 600 & echo $! > pid; echo done"
    async with connected(calls(call("run_command", command=command)), cwd=str(tmp_path)) as talk:
        assert await outputs(talk) == ["done"]
    assert is_gone(int((tmp_path / "pid").read_text()))


@on_this_machine
async def test_a_command_here_is_ended_when_its_time_is_over(tmp_path: Path) -> None:
    command = "echo begun; exec sleep 600"
    agent = calls(call("run_command", command=command, timeout_seconds=0.2))
    async with connected(agent, cwd=str(tmp_path)) as talk:
        [said] = await outputs(talk)
    assert said.endswith("[stopped after 0.2 s, its time limit]")


@on_this_machine
async def test_of_much_output_the_end_is_given(tmp_path: Path) -> None:
    command = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"
    async with connected(calls(call("run_command", command=command)), cwd=str(tmp_path)) as talk:
        [said] = await outputs(talk)
    assert said.startswith("[the beginning of the output is left out]\n")
    assert said.endswith("line 19999")
    assert len(said) < 65_000


# Outside of ACP


@on_this_machine
async def test_outside_of_acp_they_work_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = Agent(
        name="helper",
        model=ScriptedModel(
            [
                call("write_file", path="a.txt", content="one"),
                call("edit_file", path="a.txt", old_text="one", new_text="two"),
                call("run_command", command="cat a.txt"),
                call("read_file", path="a.txt"),
                call("read_file", path="/etc/hostname"),
                "done",
            ]
        ),
        tools=TOOLS,
    )

    async def yes(context: Any, tool: FunctionTool) -> bool:
        asked.append(tool.name)
        return True

    asked: list[str] = []
    result = await Runner.run(agent, "go", run_config=RunConfig(approve=yes))
    said = [item.output for item in result.new_items if isinstance(item, ToolResult)]
    assert said[2:4] == ["two", "two"]
    assert "is not in" in said[4]
    assert asked == ["write_file", "edit_file", "run_command"]


async def test_a_client_that_cannot_do_it_says_so_and_the_turn_goes_on() -> None:
    class Broken(Client):
        async def write_text_file(self, session_id: str, path: str, content: str, **kwargs: Any) -> None:
            from quiesce.acp import RequestError

            raise RequestError.internal_error({"details": "the disk is full"})

    client = Broken(s.ClientCapabilities(fs=FILES))
    async with connected(calls(call("write_file", path="a.txt", content="x")), client) as talk:
        [said] = await outputs(talk)
    assert "the client could not write" in said
    assert "the disk is full" in said


async def test_tools_of_several_calls_run_at_once() -> None:
    client = Client(s.ClientCapabilities(terminal=True))
    agent = calls(call("run_command", command="one"), call("run_command", command="two"))

    async def end_both() -> None:
        while len(client.terminals) < 2:
            await anyio.sleep(0.01)
        for terminal in client.terminals.values():
            terminal.exit_code = 0
            terminal.ended.set()

    async with connected(agent, client) as talk, anyio.create_task_group() as tasks:
        tasks.start_soon(end_both)
        assert await outputs(talk) == ["[no output]", "[no output]"]


def test_how_a_tool_is_shown_is_forgotten_with_the_tool() -> None:
    def make() -> FunctionTool:
        @function_tool
        async def search(query: str) -> str:
            """Search."""
            return query

        return shown_as(search, "search")

    kept = make()
    gc.collect()
    before = len(_displays)
    for _ in range(10):
        make()
    gc.collect()
    assert len(_displays) == before
    agent = Agent(name="helper", model=ScriptedModel([]), tools=[replace(kept, name="find")])
    assert display_of("find", agent).kind == "search"
