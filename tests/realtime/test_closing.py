"""However a session is closed, and whoever closes it: nothing new begins, tools and guardrails end, then the model does."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from quiesce import CancelToken, Grace, Scope, ScopeClosed, StopReport
from quiesce.agents import GuardrailFunctionOutput, UserError, function_tool, output_guardrail
from quiesce.realtime import (
    RealtimeAgent,
    RealtimeModelEndOfStreamEvent,
    RealtimeModelExceptionEvent,
    RealtimeModelSendSessionUpdate,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeSession,
    RealtimeSessionClosed,
    realtime_handoff,
)
from quiesce.realtime.testing import ScriptedRealtimeModel, Speech
from quiesce.testing import call
from tests.kernel.processes import is_gone
from tests.kernel.temperaments import Stubborn, an_innocent_bystander, turns, virtual_worlds
from tests.kernel.test_scope_shutdown import Run, everywhere
from tests.realtime.process_tools import settle, tree_of
from tests.realtime.scenes import (
    EAGER_GUARDS,
    LONG,
    Part,
    Reading,
    agent,
    inputs,
    interrupts,
    outputs,
    reading,
    scripted,
    session_of,
    talking,
    until,
)


def working(*parts: Part, **options: Any) -> RealtimeSession:
    """A session of which each part is a tool at work as soon as it is told something."""
    return session_of([[call(part.name) for part in parts]], *(part.tool for part in parts), **options)


async def begun(session: RealtimeSession, *parts: Part) -> RealtimeSession:
    await session.enter()
    await session.send_message("go")
    for part in parts:
        await part.begun.wait()
    return session


# By whom, and how often


async def test_closed_by_another_task_than_the_one_that_opened_it() -> None:
    tool = Part("tool")
    session = working(tool)
    async with Scope() as scope:
        await scope.spawn(begun, session, tool).wait()
        closing = scope.spawn(session.close)
        await closing.wait()
        report = closing.result()
    assert tool.clean
    assert report.clean, str(report)
    assert report.reason is not None
    assert report.reason.kind == "user"


async def test_closed_twice_and_once_more_after_that() -> None:
    tool = Part("tool")
    session = await begun(working(tool), tool)
    first = await session.close(reason="enough")
    second = await session.close(reason="again")
    assert first.clean
    assert second.clean
    assert second.reason is not None
    assert second.reason.message == "enough"
    assert scripted(session).closes == 1


async def test_closed_by_many_at_once_all_get_the_report_when_it_is_over() -> None:
    tool = Part("tool")
    session = await begun(working(tool), tool)
    seen: list[bool] = []

    async def close() -> None:
        report = await session.close()
        seen.append(report.clean and tool.clean and not scripted(session).connected)

    async with Scope() as scope:
        for _ in range(5):
            scope.spawn(close)
    assert seen == [True] * 5
    assert scripted(session).closes == 1


async def test_a_session_is_used_once() -> None:
    session = session_of()
    async with session:
        with pytest.raises(UserError, match="opened before"):
            await session.enter()
    with pytest.raises(UserError, match="opened before"):
        await session.enter()


async def test_closing_disturbs_no_bystander() -> None:
    tool = Part("tool", tidy=0.03)
    async with an_innocent_bystander():
        await (await begun(working(tool), tool)).close()


async def test_closed_by_one_of_its_own_tools() -> None:
    reports: list[StopReport] = []
    other = Part("other")
    session: RealtimeSession

    @function_tool
    async def hang_up() -> str:
        reports.append(await session.close(reason="the user said goodbye"))
        return "bye"

    session = session_of([[call("other"), call("hang_up")]], hang_up, other.tool)
    async with session, reading(session) as heard:
        await session.send_message("bye")
        await heard.until_end()
    assert other.clean
    assert len(reports) == 1
    assert reports[0].reason is not None
    assert reports[0].reason.message == "the user said goodbye"
    assert not scripted(session).connected
    assert session.report is not None
    assert session.report.clean, str(session.report)


async def test_a_tool_that_ends_in_the_step_after_a_close_asks_for_no_response() -> None:
    """The stop was asked for, and the session has not yet begun to leave."""
    sessions: list[RealtimeSession] = []
    is_closing = anyio.Event()

    @function_tool
    async def search() -> str:
        await is_closing.wait()
        return "found"

    @function_tool
    async def hang_up() -> str:
        is_closing.set()
        await sessions[0].close()
        return "bye"

    session = session_of([[call("search"), call("hang_up")]], search, hang_up)
    sessions.append(session)
    async with talking(session, "go") as heard:
        await heard.until_end()
    assert outputs(session) == []
    assert scripted(session).remaining == 0
    assert heard.error is None
    assert heard.of("error") == []


async def test_closed_by_one_of_its_own_guardrails() -> None:
    other = Part("other")
    session: RealtimeSession
    ended: list[str] = []

    async def hang_up(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        await other.begun.wait()
        await session.close()
        ended.append("guardrail")
        return GuardrailFunctionOutput(None, True)

    session = session_of(
        [[call("other"), LONG]],
        other.tool,
        output_guardrails=[output_guardrail(hang_up)],
        config=EAGER_GUARDS,
    )
    async with session, reading(session) as heard:
        await session.send_message("go")
        await heard.until_end()
    assert other.clean
    assert ended in (["guardrail"], [])  # its own cancel may come first
    assert not scripted(session).connected
    assert interrupts(session) == []


async def test_closed_in_the_loop_that_reads_it() -> None:
    tool = Part("tool")
    session = session_of([[call("tool"), "hello"]], tool.tool)
    await session.enter()
    await session.send_message("go")
    after: list[str] = []
    async for event in session:
        if session.closed:
            after.append(event.type)
        elif event.type == "audio":
            await tool.begun.wait()
            report = await session.close()
            assert report.clean
            assert tool.clean
    assert "tool_end" not in after


@pytest.mark.real_time
async def test_closed_from_a_thread() -> None:
    tool = Part("tool", tidy=0.01)
    session = await begun(working(tool), tool)
    thread = threading.Thread(target=session.cancel, args=("from a thread",))
    thread.start()
    async for _ in session:
        pass
    thread.join()
    report = await session.close()
    assert report.reason is not None
    assert report.reason.message == "from a thread"
    assert tool.clean


async def test_a_second_cancel_does_not_cut_a_clean_up() -> None:
    tool = Part("tool")
    session = await begun(working(tool), tool)
    session.cancel("one")
    await turns()
    session.cancel("two")
    report = await session.close()
    assert report.clean, str(report)
    assert tool.clean


# Whose cancel


async def test_under_a_timeout_the_clean_up_runs_to_its_end_and_the_timeout_is_raised() -> None:
    tool = Part("tool")
    session = await begun(working(tool), tool)
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.01):
            await session.close()
    assert tool.clean
    assert not scripted(session).connected
    assert session.report is not None
    assert session.report.clean


async def test_a_timeout_around_the_block_is_a_timeout_and_the_report_says_so() -> None:
    tool = Part("tool")
    session = working(tool)
    with pytest.raises(TimeoutError):
        with anyio.fail_after(None) as limit:
            async with session:
                await session.send_message("go")
                await tool.begun.wait()
                limit.deadline = anyio.current_time() + 0.05
                async for _ in session:
                    pass
    assert tool.clean
    assert session.report is not None
    assert session.report.reason is not None
    assert session.report.reason.kind in ("timeout", "cancelled")


async def test_nested_timeouts_while_it_closes() -> None:
    tool = Part("tool")
    session = await begun(working(tool), tool)
    with anyio.move_on_after(0.02) as outer, anyio.move_on_after(0.01) as inner:
        await session.close()
    assert inner.cancelled_caught or outer.cancelled_caught
    assert tool.clean
    assert (await session.close()).clean


@pytest.mark.worlds("asyncio", "asyncio-eager", "uvloop")
@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_task_that_is_cancelled_again_and_again_ends_with_its_cancel_when_all_is_over(
    times: int,
) -> None:
    tool = Part("tool")
    session = working(tool)

    async def use() -> None:
        async with session:
            await session.send_message("go")
            async for _ in session:
                pass

    task = asyncio.create_task(use())
    await tool.begun.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.001)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tool.clean
    assert not scripted(session).connected


async def test_the_body_fails_and_its_error_is_raised_when_all_is_over() -> None:
    tool = Part("tool")
    session = working(tool)
    with pytest.raises(LookupError, match="the body"):
        async with session:
            await session.send_message("go")
            await tool.begun.wait()
            raise LookupError("the body")
    assert tool.clean
    assert session.report is not None
    assert "the body" in str(session.report.reason)


async def test_the_error_of_the_body_wins_over_that_of_the_model() -> None:
    model = ScriptedRealtimeModel(close_error=OSError("no goodbye"))
    with pytest.raises(LookupError) as caught:
        async with session_of(model=model):
            raise LookupError("the body")
    assert any("no goodbye" in note for note in caught.value.__notes__)


async def test_it_ends_with_the_scope_that_owns_it() -> None:
    tool = Part("tool")
    owner = await Scope.open("owner")
    session = await begun(working(tool, scope=owner), tool)
    report = await owner.close()
    assert report.clean, str(report)
    assert tool.clean
    assert not scripted(session).connected
    with pytest.raises(ScopeClosed):
        await working(tool, scope=owner).enter()


# While it connects, or before


async def test_before_it_is_open_everything_says_so() -> None:
    session = session_of()
    for using in (
        session.close(),
        session.send_message("a"),
        session.send_audio(b"aa"),
        session.interrupt(),
        session.update_agent(agent()),
        session.approve_tool_call("a"),
        session.reject_tool_call("a"),
    ):
        with pytest.raises(RealtimeSessionClosed, match="not open"):
            await using
    with pytest.raises(RealtimeSessionClosed, match="not open"):
        session.cancel()


async def test_after_its_end_everything_says_so_and_why() -> None:
    session = session_of()
    await session.enter()
    await session.close(reason="enough")
    for using in (
        session.send_message("a"),
        session.send_audio(b"aa"),
        session.interrupt(),
        session.update_agent(agent()),
        session.approve_tool_call("a"),
        session.reject_tool_call("a"),
    ):
        with pytest.raises(RealtimeSessionClosed, match="enough"):
            await using
    session.cancel()


async def test_closed_while_it_connects() -> None:
    session = session_of(model=ScriptedRealtimeModel(connect_delay=3600))
    raised: list[BaseException] = []

    async def enter() -> None:
        try:
            await session.enter()
        except Exception as error:
            raised.append(error)

    async with Scope() as scope:
        scope.spawn(enter)
        await until(lambda: scripted(session).connects)
        report = await session.close()
        assert report.clean, str(report)
    assert len(raised) == 1
    assert "while it was being entered" in str(raised[0])
    assert scripted(session).closes == 1


async def test_cancelled_while_it_connects() -> None:
    session = session_of(model=ScriptedRealtimeModel(connect_delay=3600))
    with anyio.CancelScope() as limit:
        async with anyio.create_task_group() as group:

            async def give_up() -> None:
                await until(lambda: scripted(session).connects)
                limit.cancel()

            group.start_soon(give_up)
            async with session:
                raise AssertionError
    assert limit.cancelled_caught
    assert session.closed
    assert scripted(session).closes == 1


async def test_a_model_that_cannot_be_connected_is_an_error_and_leaves_nothing() -> None:
    session = session_of(model=ScriptedRealtimeModel(connect_error=ConnectionRefusedError("nobody there")))
    with pytest.raises(ConnectionRefusedError, match="nobody there"):
        async with session:
            raise AssertionError
    assert scripted(session).closes == 1
    assert scripted(session)._listeners == []


async def test_a_model_that_fails_while_it_is_connected_is_that_error() -> None:
    class Failing(ScriptedRealtimeModel):
        async def connect(self, options: Any) -> None:
            await super().connect(options)
            await self.emit(RealtimeModelExceptionEvent(ConnectionResetError("reset")))
            await anyio.sleep(3600)

    with pytest.raises(ConnectionResetError, match="reset"):
        await session_of(model=Failing()).enter()


# Who waits


async def test_iterators_that_wait_end() -> None:
    session = session_of()
    await session.enter()
    readings = [Reading(session) for _ in range(3)]
    async with Scope() as scope:
        for each in readings:
            scope.spawn(each.read)
        await turns(5)
        await session.close()
        for each in readings:
            await each.until_end()
    assert [each.error for each in readings] == [None] * 3


async def test_a_model_that_ends_ends_the_session() -> None:
    tool = Part("tool")
    session = working(tool)
    async with session, reading(session) as heard:
        await session.send_message("go")
        await tool.begun.wait()
        await scripted(session).emit(RealtimeModelEndOfStreamEvent())
        await heard.until_end()
        assert heard.error is None
        with pytest.raises(RealtimeSessionClosed, match="the model has ended"):
            await session.send_message("hello?")
    assert tool.clean
    assert session.report is not None
    assert session.report.reason is not None
    assert session.report.reason.kind == "disconnect"


async def test_a_model_that_fails_is_an_event_and_raised_to_whoever_reads() -> None:
    tool = Part("tool")
    session = working(tool)
    async with session, reading(session) as heard:
        await session.send_message("go")
        await tool.begun.wait()
        error = ConnectionResetError("reset by peer")
        await scripted(session).emit(RealtimeModelExceptionEvent(error))
        await heard.until_end()
        assert heard.error is error
        assert heard.of("error")[-1].error is error
    assert tool.clean
    assert session.report is not None
    assert "reset by peer" in str(session.report)


async def test_a_turn_that_fails_in_the_model_ends_the_session_with_its_error() -> None:
    session = session_of([LookupError("out of words")])
    with pytest.raises(LookupError, match="out of words"):
        async with session:
            await session.send_message("go")
            async for _ in session:
                pass


# The model


@virtual_worlds
async def test_a_model_that_fails_to_close_is_in_the_report_and_raised_by_the_block() -> None:
    session = await begun(session_of(model=ScriptedRealtimeModel(close_error=OSError("no goodbye"))))
    report = await session.close()
    assert [str(error) for error in report.errors] == ["no goodbye"]
    with pytest.raises(OSError, match="no goodbye"):
        async with session_of(model=ScriptedRealtimeModel(close_error=OSError("no goodbye"))):
            pass


class Clinging(ScriptedRealtimeModel):
    """Cannot let go of a listener."""

    def remove_listener(self, listener: Any) -> None:
        raise LookupError("no such listener")


@virtual_worlds
async def test_a_model_that_cannot_let_go_of_its_listener_is_closed_nevertheless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tool = Part("tool")
    model = Clinging([call("tool")])
    session = RealtimeSession(model, agent(tool.tool))
    heard = Reading(session)
    async with Scope() as scope:
        await begun(session, tool)
        scope.spawn(heard.read)
        report = await session.close()
        assert [str(error) for error in report.errors] == ["no such listener"]
        await heard.until_end()
    assert (heard.error, tool.clean, model.closes) == (None, True, 1)
    assert "no such listener" in caplog.text
    assert session._held().core.state == "settled"
    async with RealtimeSession(model, agent()):
        pass


async def test_a_model_that_cannot_let_go_of_its_listener_does_not_hide_why_it_was_not_connected() -> None:
    model = Clinging(connect_error=ConnectionRefusedError("nobody there"))
    with pytest.raises(ConnectionRefusedError, match="nobody there"):
        async with RealtimeSession(model, agent()):
            raise AssertionError
    assert model.closes == 1


@virtual_worlds
async def test_a_model_that_never_closes_is_given_up_in_bounded_time() -> None:
    session = await begun(session_of(model=ScriptedRealtimeModel(close_delay=3600)))
    start = anyio.current_time()
    report = await session.close()
    assert anyio.current_time() - start <= 5
    assert any(isinstance(error, TimeoutError) for error in report.errors)


async def test_a_tool_that_sends_when_the_session_is_closed_is_cancelled() -> None:
    @function_tool
    async def quick() -> str:
        return "done"

    model = ScriptedRealtimeModel([call("quick")])
    session = RealtimeSession(model, agent(quick))
    await session.enter()
    await session.send_message("go")
    model.send_delay = 3600
    await until(lambda: session._task.work.children)
    await turns(10)
    report = await session.close()
    assert report.clean, str(report)
    assert outputs(session) == []


# What does not end


@virtual_worlds
async def test_a_tool_that_ignores_its_cancel_is_named_and_the_model_is_closed_nevertheless() -> None:
    stubborn, tool = Stubborn(), Part("tool")

    @function_tool
    async def stuck() -> str:
        await stubborn()
        return "late"

    session = session_of([[call("stuck"), call("tool")], "never"], stuck, tool.tool)
    await session.enter()
    await session.send_message("go")
    await tool.begun.wait()
    start = anyio.current_time()
    report = await session.close()
    assert anyio.current_time() - start <= 5
    assert not report.clean
    assert [(left.kind, left.name) for left in report.left] == [("task", "stuck")]
    assert tool.clean
    assert not scripted(session).connected
    assert scripted(session).closes == 1
    stubborn.let_go()
    again = await session.close()
    assert again.clean, str(again)
    assert outputs(session) == []


@virtual_worlds
async def test_a_deadline_bounds_it_even_then() -> None:
    stubborn = Stubborn()

    @function_tool
    async def stuck() -> str:
        await stubborn()
        return "late"

    session = session_of([call("stuck")], stuck)
    await session.enter()
    await session.send_message("go")
    await until(lambda: session._task.work.children)
    await turns(5)
    start = anyio.current_time()
    report = await session.close(deadline=0.5)
    assert anyio.current_time() - start <= 0.51
    assert [left.name for left in report.left] == ["stuck"]
    assert not scripted(session).connected
    stubborn.let_go()
    assert (await session.close()).clean


@virtual_worlds
async def test_an_error_of_a_clean_up_that_outlives_the_deadline_is_in_the_next_report() -> None:
    late = Part("late", tidy=1, error=LookupError("no such lock"))
    session = await begun(working(late), late)
    report = await session.close(deadline=0.1)
    assert not report.clean
    assert report.errors == []
    assert report.notes == ["at work: late: still running"]
    await until(lambda: late.clean)
    for again in (await session.close(), session.report):
        assert again is not None
        assert again.clean, str(again)
        assert [str(error) for error in again.errors] == ["no such lock"]
        assert again.notes == ["at work: late: failed, LookupError: no such lock"]


@pytest.mark.real_time
async def test_the_report_tells_what_threads_of_tools_and_guardrails_raise_while_it_is_closed() -> None:
    at_work, over = threading.Barrier(3), threading.Event()

    @output_guardrail
    def guard(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        at_work.wait(15)
        over.wait(15)
        raise LookupError("of the guardrail")

    @function_tool
    def tool(token: CancelToken) -> str:
        at_work.wait(15)
        token.wait_sync(15)
        over.set()
        raise LookupError("of the tool")

    session = session_of([[LONG, call("tool")]], tool, output_guardrails=[guard], config=EAGER_GUARDS)
    await session.enter()
    await session.send_message("go")
    await until(lambda: at_work.n_waiting == 2)
    at_work.wait(15)
    report = await session.close(deadline=15)
    assert report.clean, str(report)
    # As an error, or as a note if whoever had called it was cancelled first.
    assert "LookupError('of the guardrail')" in str(report)
    assert "LookupError('of the tool')" in str(report)


@pytest.mark.real_time
async def test_a_thread_that_does_not_look_at_its_token_is_named_and_the_model_is_closed() -> None:
    go, begun_ = threading.Event(), threading.Event()

    @function_tool
    def stuck(token: CancelToken) -> str:
        begun_.set()
        go.wait(15)
        return "late"

    session = session_of([call("stuck"), "never"], stuck, grace=Grace(cancel=0.1, terminate=0.1, kill=0.1))
    await session.enter()
    await session.send_message("go")
    await until(begun_.is_set)
    started = time.monotonic()
    report = await session.close()
    assert time.monotonic() - started < 10
    assert any(left.kind == "thread" and "stuck" in left.name for left in report.left), str(report)
    assert not scripted(session).connected
    go.set()
    assert (await session.close(deadline=10)).clean
    assert outputs(session) == []


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_process_that_is_deaf_is_killed_with_its_tree(tmp_path: Path) -> None:
    told = tmp_path / "told"
    session = session_of(
        [call("settle", told=str(told), deaf=True)], settle, grace=Grace(cancel=0.2, terminate=0.2, kill=9)
    )
    async with session:
        await session.send_message("go")
        tree = await tree_of(told)
    assert all(is_gone(process) for process in tree)
    assert session.report is not None
    assert session.report.clean, str(session.report)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_process_whose_tree_is_killed_by_somebody_else_while_it_closes(tmp_path: Path) -> None:
    told = tmp_path / "told"
    session = session_of([call("settle", told=str(told), deaf=True)], settle, grace=Grace(cancel=9))
    async with session:
        await session.send_message("go")
        tree = await tree_of(told)
        session.cancel()
        await turns(5)
        for process in tree:
            os.kill(process, signal.SIGKILL)
    assert all(is_gone(process) for process in tree)


# Nothing of the old session in the new one


@virtual_worlds
async def test_a_new_session_on_the_same_model_hears_nothing_of_the_old_one() -> None:
    """Late results, late handoffs and late verdicts of what would not end stay where they are."""
    stubborn = [Stubborn() for _ in range(4)]
    ran: list[str] = []

    @function_tool
    async def stuck() -> str:
        await stubborn[0]()
        ran.append("tool")
        return "late"

    async def on_handoff(context: Any) -> None:
        await stubborn[1]()
        ran.append("handoff")

    async def judge(context: Any, who: Any, output: str) -> GuardrailFunctionOutput:
        await stubborn[2]()
        ran.append("guardrail")
        return GuardrailFunctionOutput(None, True)

    async def fail(context: Any, who: Any, output: str) -> GuardrailFunctionOutput:
        await stubborn[3]()
        raise LookupError("late")

    second = RealtimeAgent("second")
    turn: list[Any] = [call("stuck"), call("transfer_to_second"), LONG]
    model = ScriptedRealtimeModel([turn, "Hello."])
    old = RealtimeSession(
        model,
        agent(
            stuck,
            handoffs=[realtime_handoff(second, on_handoff=on_handoff)],
            output_guardrails=[output_guardrail(judge), output_guardrail(fail)],
        ),
        run_config=EAGER_GUARDS,  # type: ignore[arg-type]
    )
    await old.enter()
    await old.send_message("go")
    await until(lambda: len(old._task.work.children) == 4)
    await turns(5)
    report = await old.close(deadline=1)
    assert len(report.left) == 4
    told = len(model.sent)
    new = RealtimeSession(model, agent(name="new"))
    async with new, reading(new) as heard:
        for each in stubborn:
            each.let_go()
        await until(lambda: len(ran) == 3)
        await turns(20)
        assert len(model.sent) == told
        assert heard.kinds == ["history_updated"]
        assert new.history == []
        await new.send_message("hello")
        await heard.until_kind("agent_end")
        assert [event.agent.name for event in heard.of("agent_start")] == ["new"]
        assert not [event for event in model.sent if isinstance(event, RealtimeModelSendSessionUpdate)]
    assert old.current_agent.name == "agent"
    assert (await old.close()).clean


async def test_a_session_that_has_ended_hears_nothing_of_its_model_any_more() -> None:
    tool = Part("tool")
    model = ScriptedRealtimeModel([[call("tool"), LONG], "Hello."])
    old = RealtimeSession(model, agent(tool.tool))
    await begun(old, tool)
    await old.close()
    before = [event.type async for event in old]
    assert before
    for event in (
        RealtimeModelToolCallEvent("tool", "call_9", "{}"),
        RealtimeModelTranscriptDeltaEvent("i", "x" * 200, "r"),
        RealtimeModelEndOfStreamEvent(),
    ):
        await old._task.on_event(event)
    assert tool.calls == 1
    assert [event.type async for event in old] == []
    new = RealtimeSession(model, agent())
    async with talking(new, "hello") as heard:
        await heard.until_kind("agent_end")
    assert [type(item).__name__ for item in new.history] == ["UserMessageItem", "AssistantMessageItem"]


async def test_a_model_serves_one_session_at_a_time_and_who_comes_second_does_not_disturb_the_first() -> None:
    model = ScriptedRealtimeModel(["Hello."])
    first = session_of(model=model)
    async with talking(first) as heard:
        for _ in range(2):
            with pytest.raises(UserError, match="serves another session"):
                await session_of(model=model).enter()
        await first.send_message("hello")
        await heard.until_kind("agent_end")
        assert (model.connects, model.closes) == (1, 0)
    async with session_of(model=model):
        assert model.connected


async def test_a_model_is_taken_as_soon_as_somebody_connects_it_and_free_again_if_that_fails() -> None:
    model = ScriptedRealtimeModel(connect_delay=0.05, connect_error=OSError("no route"))
    first = session_of(model=model)
    async with Scope(on_error="report", on_child_error=lambda handle, error: None) as scope:
        entering = scope.spawn(first.enter)
        await until(lambda: model.connects)
        with pytest.raises(UserError, match="serves another session"):
            await session_of(model=model).enter()
        await entering.wait()
    model.connect_error = None
    async with session_of(model=model):
        assert model.connected


# Without a place to wait


async def test_one_that_is_dropped_is_ended_with_a_warning() -> None:
    tool = Part("tool")
    model = ScriptedRealtimeModel([call("tool")])
    async with Scope("owner"):
        session = RealtimeSession(model, agent(tool.tool))
        await begun(session, tool)
        kept = [session]
        del session
        with pytest.warns(ResourceWarning, match=r"realtime session of agent.*dropped without close\(\)"):
            kept.clear()
        await until(lambda: not model.connected)
    assert tool.clean


async def test_one_that_was_never_opened_may_be_dropped(caplog: pytest.LogCaptureFixture) -> None:
    session = session_of()
    dropped = weakref.ref(session)
    del session
    gc.collect()
    assert dropped() is None
    assert caplog.text == ""


@everywhere
def test_at_the_end_of_the_loop_a_session_that_nobody_has_closed_is_drained(run: Run) -> None:
    tool, kept = Part("tool", tidy=0.05), []

    async def main() -> None:
        session = session_of([call("tool")], tool.tool)
        kept.append(session)
        await begun(session, tool)

    run(main)
    assert tool.clean
    assert not scripted(kept[0]).connected


async def test_a_hundred_sessions_are_closed_at_once() -> None:
    parts = [Part("tool") for _ in range(100)]
    sessions = [working(part, grace=Grace(cancel=15)) for part in parts]
    for session, part in zip(sessions, parts, strict=True):
        await begun(session, part)
    start = anyio.current_time()
    async with Scope() as scope:
        for session in sessions:
            scope.spawn(session.close)
    assert anyio.current_time() - start < 8  # beside each other: each takes a tenth of a second
    assert all(part.clean for part in parts)
    assert all(session.report is not None and session.report.clean for session in sessions)


@virtual_worlds
async def test_a_session_that_speaks_is_closed_at_any_moment() -> None:
    for moment in range(0, 60, 3):
        tool = Part("tool", tidy=0.01)
        session = session_of(
            [[call("tool"), Speech(LONG, pace=0.002)]],
            tool.tool,
            output_guardrails=[Part("guard").guardrail],
            config=EAGER_GUARDS,
        )
        async with session, reading(session):
            await session.send_message("go")
            await anyio.sleep(moment / 1000)
            report = await session.close()
            assert report.clean, str(report)
        assert tool.clean == tool.begun.is_set()
        assert inputs(session) == ["go"]


@pytest.mark.parametrize("ticks", range(5))
@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_given_up_in_its_first_steps_a_session_lets_go_of_its_model(ticks: int, how: str) -> None:
    model = ScriptedRealtimeModel(["Hello."], connect_delay=0.1)
    first = session_of(model=model)
    async with Scope("users", on_error="report", on_child_error=lambda *_: None) as scope:
        handle = scope.spawn(first.enter)
        for _ in range(ticks):
            await checkpoint()
        if how == "cancel":
            handle.cancel()
        elif first._holding is not None:
            await first.close()
        else:
            handle.cancel()
    async with session_of(model=model):
        pass


async def test_while_it_connects_events_may_be_waited_for_and_nothing_said() -> None:
    session = session_of(model=ScriptedRealtimeModel([], connect_delay=1))
    async with Scope("users", on_error="report", on_child_error=lambda *_: None) as scope:
        scope.spawn(session.enter)
        while session._holding is None:
            await checkpoint()
        reading = Reading(session)
        scope.spawn(reading.read)
        with pytest.raises(RealtimeSessionClosed, match="still connecting"):
            await session.update_agent(agent())
        await session.close()
    assert reading.ended
    assert reading.error is None


async def test_events_of_a_session_that_was_refused_are_at_their_end() -> None:
    model = ScriptedRealtimeModel([])
    async with session_of(model=model):
        refused = session_of(model=model)
        with pytest.raises(UserError, match="serves another session"):
            await refused.enter()
        assert [event async for event in refused] == []
