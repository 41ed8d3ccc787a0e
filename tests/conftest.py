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
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import hypothesis
import pytest
from hypothesis import strategies

import tests.time_limit
from tests.inherited import put_in_order
from tests.leaks import Snapshot
from tests.time_limit import TIME_LIMIT, keep_real_stderr, time_limit
from tests.world import Hung, LeftBehind, World, make_world, world_names

HERE = Path(__file__).parent
put_in_order()  # before the conftest of a package imports what looks at the environment

# One slow example says more about the machine than about the code; a test as a whole has its time limit.
hypothesis.settings.register_profile("quiesce", deadline=None)
# What decides about a change draws the same examples each time; everybody else draws new ones.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("QUIESCE_EXAMPLES", "quiesce"))


class Collector:
    """Collects garbage after each test, and keeps that quick.

    A collection looks at every object that the process has. What is there before the first test, and what is imported during the
    tests, is never garbage: set aside, a collection takes a millisecond or two instead of fifty. With 10,000 tests, that is
    half of the time of all.
    """

    QUICK = 0.004  # seconds of CPU

    def __init__(self) -> None:
        self._took = 0.0

    def collect(self) -> None:
        began = time.thread_time()
        gc.collect()
        self._took = time.thread_time() - began

    def keep_quick(self) -> None:
        """Between two tests: set aside what has come to stay."""
        if self._took > self.QUICK:
            self.set_aside()

    def set_aside(self) -> None:
        gc.collect()
        gc.freeze()
        self._took = 0.0


collector = Collector()


def pytest_configure() -> None:
    keep_real_stderr()


def pytest_collection_finish() -> None:
    # What a loop opens once a process, such as libuv's signal pipe, is not the first test's leak.
    for name in world_names():
        make_world(name).run(functools.partial(anyio.sleep, 0))
    # On its first example Hypothesis looks for who refers to its random numbers, and would not see what is set aside.
    hypothesis.given(strategies.none())(lambda nothing: None)()
    collector.set_aside()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("worlds")
    group.addoption("--every-world", action="store_true", help="run each async test in every world")
    group.addoption(
        "--one-world",
        action="store_true",
        help="run only those async tests in every world that depend on the interpreter, and each other one in one",
    )


# What depends on the event loop and on the interpreter. The packages above them reach both through these.
FOUNDATIONS = ("tests", "kernel", "audit", "wire", "asgi", "fixtures")


def package_of(item: pytest.Item | pytest.Collector) -> str:
    folder = item.path.parent
    return next((path.name for path in (folder, *folder.parents) if path.parent == HERE), "tests")


def worlds_to_use(names: list[str], metafunc: pytest.Metafunc) -> list[str]:
    """Not all worlds tell us more for each test; `--every-world` uses them nevertheless."""
    package = package_of(metafunc.definition)
    if metafunc.config.getoption("--every-world") or package in FOUNDATIONS:
        return names
    if metafunc.config.getoption("--one-world"):
        # The eager one, where it exists: `make test` on the oldest interpreter has been in the others.
        return sorted(names, key=("asyncio-eager", "asyncio", "trio", "uvloop").index)[:1]
    # uvloop runs in real time: it is for what talks to the loop, to other programs and to other machines.
    if package == "models" or metafunc.definition.get_closest_marker("real_time"):
        return names
    return [name for name in names if name != "uvloop"] or names


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
    names = worlds_to_use(names, metafunc)
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
    """Leave out, rather than skip, what has no world here, and sweeps that would tell nothing new on another interpreter."""
    one_world = config.getoption("--one-world")
    left_out = {
        item
        for item in items
        if has_no_world(item)
        or (one_world and item.get_closest_marker("audit") and package_of(item) not in FOUNDATIONS)
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


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
def pytest_runtest_protocol() -> Generator[None, bool | None, bool | None]:
    done = yield
    collector.keep_quick()
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None]:
    with time_limit(tests.time_limit.FIXTURE_LIMIT, alarm=pytest.fail.Exception):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    with time_limit(tests.time_limit.FIXTURE_LIMIT, alarm=pytest.fail.Exception):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    world = world_of(item) if isinstance(item, pytest.Function) else None
    limit = item.get_closest_marker("time_limit")
    before = Snapshot()
    try:
        with time_limit(limit.args[0] if limit else TIME_LIMIT, world):
            yield
        collector.collect()
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
