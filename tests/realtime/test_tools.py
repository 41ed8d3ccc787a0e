"""Tool calls of a session: each is answered once, however it ends, and none of them ends the session."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import CancelToken, Grace, Scope
from quiesce.agents import (
    FunctionTool,
    MCPServerStdio,
    RunContextWrapper,
    ToolContext,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailTripwireTriggered,
    UserError,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from quiesce.realtime import RealtimeAgent, RealtimeModelToolCallEvent
from quiesce.realtime.testing import Speech
from quiesce.testing import call
from tests.agents import process_tools
from tests.kernel.processes import is_gone
from tests.kernel.temperaments import on_trio, virtual_worlds
from tests.realtime.process_tools import settle, tree_of
from tests.realtime.scenes import Part, StrictModel, agent, outputs, scripted, session_of, talking, until

pytestmark = virtual_worlds  # how fast somebody speaks is a matter of time


@function_tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


# How they are called


async def test_tools_run_beside_each_other_and_beside_the_conversation() -> None:
    meeting = anyio.Event()

    @function_tool
    async def waits() -> str:
        await meeting.wait()
        return "met"

    @function_tool
    async def comes() -> str:
        meeting.set()
        return "came"

    session = session_of([[call("waits"), call("comes"), "meanwhile"], "one", "two"], waits, comes)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 3)
        assert sorted(outputs(session)) == ["came", "met"]


async def test_a_tool_that_takes_its_time_holds_nothing_up() -> None:
    tool = Part("tool")
    session = session_of([[call("tool"), "while it works"], "something else"], tool.tool)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        await session.send_message("and?")
        await heard.until_kind("agent_end", 2)
        assert not tool.cleaning


async def test_without_async_tool_calls_the_model_waits_for_the_tool() -> None:
    go = anyio.Event()

    @function_tool
    async def waits() -> str:
        await go.wait()
        return "done"

    session = session_of([[call("waits"), "after it"], "and on"], waits, config={"async_tool_calls": False})
    async with talking(session, "go") as heard:
        await heard.until_kind("tool_start")
        await anyio.sleep(0.02)
        assert heard.of("audio") == []
        go.set()
        await heard.until_kind("agent_end", 2)
        ended = heard.events.index(heard.of("tool_end")[0])
        assert ended < heard.events.index(heard.of("audio")[0])
        assert outputs(session) == ["done"]


async def test_what_a_tool_returns_is_sent_as_text() -> None:
    @function_tool
    async def data() -> dict[str, Any]:
        return {"degrees": [1, 2]}

    @function_tool
    async def nothing() -> None:
        return None

    session = session_of([[call("data"), call("nothing")], "a", "b"], data, nothing)
    async with talking(session, "go") as heard:
        await heard.until_kind("tool_end", 2)
        assert sorted(outputs(session)) == ["", '{"degrees":[1,2]}']
        assert {event.tool.name: event.output for event in heard.of("tool_end")} == {
            "data": {"degrees": [1, 2]},
            "nothing": None,
        }


async def test_a_tool_is_given_the_context_and_knows_its_call() -> None:
    seen: list[Any] = []

    @function_tool
    async def look(context: ToolContext[Any]) -> str:
        seen.append((context.context, context.tool_name, context.tool_call_id, context.agent.name))  # type: ignore[union-attr]
        return ""

    @function_tool
    async def look_too(context: RunContextWrapper[Any]) -> str:
        seen.append(context.context)
        return ""

    session = session_of([[call("look"), call("look_too")], "a", "b"], look, look_too, context="mine")
    async with talking(session, "go") as heard:
        await heard.until_kind("tool_end", 2)
    assert seen == [("mine", "look", "call_1", "agent"), "mine"]


@pytest.mark.real_time
async def test_a_sync_tool_runs_in_a_thread_and_knows_when_it_is_cancelled() -> None:
    begun, cancelled = threading.Event(), threading.Event()
    home = threading.get_ident()

    @function_tool
    def works(token: CancelToken) -> str:
        assert threading.get_ident() != home
        begun.set()
        if token.wait_sync(10):
            cancelled.set()
        return ""

    session = session_of([call("works")], works)
    async with talking(session, "go"):
        await until(begun.is_set)
    assert cancelled.is_set()
    assert session.report is not None
    assert session.report.clean, str(session.report)


@pytest.mark.real_time
async def test_a_sync_tool_answers_from_its_thread() -> None:
    @function_tool
    def add(a: int, b: int) -> int:
        return a + b

    session = session_of([call("add", a=1, b=2), "three"], add)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert outputs(session) == ["3"]


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_tool_in_a_process_of_its_own_is_ended_with_the_session(tmp_path: Path) -> None:
    told = tmp_path / "told"
    turn = [call("mirror", point={"x": 1, "y": 2}), call("settle", told=str(told))]
    session = session_of([turn, "ok"], process_tools.mirror, settle)
    async with talking(session, "go") as heard:
        ended = await heard.until_kind("tool_end")
        point, pid = ended.output
        assert (point.x, point.y) == (2, 1)
        assert pid != os.getpid()
        tree = await tree_of(told)
    assert all(is_gone(process) for process in [pid, *tree])


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_tool_whose_process_is_killed_has_failed_and_the_session_goes_on(tmp_path: Path) -> None:
    told = tmp_path / "told"
    session = session_of([call("settle", told=str(told)), "Sorry."], settle)
    async with talking(session, "go") as heard:
        tree = await tree_of(told)
        os.kill(tree[0], signal.SIGKILL)
        await heard.until_kind("agent_end", 2)
        assert len(outputs(session)) == 1
        assert "SIGKILL" in outputs(session)[0]
    assert all(is_gone(process) for process in tree)


# How they end


@pytest.mark.parametrize("how", ["returned", "rejected", "guarded"])
async def test_a_call_whose_output_cannot_be_sent_is_answered_without_one(how: str) -> None:
    unsendable = "caf\udce9.txt"  # a file name that is no UTF-8, as the os module gives it

    @tool_output_guardrail
    async def guard(data: Any) -> ToolGuardrailFunctionOutput:
        if how == "guarded":
            return ToolGuardrailFunctionOutput.reject_content(unsendable)
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_output_guardrails=[guard], needs_approval=how == "rejected")
    async def newest() -> str:
        return unsendable if how == "returned" else "plain.txt"

    session = session_of((), newest, model=StrictModel([call("newest"), "Sorry."]))
    async with talking(session, "go") as heard:
        if how == "rejected":
            asked = await heard.until_kind("tool_approval_required")
            await session.reject_tool_call(asked.call_id, rejection_message=unsendable)
        await heard.until_kind("agent_end", 2)
        assert outputs(session) == ["The tool has failed, and there is no output."]
        [failed] = heard.of("error")
        assert "cannot be sent" in str(failed.error)
        assert heard.of("tool_end") == []


async def test_a_tool_that_fails_is_answered_with_what_is_said_of_its_failure() -> None:
    @function_tool
    async def fails() -> str:
        raise LookupError("no such city")

    session = session_of([call("fails"), "Sorry."], fails)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert len(outputs(session)) == 1
        assert "no such city" in outputs(session)[0]
        assert heard.of("error") == []


async def test_a_tool_that_must_not_fail_is_an_error_event_and_is_answered_all_the_same() -> None:
    @function_tool(failure_error_function=None)
    async def fails() -> str:
        raise LookupError("no such city")

    session = session_of([call("fails"), "Sorry."], fails)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert [str(event.error) for event in heard.of("error")] == ["no such city"]
        assert len(outputs(session)) == 1
        assert "no such city" not in outputs(session)[0]
        assert heard.of("tool_end") == []


async def test_what_cannot_say_why_a_tool_failed_is_an_event_too() -> None:
    def explain(context: Any, error: Exception) -> str:
        raise ValueError("no words")

    @function_tool(failure_error_function=explain)
    async def fails() -> str:
        raise LookupError("no such city")

    session = session_of([call("fails"), "Sorry."], fails)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert [str(event.error) for event in heard.of("error")] == ["no words"]
        assert len(outputs(session)) == 1


@pytest.mark.parametrize(
    "kind", [SystemExit, asyncio.CancelledError, GeneratorExit], ids=lambda kind: kind.__name__
)
async def test_a_tool_that_raises_what_no_tool_should_is_answered_and_the_session_goes_on(
    kind: type[BaseException],
) -> None:
    """A client library of its own may raise a cancel that nobody has asked for."""
    if on_trio() and kind is asyncio.CancelledError:
        return  # trio's cannot be made by anybody

    @function_tool
    async def odd() -> str:
        await anyio.sleep(0)
        raise kind()

    session = session_of([call("odd"), "Sorry."], odd)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert len(outputs(session)) == 1
        assert len(heard.of("error")) == 1
        await session.send_audio(b"\0\0")


async def test_a_tool_that_takes_too_long_is_stopped_and_the_model_is_told() -> None:
    slow = Part("slow")

    @function_tool(timeout=0.05, name_override="slow")
    async def takes_long() -> str:
        await slow.work()
        return ""

    session = session_of([call("slow"), "Sorry."], takes_long)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert slow.clean
        assert len(outputs(session)) == 1
        assert "0.05" in outputs(session)[0]


async def test_a_tool_that_must_not_take_so_long_is_an_error_event() -> None:
    @function_tool(timeout=0.02, timeout_behavior="raise_exception")
    async def slow() -> str:
        await anyio.Event().wait()
        return ""

    session = session_of([call("slow"), "Sorry."], slow)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert "slow" in str(heard.of("error")[0].error)
        assert len(outputs(session)) == 1


async def test_arguments_that_make_no_sense_are_told_to_the_model() -> None:
    session = session_of([call("echo", words=1), "Sorry."], echo)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert len(outputs(session)) == 1
        assert "text" in outputs(session)[0]


async def test_a_tool_that_does_not_exist_is_an_error_event_and_is_answered_with_those_that_do() -> None:
    session = session_of([call("fly"), "I cannot."], echo)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert "'fly'" in str(heard.of("error")[0].error)
        assert outputs(session) == ["There is no tool named 'fly'. The tools are: echo."]


async def test_a_call_that_is_told_twice_is_made_once() -> None:
    tool = Part("tool")
    session = session_of([Speech("go", audio=b"")], tool.tool)
    async with talking(session) as heard:
        for _ in range(2):
            await scripted(session).emit(RealtimeModelToolCallEvent("tool", "call_7", "{}"))
        await tool.begun.wait()
        assert tool.calls == 1
        assert len(heard.of("tool_start")) <= 1


async def test_an_output_that_cannot_be_sent_is_an_event_and_the_session_goes_on() -> None:
    session = session_of([call("echo", text="a"), call("echo", text="b"), "done"], echo)
    async with talking(session) as heard:
        await session.send_message("go")
        scripted(session).send_error = OSError("no buffer space")
        failed = await heard.until_kind("error")
        assert str(failed.error) == "no buffer space"
        scripted(session).send_error = None
        await session.send_message("again")
        await heard.until_kind("tool_end")
        assert outputs(session) == ["b"]


async def test_nothing_is_kept_of_calls_that_have_ended() -> None:
    session = session_of([[call("echo", text=str(number)) for number in range(20)], *["ok"] * 20], echo)
    async with talking(session, "go") as heard:
        await heard.until_kind("tool_end", 20)
        await heard.until(lambda: len(heard.of("agent_end")) == 21)
        assert session._task.calls._calls == {}
        assert not session._task.work.children


# Guardrails of tools


async def test_guardrails_of_a_tool_look_at_its_arguments_and_at_its_output() -> None:
    seen: list[Any] = []

    @tool_input_guardrail
    async def before(data: Any) -> ToolGuardrailFunctionOutput:
        seen.append(data.context.tool_arguments)
        if "secret" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("not that")
        return ToolGuardrailFunctionOutput.allow()

    @tool_output_guardrail
    async def after(data: Any) -> ToolGuardrailFunctionOutput:
        seen.append(data.output)
        if "key" in data.output:
            return ToolGuardrailFunctionOutput.reject_content("[removed]")
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_input_guardrails=[before], tool_output_guardrails=[after])
    async def repeat(text: str) -> str:
        return text

    turns = [call("repeat", text=text) for text in ("secret", "key", "plain")]
    session = session_of([*turns, "done"], repeat)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 4)
        assert outputs(session) == ["not that", "[removed]", "plain"]
        assert seen == ['{"text":"secret"}', '{"text":"key"}', "key", '{"text":"plain"}', "plain"]
        assert len(heard.of("tool_start")) == 2


async def test_a_tools_guardrail_that_says_no_is_an_event_and_the_call_is_answered() -> None:
    @tool_input_guardrail
    async def never(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.raise_exception()

    @function_tool(tool_input_guardrails=[never])
    async def repeat(text: str) -> str:
        raise AssertionError

    session = session_of([call("repeat", text="a"), "Sorry."], repeat)
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert isinstance(heard.of("error")[0].error, ToolInputGuardrailTripwireTriggered)
        assert len(outputs(session)) == 1


# Approval


def guarded_tool(ran: list[str], needs_approval: Any = True) -> Any:
    @function_tool(needs_approval=needs_approval)
    async def delete(path: str) -> str:
        ran.append(path)
        return f"deleted {path}"

    return delete


async def test_a_tool_that_needs_approval_waits_for_it() -> None:
    ran: list[str] = []
    tool = guarded_tool(ran)
    session = session_of([call("delete", path="/tmp"), "Done."], tool)
    async with talking(session, "go") as heard:
        asked = await heard.until_kind("tool_approval_required")
        assert (asked.tool, asked.call_id, asked.arguments) == (tool, "call_1", '{"path":"/tmp"}')
        await heard.until_kind("agent_end")
        assert ran == []
        assert heard.of("tool_start") == []
        await session.approve_tool_call(asked.call_id)
        await heard.until_kind("agent_end", 2)
        assert ran == ["/tmp"]
        assert outputs(session) == ["deleted /tmp"]


@pytest.mark.parametrize("message", [None, "Not on my watch."])
async def test_a_rejected_call_is_answered_and_not_made(message: str | None) -> None:
    ran: list[str] = []
    session = session_of([call("delete", path="/tmp"), "Fine."], guarded_tool(ran))
    async with talking(session, "go") as heard:
        asked = await heard.until_kind("tool_approval_required")
        await session.reject_tool_call(asked.call_id, rejection_message=message)
        await heard.until_kind("agent_end", 2)
        assert ran == []
        assert len(outputs(session)) == 1
        assert message is None or outputs(session) == [message]
        assert heard.of("tool_start") == []


@pytest.mark.parametrize("approved", [True, False])
async def test_always_holds_for_the_session_and_for_those_that_wait(approved: bool) -> None:
    ran: list[str] = []
    turns = [[call("delete", path="/a"), call("delete", path="/b")], "x", "y", call("delete", path="/c"), "z"]
    session = session_of(turns, guarded_tool(ran))
    async with talking(session, "go") as heard:
        asked = await heard.until_kind("tool_approval_required", 2)
        decide = session.approve_tool_call if approved else session.reject_tool_call
        await decide(asked.call_id, always=True)
        await heard.until(lambda: len(outputs(session)) == 2)
        await session.send_message("again")
        await heard.until_kind("agent_end", 5)
        assert len(outputs(session)) == 3
        assert sorted(ran) == (["/a", "/b", "/c"] if approved else [])
        assert len(heard.of("tool_approval_required")) == 2
    later = session_of([call("delete", path="/d")], guarded_tool(ran))
    async with talking(later, "go") as heard:  # another session knows nothing of it
        await heard.until_kind("tool_approval_required")


async def test_who_decides_on_what_does_not_wait_is_told_so() -> None:
    ran: list[str] = []
    session = session_of([call("delete", path="/a"), "x"], guarded_tool(ran))
    async with talking(session) as heard:
        with pytest.raises(UserError, match="no tool call 'call_1' waits for approval"):
            await session.approve_tool_call("call_1")
        await session.send_message("go")
        await heard.until_kind("tool_approval_required")
        with pytest.raises(UserError, match=r"no tool call 'call_2' .*these do: call_1"):
            await session.reject_tool_call("call_2")
        await session.approve_tool_call("call_1")
        with pytest.raises(UserError, match="decided"):  # before the call has gone on, too
            await session.reject_tool_call("call_1")
        await heard.until_kind("tool_end")
        with pytest.raises(UserError, match="decided"):
            await session.approve_tool_call("call_1")
        assert ran == ["/a"]


async def test_who_needs_approval_may_depend_on_the_arguments() -> None:
    ran: list[str] = []

    async def outside_of_tmp(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return not arguments["path"].startswith("/tmp")

    turns = [[call("delete", path="/tmp/a"), call("delete", path="/etc")], "x"]
    session = session_of(turns, guarded_tool(ran, outside_of_tmp))
    async with talking(session, "go") as heard:
        asked = await heard.until_kind("tool_approval_required")
        await heard.until_kind("tool_end")
        assert asked.arguments == '{"path":"/etc"}'
        assert ran == ["/tmp/a"]


async def test_a_question_whether_approval_is_needed_that_fails_is_answered() -> None:
    def ask(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        raise LookupError("no such policy")

    ran: list[str] = []
    session = session_of([call("delete", path="/a"), "x"], guarded_tool(ran, ask))
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert [str(event.error) for event in heard.of("error")] == ["no such policy"]
        assert (len(outputs(session)), ran) == (1, [])


async def test_a_session_may_be_closed_while_a_call_waits_for_approval() -> None:
    ran: list[str] = []
    session = session_of([call("delete", path="/a")], guarded_tool(ran), config={"async_tool_calls": False})
    async with talking(session, "go") as heard:
        asked = await heard.until_kind("tool_approval_required")
        report = await session.close()
        assert report.clean, str(report)
        with pytest.raises(UserError, match="closed"):
            await session.approve_tool_call(asked.call_id)
    assert ran == []
    assert outputs(session) == []


async def test_a_call_that_waits_for_approval_holds_up_nothing_even_without_async_tool_calls() -> None:
    ran: list[str] = []
    turns = [[call("delete", path="/a"), "may I?"], "done"]
    session = session_of(turns, guarded_tool(ran), config={"async_tool_calls": False})
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        await session.approve_tool_call("call_1")
        await heard.until_kind("agent_end", 2)
        assert ran == ["/a"]


# MCP


MCP_SERVER = Path(__file__).parents[1] / "agents" / "mcp_server.py"


def mcp(*modes: str) -> MCPServerStdio:
    return MCPServerStdio({"command": sys.executable, "args": [str(MCP_SERVER), *modes]}, name="misbehaving")


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_server_of_tools_is_connected_and_closed_with_the_session() -> None:
    session = session_of([[call("pid"), call("work")], "ok"], mcp_servers=[mcp()])
    async with talking(session, "go") as heard:
        ended = await heard.until_kind("tool_end")
        pid = int(ended.output)
        assert not is_gone(pid)
        options: Any = scripted(session).options
        assert "echo" in [tool.name for tool in options["initial_model_settings"]["tools"]]
    assert is_gone(pid)
    assert session.report is not None
    assert session.report.clean, str(session.report)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_server_of_tools_that_an_agent_brings_along_is_closed_with_the_session_too() -> None:
    session = session_of([call("pid"), "ok"])
    second = RealtimeAgent("second", mcp_servers=[mcp()])
    async with talking(session) as heard:
        await session.update_agent(second)
        await session.send_message("go")
        ended = await heard.until_kind("tool_end")
        await session.update_agent(second)
    assert is_gone(int(ended.output))


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_what_is_always_approved_of_a_server_is_so_when_its_tools_were_listed_anew() -> None:
    server = mcp()
    server.needs_approval = True
    other = mcp()
    other.needs_approval = True
    turns = [call("pid"), "a", call("pid"), "b", call("pid"), "c"]
    session = session_of(turns, mcp_servers=[server])
    async with talking(session, "go") as heard:
        asked = await heard.until_kind("tool_approval_required")
        await session.approve_tool_call(asked.call_id, always=True)
        await heard.until_kind("agent_end", 2)
        await session.update_agent(RealtimeAgent("second", mcp_servers=[server]))
        await session.send_message("again")
        await heard.until_kind("tool_end", 2)
        await heard.until_kind("agent_end", 4)
        assert len(heard.of("tool_approval_required")) == 1
        await session.update_agent(RealtimeAgent("third", mcp_servers=[other]))
        await session.send_message("again")
        await heard.until_kind(
            "tool_approval_required", 2
        )  # a tool of that name of another server is another


def children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_server_of_tools_that_is_being_connected_when_the_session_is_closed_is_gone() -> None:
    """It belongs to the session, whoever waits for it."""
    session = session_of()
    async with session, Scope(on_error="report", on_child_error=lambda handle, error: None) as scope:
        before = set(children())
        updating = scope.spawn(session.update_agent, RealtimeAgent("second", mcp_servers=[mcp("silent")]))
        await until(lambda: set(children()) - before)
        started = time.monotonic()
        report = await session.close()
        assert time.monotonic() - started < 15
        assert report.clean, str(report)
        assert not set(children()) - before
        await updating.wait()


class QuickServer:
    """Stands for an MCP server that takes no time."""

    def __init__(self) -> None:
        self.connected = 0

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        self.connected += 1
        try:
            yield
        finally:
            self.connected -= 1

    async def list_tools(self) -> list[FunctionTool]:
        return []


@pytest.mark.real_time
async def test_no_mcp_server_is_connected_by_somebody_who_outstays_the_session() -> None:
    server: Any = QuickServer()
    asked = anyio.Event()
    is_closed: list[bool] = []

    async def instructions(context: Any, agent: Any) -> str:
        asked.set()
        with anyio.CancelScope(shield=True):
            while not is_closed:
                try:
                    await anyio.sleep(0.05)
                except anyio.get_cancelled_exc_class():  # deaf
                    pass
        return "Be brief."

    grace = Grace(cancel=0.05, terminate=0.05, kill=0.05)
    session = session_of(grace=grace)
    await session.enter()
    other: RealtimeAgent[Any] = RealtimeAgent("other", instructions, mcp_servers=[server])
    async with Scope("users", on_error="report", on_child_error=lambda *_: None) as scope:
        scope.spawn(session.update_agent, other)
        await asked.wait()
        report = await session.close()
        is_closed.append(True)
        assert not report.clean
    assert (await session.close()).clean
    assert server.connected == 0


async def test_always_is_meant_for_one_tool_not_for_all_of_its_name() -> None:
    ran: list[str] = []

    def delete(whose: str) -> FunctionTool:
        @function_tool(name_override="delete", needs_approval=True)
        async def tool() -> str:
            ran.append(whose)
            return "done"

        return tool

    other = agent(delete("other"), name="other")
    asked: list[str] = []
    turns = [call("delete"), call("transfer_to_other"), call("delete"), "Bye."]
    async with session_of(turns, delete("first"), name="first", handoffs=[other]) as session:
        await session.send_message("Hello")
        async for event in session:
            if event.type == "tool_approval_required":
                asked.append(event.agent.name)
                await session.approve_tool_call(event.call_id, always=True)
            elif event.type == "audio_end":
                break
    assert asked == ["first", "other"]
    assert ran == asked
