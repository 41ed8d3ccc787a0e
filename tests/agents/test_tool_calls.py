"""Tool calls: a task and a token each, drained with their siblings, with exactly one result whatever stopped them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import anyio
import pytest

from quiesce import CancelToken, Grace, Reason, Scope, current_token
from quiesce.agents import (
    Agent,
    FunctionTool,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolContext,
    ToolTimeoutError,
    UserError,
    function_tool,
)
from quiesce.models import AssistantMessage, ToolCall, ToolResult, Usage
from quiesce.testing import Answer, call
from tests.agents.scenes import (
    Parked,
    all_events,
    assert_valid,
    consumed,
    outcomes,
    requests_of,
    results_in,
    scripted,
    session_with,
    time_limit_once,
)
from tests.kernel.temperaments import Stubborn, forever, sleeper, tidy_up, virtual_worlds
from tests.world import asyncio_only


@function_tool
async def add(a: int, b: int) -> int:
    return a + b


@function_tool(failure_error_function=None)
async def boom() -> str:
    raise ValueError("boom")


# Side by side -------------------------------------------------------------------------------------------------


@virtual_worlds
async def test_the_calls_of_a_turn_run_at_once_and_their_results_stand_in_order() -> None:
    @function_tool
    async def wait(seconds: float) -> str:
        await anyio.sleep(seconds)
        return f"{seconds:g}"

    began = anyio.current_time()
    agent = scripted([call("wait", seconds=s) for s in (3, 1, 2)], "ok", tools=[wait])
    result = await Runner.run(agent, "?")
    assert anyio.current_time() - began == pytest.approx(3)
    assert [r.output for r in results_in(result.new_items)] == ["3", "1", "2"]
    assert_valid(result.to_input_list())


@virtual_worlds
async def test_a_concurrency_limit_holds() -> None:
    at_once: list[int] = [0, 0]

    @function_tool
    async def wait() -> str:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await anyio.sleep(1)
        at_once[0] -= 1
        return ""

    began = anyio.current_time()
    agent = scripted([call("wait")] * 5, "ok", tools=[wait])
    await Runner.run(agent, "?", run_config=RunConfig(max_tool_concurrency=2))
    assert at_once[1] == 2
    assert anyio.current_time() - began == pytest.approx(3)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
def test_a_concurrency_limit_that_would_let_no_tool_run_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="max_tool_concurrency must be a whole number from 1 on, or None"):
        RunConfig(max_tool_concurrency=limit)


async def test_calls_that_wait_for_a_slot_are_not_started_when_the_run_stops() -> None:
    parked = Parked()
    tool = function_tool(lambda: None, name_override="unused")
    slow = FunctionTool("slow", "", {"type": "object", "properties": {}}, parked.park)
    session = await session_with()
    agent = scripted([call("slow")] * 3, tools=[slow, tool])
    config = RunConfig(max_tool_concurrency=1)
    with anyio.move_on_after(1):
        await Runner.run(agent, "?", run_config=config, session=session)
    parked.assert_tidy()
    # trio starts children in no particular order
    assert sorted(outcomes(await session.get_items())) == ["interrupted", "not_started", "not_started"]


@virtual_worlds
async def test_a_call_whose_turn_comes_after_the_run_was_told_to_stop_is_not_started() -> None:
    begun: list[int] = []

    @function_tool
    async def last_words(number: int) -> str:
        begun.append(number)
        await current_token().wait()
        return "done"

    config = RunConfig(max_tool_concurrency=1, grace=Grace(cooperate=5))
    result = Runner.run_streamed(
        scripted([call("last_words", number=n) for n in range(3)], tools=[last_words]), "?", run_config=config
    )
    async with consumed(result) as ended:
        await anyio.sleep(1)
        result.cancel()
        await ended.wait()
    assert len(begun) == 1
    assert sorted(outcomes(result.new_items)) == ["finished", "not_started", "not_started"]


async def test_a_tool_that_fails_drains_its_siblings_before_its_error_is_raised() -> None:
    parked, failure = Parked(), ValueError("boom")

    @function_tool(failure_error_function=None)
    async def fails() -> str:
        await parked.reached.wait()
        raise failure

    sibling = FunctionTool("sibling", "", {"type": "object", "properties": {}}, parked.park)
    session = await session_with()
    with pytest.raises(ValueError) as caught:
        await Runner.run(
            scripted([call("sibling"), call("fails")], tools=[sibling, fails]), "?", session=session
        )
    assert caught.value is failure
    parked.assert_tidy()
    items = await session.get_items()
    assert_valid(items)
    assert outcomes(items) == ["interrupted", "interrupted"]
    assert "something else in the run failed" in results_in(items)[0].output


async def test_several_tools_that_fail_are_one_error_with_a_note_for_each_other() -> None:
    begun = anyio.Event()  # one that has not begun when the other fails never does

    @function_tool(failure_error_function=None)
    async def boom_too() -> str:
        begun.set()
        try:
            await forever()
        finally:
            raise KeyError("in the clean-up")

    @function_tool(failure_error_function=None)
    async def boom() -> str:
        await begun.wait()
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        await Runner.run(scripted([call("boom_too"), call("boom")], tools=[boom, boom_too]), "?")
    assert "in the clean-up" in "".join(caught.value.__notes__)


# Errors as results --------------------------------------------------------------------------------------------


async def test_an_error_of_a_tool_is_a_result_that_the_model_can_read() -> None:
    @function_tool
    async def fails() -> str:
        raise ValueError("no such city")

    agent = scripted(call("fails"), "sorry", tools=[fails])
    result = await Runner.run(agent, "?")
    assert outcomes(result.new_items) == ["failed"]
    assert "no such city" in results_in(result.new_items)[0].output
    assert result.final_output == "sorry"


async def test_a_tool_may_have_a_function_of_its_own_for_errors() -> None:
    async def explain(context: RunContextWrapper[Any], error: Exception) -> str:
        return f"{type(error).__name__} for {context.context}"

    @function_tool(failure_error_function=explain)
    async def fails() -> str:
        raise ValueError

    result = await Runner.run(scripted(call("fails"), "ok", tools=[fails]), "?", context="Ann")
    assert results_in(result.new_items)[0].output == "ValueError for Ann"


async def test_an_unknown_tool_is_a_result_that_names_those_there_are() -> None:
    result = await Runner.run(scripted(call("subtract"), "ok", tools=[add]), "?")
    assert results_in(result.new_items)[0].output == "There is no tool named 'subtract'. The tools are: add."
    assert outcomes(result.new_items) == ["failed"]


async def test_wrong_arguments_are_a_result_that_the_model_can_act_on() -> None:
    result = await Runner.run(
        scripted([ToolCall("1", "add", '{"a": "x", "b": 1}'), ToolCall("2", "add", "{")], "ok", tools=[add]),
        "?",
    )
    assert outcomes(result.new_items) == ["failed", "failed"]


@asyncio_only
async def test_a_tool_that_raises_a_cancel_of_its_own_has_failed_and_nobody_else_is_cancelled() -> None:
    @function_tool
    async def leaks_a_cancel() -> str:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return "never"

    agent = scripted([call("leaks_a_cancel"), call("add", a=1, b=1)], "ok", tools=[leaks_a_cancel, add])
    result = await Runner.run(agent, "?")
    assert result.final_output == "ok"
    assert outcomes(result.new_items) == ["failed", "finished"]
    assert "cancelled" in results_in(result.new_items)[0].output


@asyncio_only
async def test_a_tool_that_must_raise_and_raises_a_cancel_of_its_own_ends_the_run_with_an_error() -> None:
    @function_tool(failure_error_function=None)
    async def leaks_a_cancel() -> str:
        raise asyncio.CancelledError

    with pytest.raises(Exception, match="cancelled"):
        await Runner.run(scripted(call("leaks_a_cancel"), tools=[leaks_a_cancel]), "?")


# Timeouts -----------------------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_tool_over_its_time_is_stopped_and_the_model_is_told() -> None:
    log: list[str] = []

    @function_tool(timeout=2)
    async def slow(context: ToolContext[Any]) -> str:
        context.progress("half ")
        context.progress("done")
        await sleeper(log, tidy=0.5)
        return "never"

    began = anyio.current_time()
    result = await Runner.run(scripted(call("slow"), "ok", tools=[slow]), "?")
    assert anyio.current_time() - began == pytest.approx(2.5)
    assert log == ["sleeper stops", "sleeper is tidy"]
    (told,) = results_in(result.new_items)
    assert told.outcome == "failed"
    assert (
        told.output
        == "tool 'slow' took longer than its timeout of 2 s, and was stopped\nOutput so far:\nhalf done"
    )


@virtual_worlds
async def test_a_tool_over_its_time_may_end_the_run_instead() -> None:
    parked = Parked()

    @function_tool(timeout=1, timeout_behavior="raise_exception")
    async def slow() -> str:
        await parked.park()
        return "never"

    session = await session_with()
    with pytest.raises(ToolTimeoutError, match="'slow' took longer than its timeout of 1 s") as caught:
        await Runner.run(scripted(call("slow"), tools=[slow]), "?", session=session)
    assert isinstance(caught.value, TimeoutError)
    parked.assert_tidy()
    assert_valid(await session.get_items())


@virtual_worlds
async def test_the_token_of_a_tool_over_its_time_says_so() -> None:
    tokens: list[CancelToken] = []

    @function_tool(timeout=1)
    async def slow() -> str:
        tokens.append(current_token())
        await forever()
        return "never"

    await Runner.run(scripted(call("slow"), "ok", tools=[slow]), "?")
    assert tokens[0].reason is not None
    assert tokens[0].reason.kind == "timeout"


@virtual_worlds
async def test_a_timeout_leaves_the_siblings_alone() -> None:
    @function_tool(timeout=1)
    async def slow() -> str:
        await forever()
        return "never"

    @function_tool
    async def steady() -> str:
        await anyio.sleep(5)
        return "done"

    result = await Runner.run(scripted([call("slow"), call("steady")], "ok", tools=[slow, steady]), "?")
    assert outcomes(result.new_items) == ["failed", "finished"]


@virtual_worlds
async def test_a_tool_with_a_timeout_that_is_stopped_for_another_reason_is_drained_too() -> None:
    parked = Parked()

    @function_tool(timeout=100)
    async def slow() -> str:
        await parked.park()
        return "never"

    with anyio.move_on_after(1) as deadline:
        await Runner.run(scripted(call("slow"), tools=[slow]), "?")
    assert deadline.cancelled_caught
    parked.assert_tidy()


@virtual_worlds
async def test_a_tool_that_ignores_its_timeout_is_named_and_the_run_goes_on() -> None:
    stubborn = Stubborn()

    @function_tool(timeout=1)
    async def slow() -> str:
        await stubborn()
        return "too late"

    async def frees(request: object) -> str:
        stubborn.let_go()
        return "ok"

    grace = Grace(cancel=0.5, terminate=0.25, kill=0.25)
    result = await Runner.run(
        scripted(call("slow"), frees, tools=[slow]), "?", run_config=RunConfig(grace=grace)
    )
    assert outcomes(result.new_items) == ["still_running"]
    assert "may still be running" in results_in(result.new_items)[0].output
    assert stubborn.gone


@pytest.mark.parametrize("timeout", [None, 100], ids=["", "with a timeout"])
@virtual_worlds
async def test_an_async_tool_that_is_named_as_left_says_that_it_is_still_running(
    timeout: float | None,
) -> None:
    stubborn, parked = Stubborn(), Parked()

    @function_tool(timeout=timeout)
    async def slow(context: ToolContext[Any]) -> str:
        context.progress("half of it")
        await stubborn()
        return "too late"

    sibling = FunctionTool("sibling", "", {"type": "object", "properties": {}}, parked.park)
    grace = Grace(cancel=0.5, terminate=0.25, kill=0.25)
    async with Scope("app", grace=grace):
        agent = scripted([call("slow"), call("sibling")], tools=[slow, sibling])
        result = Runner.run_streamed(agent, "?", run_config=RunConfig(grace=grace))
        async with consumed(result) as ended:
            await anyio.sleep(1)
            result.cancel()
            await ended.wait()
        assert result.report is not None
        assert [left.name for left in result.report.left] == ["slow"]
        assert outcomes(result.new_items) == ["still_running", "interrupted"]
        assert "may still be running.\nOutput so far:\nhalf of it" in results_in(result.new_items)[0].output
        stubborn.let_go()


@virtual_worlds
async def test_a_tool_that_is_an_agent_says_that_what_its_run_has_left_is_still_running() -> None:
    stubborn = Stubborn()

    @function_tool
    async def slow() -> str:
        await stubborn()
        return "too late"

    inner = scripted(call("slow"), name="inner", tools=[slow]).as_tool()
    grace = Grace(cancel=0.5, terminate=0.25, kill=0.25)
    async with Scope("app", grace=grace):
        agent = scripted(call("inner", input="x"), tools=[inner])
        result = Runner.run_streamed(agent, "?", run_config=RunConfig(grace=grace))
        async with consumed(result) as ended:
            await anyio.sleep(1)
            result.cancel()
            await ended.wait()
        assert result.report is not None
        assert "slow" in [left.name for left in result.report.left]
        assert outcomes(result.new_items) == ["still_running"]
        stubborn.let_go()


# Tokens -------------------------------------------------------------------------------------------------------


async def test_each_call_has_a_token_of_its_own_as_a_parameter_or_the_current_one() -> None:
    tokens: list[CancelToken] = []

    @function_tool
    async def look(context: ToolContext[Any], token: CancelToken) -> str:
        tokens.append(token)
        assert token is current_token()
        assert context.token is current_token()
        return "ok"

    await Runner.run(scripted([call("look"), call("look")], call("look"), "ok", tools=[look]), "?")
    assert len({id(token) for token in tokens}) == 3


async def test_the_token_of_a_stopped_call_stays_cancelled_while_the_next_run_has_a_fresh_one() -> None:
    tokens: list[CancelToken] = []

    @function_tool
    async def look() -> str:
        tokens.append(current_token())
        if len(tokens) == 1:
            await forever()
        return "ok"

    agent = scripted(call("look"), call("look"), "ok", tools=[look])
    result = Runner.run_streamed(agent, "?")
    async with consumed(result) as ended:
        await anyio.sleep(0.5)
        result.cancel()
        await ended.wait()
    assert tokens[0].cancelled
    assert tokens[0].reason is not None
    assert tokens[0].reason.kind == "user"
    await Runner.run(agent, result.to_input_list())
    assert tokens[0].cancelled
    assert not tokens[1].cancelled


# Threads ------------------------------------------------------------------------------------------------------


@pytest.mark.real_time
async def test_a_sync_tool_runs_in_a_thread_with_a_token() -> None:
    threads: list[tuple[int, bool]] = []

    @function_tool
    def sync(token: CancelToken) -> str:
        threads.append((threading.get_ident(), token.cancelled))
        return "done"

    result = await Runner.run(scripted(call("sync"), "ok", tools=[sync]), "?")
    assert results_in(result.new_items)[0].output == "done"
    assert threads[0][0] != threading.get_ident()
    assert threads[0][1] is False


@pytest.mark.real_time
async def test_a_thread_that_listens_to_its_token_ends_with_the_run() -> None:
    heard: list[Reason | None] = []
    started = threading.Event()

    @function_tool
    def sync() -> str:
        started.set()
        current_token().wait_sync(10)
        heard.append(current_token().reason)
        current_token().raise_if_cancelled()
        return "never"

    session = await session_with()
    async with time_limit_once(started.is_set):
        await Runner.run(scripted(call("sync"), tools=[sync]), "?", session=session)
    assert started.is_set()
    assert heard
    assert heard[0] is not None
    items = await session.get_items()
    assert_valid(items)
    assert outcomes(items) == ["interrupted"]


@pytest.mark.real_time
async def test_a_thread_that_does_not_listen_is_named_as_still_running() -> None:
    started, let_go = threading.Event(), threading.Event()

    @function_tool
    def deaf() -> str:
        started.set()
        let_go.wait(30)
        return "late"

    session = await session_with()
    grace = Grace(
        cancel=0.2, terminate=1, kill=1
    )  # those who wait for the thread have a share of the last steps
    agent = scripted(call("deaf"), tools=[deaf])
    result = Runner.run_streamed(agent, "?", session=session, run_config=RunConfig(grace=grace))
    async with Scope("app", grace=Grace(cancel=10)):
        async with consumed(result):
            while not started.is_set():
                await anyio.sleep(0.005)
        try:
            assert outcomes(result.new_items) == ["still_running"], result.new_items
            assert result.report is not None
            assert [left.kind for left in result.report.left] == ["thread"], result.report
            assert_valid(await session.get_items())
        finally:
            let_go.set()
    assert outcomes(result.new_items) == ["still_running"]  # a late result is never used


@pytest.mark.real_time
async def test_a_thread_tool_has_a_timeout_too() -> None:
    let_go = threading.Event()

    @function_tool(timeout=0.1)
    def deaf() -> str:
        while not let_go.is_set() and not current_token().cancelled:
            time.sleep(0.005)
        return "late"

    result = await Runner.run(scripted(call("deaf"), "ok", tools=[deaf]), "?")
    assert outcomes(result.new_items) in (["failed"], ["finished"])
    assert result.final_output == "ok"


# Processes ----------------------------------------------------------------------------------------------------


def spin(seconds: float) -> str:
    """Cannot cooperate: it looks at nothing."""
    print("spinning", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "done"


spin_tool = function_tool(spin, isolation="process")


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_process_tool_that_cannot_cooperate_is_killed_with_the_run() -> None:
    session = await session_with()
    began = time.monotonic()
    grace = Grace(cancel=0.1, terminate=0.1, kill=10)
    with anyio.move_on_after(0.7):
        await Runner.run(
            scripted(call("spin", seconds=60), tools=[spin_tool]),
            "?",
            session=session,
            run_config=RunConfig(grace=grace),
        )
    assert time.monotonic() - began < 12
    items = await session.get_items()
    assert_valid(items)
    assert outcomes(items) == ["interrupted"]


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_process_tool_has_a_timeout_too() -> None:
    quick = function_tool(spin, isolation="process", timeout=0.5)
    began = time.monotonic()
    grace = Grace(cancel=0.1, terminate=0.1, kill=10)
    result = await Runner.run(
        scripted(call("spin", seconds=60), "ok", tools=[quick]), "?", run_config=RunConfig(grace=grace)
    )
    assert time.monotonic() - began < 12
    assert outcomes(result.new_items) == ["failed"]
    assert result.final_output == "ok"


# Approval -----------------------------------------------------------------------------------------------------


def paying(called: list[str], **options: Any) -> FunctionTool:
    @function_tool(**{"needs_approval": True, **options})
    async def pay(amount: int) -> str:
        called.append(f"pay {amount}")
        return f"paid {amount}"

    return pay


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_needs_approval_waits_while_the_others_run(streamed: bool) -> None:
    called: list[str] = []
    agent = scripted([call("pay", amount=5), call("add", a=1, b=2)], "ok", tools=[paying(called), add])
    result: Any
    if streamed:
        result = Runner.run_streamed(agent, "?")
        names = [e.name for e in await all_events(result) if e.type == "run_item_stream_event"]
        assert "tool_approval_requested" in names
    else:
        result = await Runner.run(agent, "?")
    assert called == []
    assert result.final_output is None
    assert [asked.name for asked in result.interruptions] == ["pay"]
    with pytest.raises(UserError, match="wait for approval"):
        result.to_input_list()
    state = result.to_state()
    state.approve(state.interruptions[0])
    assert state.interruptions == []
    final = await Runner.run(agent, state)
    assert called == ["pay 5"]
    assert final.final_output == "ok"
    assert [r.output for r in results_in(final.new_items)] == ["paid 5", "3"]
    assert_valid(final.to_input_list())


async def test_a_rejected_call_is_not_made_and_the_model_is_told() -> None:
    called: list[str] = []
    agent = scripted([call("pay", amount=5), call("pay", amount=6)], "ok", tools=[paying(called)])
    session = await session_with()
    result = await Runner.run(agent, "?", session=session)
    assert_valid(await session.get_items())
    state = result.to_state()
    state.reject(state.interruptions[0], "too much")
    state.reject(state.interruptions[0])
    final = await Runner.run(agent, state)
    assert called == []
    first, second = results_in(final.new_items)
    assert (first.output, first.outcome, second.outcome) == ("too much", "rejected", "rejected")
    assert "not approved" in second.output
    items = await session.get_items()
    assert_valid(items)
    assert items == final.to_input_list()
    with pytest.raises(UserError, match="does not wait for approval"):
        final.to_state().approve(ToolCall("1", "pay"))


async def test_a_run_does_not_go_on_before_every_pending_call_is_decided_on() -> None:
    called: list[str] = []
    agent = scripted([call("pay", amount=5), call("pay", amount=6)], "ok", tools=[paying(called)])
    state = (await Runner.run(agent, "?")).to_state()
    state.approve(state.interruptions[1])
    with pytest.raises(UserError, match="nobody has decided on pay yet"):
        await Runner.run(agent, state)
    assert called == []
    state.approve(state.interruptions[0])
    assert (await Runner.run(agent, state)).final_output == "ok"
    assert sorted(called) == ["pay 5", "pay 6"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_that_goes_on_refuses_to_have_other_bounds_than_it_began_with(streamed: bool) -> None:
    called: list[str] = []
    agent = scripted(call("pay", amount=5), "ok", tools=[paying(called)])
    mine, session = object(), await session_with()
    state = (await Runner.run(agent, "?", context=mine, max_turns=3, session=session)).to_state()
    state.approve(state.interruptions[0])

    async def go_on(**options: Any) -> Any:
        if not streamed:
            return await Runner.run(agent, state, **options)
        result = Runner.run_streamed(agent, state, **options)
        await all_events(result)
        return result

    for name, other in {"context": object(), "max_turns": 2, "session": await session_with()}.items():
        with pytest.raises(UserError, match=f"was given another {name}: leave that out here"):
            await go_on(**{name: other})
    with pytest.raises(UserError, match="another context and max_turns and session"):
        await go_on(context=object(), max_turns=None, session=await session_with())
    assert called == []
    assert (await go_on(context=mine, max_turns=3, session=session)).final_output == "ok"
    assert called == ["pay 5"]
    assert_valid(await session.get_items())


async def test_a_run_that_goes_on_after_an_approval_has_the_answers_and_the_cost_of_both_parts() -> None:
    called: list[str] = []
    agent = scripted(call("pay", amount=7), "Paid.", tools=[paying(called)])
    waits = await Runner.run(agent, "?")
    assert len(waits.responses) == 1
    state = waits.to_state()
    state.approve(state.interruptions[0])
    result = await Runner.run(agent, state)
    assert result.final_output == "Paid."
    assert len(result.responses) == 2
    assert result.usage.requests == 2


async def test_whether_a_call_needs_approval_may_depend_on_its_arguments() -> None:
    called: list[str] = []

    async def over_ten(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        amount: int = arguments["amount"]
        return amount > 10

    tool = paying(called, needs_approval=over_ten)
    result = await Runner.run(scripted([call("pay", amount=5), call("pay", amount=50)], tools=[tool]), "?")
    assert called == ["pay 5"]
    assert [asked.arguments for asked in result.interruptions] == ['{"amount":50}']


@pytest.mark.parametrize("answer", [True, False])
async def test_a_run_may_have_somebody_to_ask(answer: bool) -> None:
    called: list[str] = []
    asked: list[str] = []

    async def ask(context: ToolContext[Any], tool: FunctionTool) -> bool:
        asked.append(f"{tool.name} {context.tool_arguments}")
        return answer

    agent = scripted(call("pay", amount=5), "ok", tools=[paying(called)])
    result = await Runner.run(agent, "?", run_config=RunConfig(approve=ask))
    assert asked == ['pay {"amount":5}']
    assert called == (["pay 5"] if answer else [])
    assert outcomes(result.new_items) == ["finished" if answer else "rejected"]


async def test_a_call_stays_pending_through_a_stop_and_what_was_stopped_is_not_repeated() -> None:
    called: list[str] = []
    parked = Parked()
    slow = FunctionTool("slow", "", {"type": "object", "properties": {}}, parked.park)
    agent = scripted([call("pay", amount=5), call("slow")], "ok", tools=[paying(called), slow])
    result = Runner.run_streamed(agent, "?")
    async with consumed(result) as ended:
        await parked.reached.wait()
        result.cancel()
        await ended.wait()
    parked.assert_tidy()
    assert called == []
    assert [asked.name for asked in result.interruptions] == ["pay"]
    state = result.to_state()
    state.approve(state.interruptions[0])
    final = await Runner.run(agent, state)
    assert parked.begun == 1
    assert called == ["pay 5"]
    assert outcomes(final.new_items) == ["finished", "interrupted"]
    assert_valid(final.to_input_list())


async def test_an_error_beside_a_pending_call_settles_both() -> None:
    called: list[str] = []
    agent = scripted([call("pay", amount=5), call("boom")], tools=[paying(called), boom])
    session = await session_with()
    result = Runner.run_streamed(agent, "?", session=session)
    with pytest.raises(ValueError, match="boom"):
        await all_events(result)
    assert called == []
    assert outcomes(result.to_input_list()) == ["not_started", "interrupted"]
    assert result.interruptions == []
    assert_valid(await session.get_items())


# Which tools there are, and when the run ends with one --------------------------------------------------------


async def test_a_tool_that_is_not_enabled_is_not_shown() -> None:
    async def for_ann(context: RunContextWrapper[Any], agent: Agent[Any]) -> bool:
        return str(context.context) == "Ann"

    @function_tool(is_enabled=for_ann)
    async def secret() -> str:
        return "s"

    for who, names in (("Ann", ["add", "secret"]), ("Bob", ["add"])):
        agent = scripted("ok", tools=[add, secret])
        await Runner.run(agent, "?", context=who)
        assert [spec.name for spec in requests_of(agent)[0].tools] == names


@pytest.mark.parametrize("value", [3, "three", None])
async def test_a_run_may_end_with_what_the_first_tool_returns(value: Any) -> None:
    @function_tool
    async def answer() -> Any:
        return value

    agent = scripted(["Let me see.", call("answer")], tools=[answer], tool_use_behavior="stop_on_first_tool")
    result = await Runner.run(agent, "?")
    assert result.final_output == value
    assert len(requests_of(agent)) == 1
    assert_valid(result.to_input_list())


async def test_the_first_tool_is_the_first_that_was_called_not_the_first_to_end() -> None:
    @function_tool
    async def slow() -> str:
        await anyio.sleep(0.05)
        return "first"

    @function_tool
    async def fast() -> str:
        return "second"

    agent = scripted([call("slow"), call("fast")], tools=[slow, fast], tool_use_behavior="stop_on_first_tool")
    assert (await Runner.run(agent, "?")).final_output == "first"


# Agents as tools ----------------------------------------------------------------------------------------------


async def test_an_agent_as_a_tool_answers_and_its_cost_counts() -> None:
    translator = scripted(Answer(["bonjour"], usage=Usage(1, 4, 1)), name="French translator")
    agent = scripted(call("french_translator", input="hello"), "done", tools=[translator.as_tool()])
    result = await Runner.run(agent, "?", context=3)
    assert results_in(result.new_items)[0].output == "bonjour"
    assert requests_of(translator)[0].items[0].content == "hello"  # type: ignore[union-attr]
    assert result.usage.input_tokens == 4
    assert result.usage.requests == 3


async def test_a_sub_agent_stops_with_its_parent_and_what_it_cost_counts() -> None:
    parked = Parked()
    deep = FunctionTool("deep", "", {"type": "object", "properties": {}}, parked.park)
    inner = scripted(Answer(calls=[call("deep")], usage=Usage(1, 100, 1)), name="inner", tools=[deep])
    middle = scripted(call("inner", input="x"), name="middle", tools=[inner.as_tool()])
    outer = scripted(call("middle", input="x"), tools=[middle.as_tool()])
    result = Runner.run_streamed(outer, "?")
    async with consumed(result):
        await parked.reached.wait()
    parked.assert_tidy()
    assert result.usage.input_tokens == 100
    assert_valid(result.to_input_list())
    assert outcomes(result.new_items) == ["interrupted"]


async def test_an_error_inside_a_sub_agent_is_the_result_of_its_call() -> None:
    inner = scripted(RuntimeError("inner boom"), name="inner")
    result = await Runner.run(
        scripted(call("inner", input="x"), call("inner", text="x"), "ok", tools=[inner.as_tool()]), "?"
    )
    assert outcomes(result.new_items) == ["failed", "failed"]
    assert "inner boom" in results_in(result.new_items)[0].output
    assert "this tool takes one text" in results_in(result.new_items)[1].output


async def test_a_call_inside_a_sub_agent_that_nobody_can_approve_is_not_silently_dropped() -> None:
    called: list[str] = []
    inner = scripted(call("pay", amount=5), name="inner", tools=[paying(called)])
    result = await Runner.run(scripted(call("inner", input="x"), "ok", tools=[inner.as_tool()]), "?")
    assert called == []
    assert outcomes(result.new_items) == ["failed"]
    assert "nobody can approve its call of pay" in results_in(result.new_items)[0].output


async def test_an_agents_output_may_be_extracted() -> None:
    inner = scripted('{"response": [1, 2]}', name="inner", output_type=list[int])

    async def total(result: Any) -> str:
        return str(sum(result.final_output))

    tool = inner.as_tool("total", "Adds up.", custom_output_extractor=total)
    result = await Runner.run(scripted(call("total", input="x"), "ok", tools=[tool]), "?")
    assert results_in(result.new_items)[0].output == "3"


# What a stopped call says -------------------------------------------------------------------------------------


async def test_a_stopped_call_says_how_far_it_came() -> None:
    begun = anyio.Event()

    @function_tool
    async def download(context: ToolContext[Any]) -> str:
        context.progress("10 of 20 files")
        begun.set()
        try:
            await forever()
        finally:
            await tidy_up(0.01)
            context.progress(", tidied")
        return "never"

    result = Runner.run_streamed(scripted(["I shall. ", call("download")], tools=[download]), "?")
    async with consumed(result) as ended:
        await begun.wait()
        result.cancel()
        await ended.wait()
    said, asked, told = result.new_items
    assert said == AssistantMessage("I shall. ")
    assert isinstance(asked, ToolCall)
    assert isinstance(told, ToolResult)
    assert told.outcome == "interrupted"
    assert "stopped by the user" in told.output
    assert "It may have partially executed" in told.output
    assert told.output.endswith("Output so far:\n10 of 20 files, tidied")
    assert told.elapsed is not None


async def test_a_tool_that_turns_its_cancel_into_a_value_has_finished() -> None:
    begun = anyio.Event()

    @function_tool
    async def polite() -> str:
        begun.set()
        try:
            await forever()
        except anyio.get_cancelled_exc_class():
            return "half of it"
        return "never"

    result = Runner.run_streamed(scripted(call("polite"), tools=[polite]), "?")
    async with consumed(result):
        await begun.wait()
    assert outcomes(result.new_items) in (["finished"], ["interrupted"])
    assert_valid(result.to_input_list())
