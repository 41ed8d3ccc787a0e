"""Bad use gets a clear error: what happened, to which named thing, made where, and what to do."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import warnings
from typing import Any

import anyio
import pytest

from quiesce import CancelToken, Grace, Reason, Scope, ScopeClosed, current_scope
from tests.kernel.temperaments import quick, sleeper, turns
from tests.world import World, asyncio_only, make_world, trio_only

anything: Any = object()


# A coroutine instead of a function --------------------------------------------------------------------------


async def test_a_coroutine_instead_of_a_function_is_refused_without_a_second_complaint() -> None:
    async with Scope() as scope:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(TypeError, match=r"function.*not a coroutine.*spawn\(quick, \.\.\.\)"):
                scope.spawn(quick(1))  # type: ignore[call-overload]
            gc.collect()
        assert scope.children == ()


@asyncio_only
async def test_a_task_or_future_instead_of_a_function_is_refused() -> None:
    task = asyncio.create_task(quick(1))
    async with Scope() as scope:
        with pytest.raises(TypeError, match="async function"):
            scope.spawn(task)  # type: ignore[call-overload]
    assert await task == 1  # it was not ours to cancel


@pytest.mark.parametrize("thing", [None, 3, "name", [quick]])
async def test_something_else_instead_of_a_function_is_refused(thing: Any) -> None:
    async with Scope() as scope:
        with pytest.raises(TypeError, match=f"async function, not {type(thing).__name__}"):
            scope.spawn(thing)


async def test_an_async_generator_function_instead_of_a_function_is_a_clear_error() -> None:
    async def generator() -> Any:
        yield 1

    scope = await Scope.open()
    with pytest.raises(
        TypeError, match=r"generator is not one: a call of it gave async_generator; .* quiesce\.stream"
    ):
        scope.spawn(generator)
    assert scope.children == ()
    await scope.close()


async def test_wrong_arguments_are_the_childs_failure_and_leave_nothing_behind() -> None:
    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    handle = scope.spawn(quick, 1, 2, 3)  # type: ignore[arg-type, call-arg]
    await handle.wait()
    assert isinstance(handle.error, TypeError)
    assert scope.children == ()
    await scope.close()


# Not open, closed, entered twice ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda scope: scope.spawn(quick),
        lambda scope: scope.cancel(),
        lambda scope: scope.token,
        lambda scope: scope.children,
    ],
    ids=["spawn", "cancel", "token", "children"],
)
def test_a_scope_that_is_not_open_yet_says_how_to_open_it(use: Any) -> None:
    scope = Scope("early")
    with pytest.raises(RuntimeError, match=r"'early' is not open yet.*async with.*Scope\.open"):
        use(scope)
    assert scope.state == "new"
    assert scope.reason is None


async def test_a_scope_that_is_not_open_yet_cannot_be_closed() -> None:
    with pytest.raises(RuntimeError, match="'early' is not open yet"):
        await Scope("early").close()


async def test_a_scope_is_entered_once() -> None:
    scope = Scope("once")
    async with scope:
        with pytest.raises(RuntimeError, match=r"'once' was opened before.*make a new one"):
            async with scope:
                pass
        assert scope.state == "open"
        assert current_scope() is scope
    with pytest.raises(RuntimeError, match="'once' was opened before"):
        async with scope:
            pass


async def test_an_opened_scope_is_not_entered() -> None:
    scope = await Scope.open("opened")
    with pytest.raises(RuntimeError, match="'opened' was opened before"):
        async with scope:
            pass
    assert scope.state == "open"
    await scope.close()


async def test_a_closed_scope_says_which_one_it_is_where_it_was_made_and_why_it_was_closed() -> None:
    scope = await Scope.open("session")
    await scope.close(reason=Reason("disconnect", "client left"))
    with pytest.raises(ScopeClosed) as caught:
        scope.spawn(sleeper, name="worker")
    text = str(caught.value)
    assert "'worker'" in text
    assert "'session'" in text
    assert "test_bad_use.py" in text
    assert "settled (disconnect: client left)" in text
    assert "open a new scope" in text


async def test_a_coroutine_given_to_a_closed_scope_makes_no_second_complaint() -> None:
    scope = await Scope.open()
    await scope.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((ScopeClosed, TypeError)):
            scope.spawn(quick(1))  # type: ignore[call-overload]
        gc.collect()


async def test_nothing_is_opened_in_a_closed_scope() -> None:
    outer = await Scope.open("outer")
    await outer.close()
    with pytest.raises(ScopeClosed, match="'outer'"):
        await Scope.open("inner", scope=outer)
    with pytest.raises(ScopeClosed, match="'outer'"):
        async with Scope("inner", scope=outer):
            pass


async def test_a_block_that_was_refused_leaves_the_context_as_it_was() -> None:
    outer = await Scope.open("outer")
    await outer.close()
    before = current_scope()
    inner = Scope("inner", scope=outer)
    with pytest.raises(ScopeClosed):
        await inner.__aenter__()
    assert current_scope() is before
    assert inner.state == "new"


# No loop, another loop --------------------------------------------------------------------------------------


def test_without_a_running_loop_the_error_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match=r"running event loop.*asyncio\.run.*trio\.run"):
        current_scope()


@pytest.mark.parametrize(
    "step", [Scope("s").__aenter__, Scope.open, CancelToken().wait], ids=["enter", "open", "wait"]
)
def test_what_needs_a_loop_says_so_without_one(step: Any) -> None:
    coroutine = step()
    with pytest.raises(RuntimeError, match="running event loop"):
        coroutine.send(None)


async def test_a_scope_is_not_spawned_into_from_another_thread() -> None:
    errors: list[BaseException] = []
    scope = await Scope.open("ours")

    def spawn() -> None:
        try:
            scope.spawn(quick)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=spawn)
    thread.start()
    thread.join()
    assert "'ours'" in str(errors[0])
    assert "another" in str(errors[0])
    assert scope.children == ()
    await scope.close()


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_a_scope_is_neither_used_nor_closed_from_another_loop(other: str) -> None:
    errors: list[BaseException] = []
    scope = await Scope.open("ours")
    scope.spawn(sleeper)
    await turns()

    async def use() -> None:
        for step in (scope.close, spawn, open_inner, enter_inner):
            try:
                await step()
            except RuntimeError as error:
                errors.append(error)

    async def spawn() -> None:
        scope.spawn(quick)

    async def open_inner() -> None:
        await Scope.open(scope=scope)

    async def enter_inner() -> None:
        async with Scope(scope=scope):
            pass

    thread = threading.Thread(target=make_world(other).run, args=(use,))
    thread.start()
    thread.join()
    assert len(errors) == 4
    assert all("'ours'" in str(error) and "another event loop" in str(error) for error in errors)
    assert scope.state == "open"
    assert len(scope.children) == 1
    await scope.close()


async def test_a_handle_is_not_waited_for_in_another_loop() -> None:
    errors: list[BaseException] = []
    scope = await Scope.open("ours")
    handle = scope.spawn(sleeper, name="worker")
    await turns()

    async def wait() -> None:
        try:
            with anyio.fail_after(1):
                await handle.wait()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=make_world("asyncio").run, args=(wait,))
    thread.start()
    thread.join()
    assert isinstance(errors[0], RuntimeError)
    assert "another" in str(errors[0])
    assert handle.state == "running"
    await scope.close()


@trio_only
async def test_on_trio_a_block_left_in_another_task_says_what_to_do() -> None:
    scope = Scope("torn")
    errors: list[BaseException] = []

    async def leave() -> None:
        try:
            await scope.__aexit__(None, None, None)
        except RuntimeError as error:
            errors.append(error)

    await scope.__aenter__()
    async with anyio.create_task_group() as group:
        group.start_soon(leave)
    assert "'torn'" in str(errors[0])
    assert "Scope.open()" in str(errors[0])
    await scope.__aexit__(None, None, None)


# Numbers and names ------------------------------------------------------------------------------------------

BAD_SECONDS = [
    (-1, ValueError, "0 or more seconds, not -1"),
    (-0.001, ValueError, "0 or more"),
    (math.nan, ValueError, "not nan"),
    (-math.inf, ValueError, "0 or more"),
    (True, TypeError, "number of seconds, not bool"),
    ("1", TypeError, "number of seconds, not str"),
]


@pytest.mark.parametrize(("seconds", "kind", "text"), BAD_SECONDS)
@pytest.mark.parametrize("step", ["cooperate", "cancel", "terminate", "kill"])
def test_a_bad_number_of_seconds_in_a_grace_names_the_step(
    step: str, seconds: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=rf"Grace\.{step}.*{text}"):
        Grace(**{step: seconds})


@pytest.mark.parametrize(("seconds", "kind", "text"), BAD_SECONDS)
async def test_a_bad_deadline_is_refused_before_anything_is_stopped(
    seconds: Any, kind: type[Exception], text: str
) -> None:
    scope = await Scope.open()
    handle = scope.spawn(sleeper)
    await turns()
    with pytest.raises(kind, match=f"deadline.*{text}"):
        await scope.close(deadline=seconds)
    assert scope.state == "open"
    assert handle.state == "running"
    await scope.close()


@pytest.mark.parametrize(("seconds", "kind", "text"), BAD_SECONDS)
def test_a_bad_timeout_of_a_token_is_refused(seconds: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=f"timeout.*{text}"):
        CancelToken().wait_sync(seconds)


@pytest.mark.parametrize("policy", ["ignore", "STOP", "", None, 1])
def test_an_unknown_policy_names_the_two_there_are(policy: Any) -> None:
    with pytest.raises(ValueError, match='"stop" or "report"'):
        Scope(on_error=policy)


@pytest.mark.parametrize("name", [1, b"bytes", quick])
def test_a_name_is_a_string(name: Any) -> None:
    with pytest.raises(TypeError, match=r"name.*str"):
        Scope(name)


async def test_the_name_of_a_child_is_a_string() -> None:
    async with Scope() as scope:
        with pytest.raises(TypeError, match=r"name.*str"):
            scope.spawn(quick, 1, name=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("reason", [3, ValueError("no"), b"bytes"])
async def test_a_reason_is_a_reason_or_a_string(reason: Any) -> None:
    scope = await Scope.open()
    handle = scope.spawn(sleeper)
    await turns()
    for stop in (scope.cancel, handle.cancel, CancelToken().cancel):
        with pytest.raises(TypeError, match="Reason or a str"):
            stop(reason)
    with pytest.raises(TypeError, match="Reason or a str"):
        await scope.close(reason=reason)
    assert scope.state == "open"
    await scope.close()


def test_an_unknown_kind_of_reason_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'because'.*user.*timeout"):
        Reason("because")  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["grace", "token", "scope", "on_child_error"])
def test_an_option_of_the_wrong_type_is_refused_where_it_is_given(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        Scope("odd", **{option: 3})  # type: ignore[arg-type]


async def test_a_grace_of_the_wrong_type_is_refused_before_anything_is_stopped() -> None:
    scope = await Scope.open()
    scope.spawn(sleeper)
    await turns()
    with pytest.raises(TypeError, match="grace"):
        await scope.close(grace=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="grace"):
        scope.cancel(grace=3)  # type: ignore[arg-type]
    assert scope.state == "open"
    await scope.close()


@pytest.mark.parametrize("fn", [None, 3, "name"])
def test_a_callback_of_a_token_is_a_function(fn: Any) -> None:
    token = CancelToken()
    with pytest.raises(TypeError, match=r"on_cancel.*function"):
        token.on_cancel(fn)
    token.cancel()


@asyncio_only
async def test_a_block_in_a_bare_callback_of_the_loop_is_refused_and_leaves_nothing_behind() -> None:
    errors: list[BaseException] = []
    done = asyncio.Event()

    def callback() -> None:
        coroutine = Scope("bare").__aenter__()
        try:
            coroutine.send(None)
        except RuntimeError as error:
            errors.append(error)
        done.set()

    asyncio.get_running_loop().call_soon(callback)
    await done.wait()
    assert "task" in str(errors[0])
    assert current_scope().name == "root"


def test_a_task_destroyed_at_the_end_of_a_block_makes_no_second_complaint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that is closed under its tasks: asyncio says so, and that is enough."""
    complaints: list[str] = []
    unraisable: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: unraisable.append(repr(args.exc_value)))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))

    async def main() -> None:
        async with Scope() as scope:
            scope.spawn(sleeper)

    task = loop.create_task(main())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    del task
    gc.collect()
    assert unraisable == []
    assert set(complaints) <= {"Task was destroyed but it is pending!"}


def test_the_error_for_a_missing_loop_is_the_same_in_every_world(world: World) -> None:
    async def main() -> str:
        return current_scope().name

    assert world.run(main) == "root"
    with pytest.raises(RuntimeError, match="running event loop"):
        current_scope()


def test_the_steps_of_a_grace_have_names() -> None:
    with pytest.raises(
        TypeError, match=r"Grace takes its steps by name: Grace\(cancel=5\), for example, not Grace\(5\)"
    ):
        Grace(5)  # type: ignore[call-arg]


async def test_a_block_that_was_left_cannot_be_left_again() -> None:
    scope = Scope("once")
    async with scope:
        pass
    with pytest.raises(RuntimeError, match="the block of scope 'once' is not entered, or was exited before"):
        await scope.__aexit__(None, None, None)
    with pytest.raises(RuntimeError, match="the block of scope 'never' is not entered"):
        await Scope("never").__aexit__(None, None, None)
