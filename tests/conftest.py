"""How tests run here.

An `async def test_...` runs once in every world (see `tests.world`), in virtual time. Markers choose
otherwise: `worlds("asyncio", "trio")`, `real_time`, `virtual_time(grace=0.01)`, `time_limit(60)`. A test
that asks for `world` is told where it is; a plain `def` test that asks for it also runs once in every world
and may call `world.run(main)` itself.

After each test nothing may be left: no task, thread, child process or file descriptor, and no complaint of
the event loop. The collector runs before that is judged, so that what it finds is blamed on the test that
dropped it.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
from collections.abc import Callable, Generator
from typing import Any

import anyio
import hypothesis
import pytest
from hypothesis import strategies

from tests.leaks import Snapshot
from tests.time_limit import TIME_LIMIT, time_limit
from tests.world import Hung, LeftBehind, World, make_world, world_names

# One slow example says more about the machine than about the code; a test as a whole has its time limit.
hypothesis.settings.register_profile("quiesce", deadline=None)
# What decides about a change draws the same examples each time; everybody else draws new ones.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("QUIESCE_EXAMPLES", "quiesce"))


def pytest_configure() -> None:
    # A shell without job control starts what it runs in the background deaf to Ctrl-C, and all that starts from there.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # What a loop opens once a process, such as libuv's signal pipe, is not the first test's leak.
    for name in world_names():
        make_world(name).run(functools.partial(anyio.sleep, 0))
    # On its first example Hypothesis looks for who refers to its random numbers, and would not see what is frozen.
    hypothesis.given(strategies.none())(lambda nothing: None)()
    # Nothing that exists by now is any test's garbage. Without it a collection takes a millisecond or two
    # instead of fifty.
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not is_async(metafunc.function) and "world" not in metafunc.fixturenames:
        return
    if "world" not in metafunc.fixturenames:
        metafunc.fixturenames.append("world")
    names = world_names()
    if chosen := metafunc.definition.get_closest_marker("worlds"):
        if unknown := set(chosen.args) - {"asyncio", "asyncio-eager", "uvloop", "trio"}:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: no such world: {', '.join(sorted(unknown))}"
            )
        names = [name for name in names if name in chosen.args]
    if not names:
        metafunc.parametrize("world", [None], ids=["nowhere"])
        return
    virtual = metafunc.definition.get_closest_marker("real_time") is None
    pace = metafunc.definition.get_closest_marker("virtual_time")
    worlds = [make_world(name, virtual=virtual, **(pace.kwargs if pace else {})) for name in names]
    # uvloop has the real clock: its tests take as long as they say.
    marks = {"uvloop": [pytest.mark.slow]}
    params = [pytest.param(made, marks=marks.get(name, ())) for name, made in zip(names, worlds, strict=True)]
    metafunc.parametrize("world", params, ids=names)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, rather than skip, what has no world on this interpreter."""
    nowhere = [item for item in items if has_no_world(item)]
    if nowhere:
        config.hook.pytest_deselected(items=nowhere)
        items[:] = [item for item in items if item not in nowhere]


def has_no_world(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("world", item) is None


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inner_test(function) or function)


def inner_test(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What a test decorated with hypothesis' `given` calls once an example."""
    inner: Callable[..., Any] | None = getattr(getattr(function, "hypothesis", None), "inner_test", None)
    return inner


def world_of(item: pytest.Function) -> World | None:
    world = item.callspec.params.get("world") if hasattr(item, "callspec") else None
    return world if isinstance(world, World) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    __tracebackhide__ = True
    function, world = pyfuncitem.obj, world_of(pyfuncitem)
    if world is None or not is_async(function):
        return None
    if inner := inner_test(function):

        @functools.wraps(inner)
        def run_example(**kwargs: Any) -> None:
            __tracebackhide__ = True
            world.run(functools.partial(inner, **kwargs))

        function.hypothesis.inner_test = run_example
        try:
            function(**arguments(pyfuncitem))
        finally:
            function.hypothesis.inner_test = inner
    else:
        world.run(functools.partial(function, **arguments(pyfuncitem)))
    return True


def arguments(item: pytest.Function) -> dict[str, Any]:
    return {name: item.funcargs[name] for name in item._fixtureinfo.argnames}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    world = world_of(item) if isinstance(item, pytest.Function) else None
    limit = item.get_closest_marker("time_limit")
    before = Snapshot()
    try:
        with time_limit(limit.args[0] if limit else TIME_LIMIT, world):
            yield
        gc.collect()
        left = before.wait_for_leaks_to_go()
        errors = world.take_errors() if world else []
        if left:
            pytest.fail("the test left behind: " + "\n".join(left), pytrace=False)
        if errors:
            pytest.fail("the event loop reported what nobody handled: " + "\n".join(errors), pytrace=False)
    except (LeftBehind, Hung) as verdict:
        text = "\n".join([str(verdict), *getattr(verdict, "__notes__", [])])
        raise pytest.fail.Exception(text, pytrace=False) from None
    except BaseException as failure:
        for error in world.take_errors() if world else []:
            failure.add_note(f"The event loop also reported: {error}")
        raise
    finally:
        before.end_new_children()
