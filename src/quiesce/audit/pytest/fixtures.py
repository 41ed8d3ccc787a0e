"""Fresh function-scoped fixtures for each run of a sweep.

pytest creates the fixtures of a test once. A sweep needs them once per run: created, used and torn down inside the run,
and the async ones in the very task that runs the test. So each run gets its own request, which pytest's machinery
fills, with one difference: where pytest would create an async fixture, `Unentered` is raised instead. The run then
awaits the fixture, puts the value where pytest looks for it, and asks again; pytest finds the fixtures that exist by
then in its cache. Dependencies between fixtures and overrides thus remain pytest's business.

Finalisers are kept where pytest puts them, in the item's own list, and run from its end: the async ones are awaited,
the others called. A cancel during this does not skip any of them.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from _pytest.fixtures import SubRequest, resolve_fixture_function
from _pytest.tmpdir import tmppath_result_key

# These fixtures create event loops, and the sweep has its own.
_LOOPS = frozenset({"event_loop_policy", "_asyncio_loop_factory"})
_RUNNERS = "_scoped_runner"


class Unentered(Exception):
    """An async fixture that has to be awaited before pytest can continue."""

    def __init__(self, fixturedef: pytest.FixtureDef[Any], request: SubRequest, made: Any) -> None:
        super().__init__(
            f"the fixture {fixturedef.argname!r} is async, and was requested while a test or a fixture ran "
            "(request.getfixturevalue): name it as an argument"
        )
        self.fixturedef = fixturedef
        self.request = request
        self.made = made


def is_plumbing(name: str) -> bool:
    """Whether a fixture belongs to another plugin's event loop, and is skipped in a sweep."""
    return name in _LOOPS or name.endswith(_RUNNERS)


def is_async_fixture(fixturedef: pytest.FixtureDef[Any]) -> bool:
    """Whether a fixture has to be created inside the event loop."""
    function = fixturedef.func
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or _is_forced(function, "_force_asyncio_fixture")
        or _is_forced(function, "_force_trio_fixture")
    )


def _is_forced(function: Any, mark: str) -> bool:
    return getattr(getattr(function, "__func__", function), mark, False) is True


def stop_at_async(fixturedef: pytest.FixtureDef[Any], request: SubRequest) -> None:
    """Raise `Unentered` if the fixture that pytest is about to create for a sweep is async."""
    if request.scope != "function" or not is_async_fixture(fixturedef):
        return
    if fixturedef.argname == "nursery" and fixturedef.func.__module__.startswith("pytest_trio"):
        raise Unentered(fixturedef, request, _nursery())
    arguments = {name: request.getfixturevalue(name) for name in fixturedef.argnames}
    raise Unentered(fixturedef, request, resolve_fixture_function(fixturedef, request)(**arguments))


async def _nursery() -> AsyncGenerator[Any]:
    """The same as pytest-trio's `nursery`, whose tasks are cancelled when the test has ended."""
    import trio

    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


def make_wider_fixtures(item: pytest.Function) -> None:
    """Create the fixtures that all runs share; fails the test if one of them rules out a sweep."""
    for name in item.fixturenames:
        fixturedefs = item._fixtureinfo.name2fixturedefs.get(name)
        if not fixturedefs or is_plumbing(name):
            continue
        fixturedef = fixturedefs[-1]
        if name == "mock_clock" and fixturedef.func.__module__.startswith("pytest_trio"):
            pytest.fail(
                f"{item.name} cannot be swept: its fixture 'mock_clock' would be a second clock. A sweep has its own "
                "virtual clock, which jumps when nothing can run",
                pytrace=False,
            )
        if fixturedef.scope == "function":
            continue
        if is_async_fixture(fixturedef):
            pytest.fail(
                f"{item.name} cannot be swept: its fixture {name!r} is async and {fixturedef.scope}-scoped, so it "
                "would be created once, in another event loop, and no run would get a fresh one. Make it "
                "function-scoped, or do not use it in tests that are swept",
                pytrace=False,
            )
        item._request.getfixturevalue(name)


class _AsyncFinalizer:
    """The entry in the item's list of finalisers for a fixture whose tear-down has to be awaited."""

    def __init__(self, name: str, generator: AsyncGenerator[Any, Any]) -> None:
        self._name = name
        self._generator = generator

    async def finish(self) -> None:
        try:
            await self._generator.__anext__()
        except StopAsyncIteration:
            return
        raise RuntimeError(f"the async fixture {self._name!r} has yielded twice")

    def __call__(self) -> None:
        """Do nothing: pytest calls this after a run that was cut off, when it cannot be awaited any more."""


class FreshFixtures:
    """The function-scoped fixtures of a sweep, created afresh in each run."""

    def __init__(self, item: pytest.Function, function: Callable[..., Any]) -> None:
        self.item = item
        self._function = function
        self._finalizers = item.session._setupstate.stack[item][0]
        # Finalisers up to this one belong to the sweep as a whole.
        self._shared_count = len(self._finalizers)
        # The values of the fixtures in the latest run, for its check.
        self.values: dict[str, Any] = {}

    async def call(self) -> None:
        """Create the fixtures, call the test, tear down the fixtures."""
        # The previous run may have been cut off.
        self.drop()
        try:
            await self._fill()
            arguments = {name: self.item.funcargs[name] for name in self.item._fixtureinfo.argnames}
            await self._bound()(**arguments)
        except GeneratorExit:
            # The coroutine is being closed, and may not await anything any more.
            self.drop()
            raise
        except BaseException as error:
            await self._tear_down(error)
            raise
        await self._tear_down(None)

    async def _fill(self) -> None:
        item = self.item
        item._initrequest()
        # The tear-down of `tmp_path` expects this entry and removes it, so each run needs a new one.
        item.stash[tmppath_result_key] = {}
        if isinstance(item.parent, pytest.Class):
            item._instance = item.parent.newinstance()  # type: ignore[no-untyped-call]
        for name in item.fixturenames:
            while name not in item.funcargs and not is_plumbing(name):
                try:
                    item.funcargs[name] = item._request.getfixturevalue(name)
                except Unentered as need:
                    await self._enter(need)

    def _bound(self) -> Callable[..., Any]:
        if not isinstance(self.item.parent, pytest.Class):
            return self._function
        bound: Callable[..., Any] = getattr(self.item._instance, self.item.originalname)
        return bound

    async def _enter(self, need: Unentered) -> None:
        fixturedef, made = need.fixturedef, need.made
        key = fixturedef.cache_key(need.request)
        try:
            if inspect.isasyncgen(made):
                value = await made.__anext__()
                self.item.addfinalizer(_AsyncFinalizer(fixturedef.argname, made))
            elif isinstance(made, Generator):
                value = next(made)
                self.item.addfinalizer(lambda: next(made, None))
            else:
                value = await made if inspect.isawaitable(made) else made
        except BaseException as error:
            # As pytest does it: without a cached result, the fixture would count as never created and not be torn down.
            fixturedef.cached_result = (None, key, (error, error.__traceback__))
            raise
        fixturedef.cached_result = (value, key, None)

    async def _tear_down(self, error: BaseException | None) -> None:
        """Call all finalisers of this run; raises the first of their errors, unless the test's own matters more."""
        first: BaseException | None = None
        self._save_values()
        while len(self._finalizers) > self._shared_count:
            finalizer = self._finalizers.pop()
            try:
                if isinstance(finalizer, _AsyncFinalizer):
                    await finalizer.finish()
                else:
                    finalizer()
            except GeneratorExit:
                self.drop()
                raise
            except BaseException as failure:
                first = failure if first is None else first
        self._clean_folder()
        if first is None:
            return
        # If one of the two is a cancellation and the other a failure, the later one counts; of two failures the first.
        if error is None or isinstance(error, Exception) is not isinstance(first, Exception):
            raise first from error

    def _save_values(self) -> None:
        # Not `funcargs`: a run that was stopped in its set-up has created more fixtures than it has passed on.
        made = self.item._request._fixture_defs.items()
        self.values = {name: each.cached_result[0] for name, each in made if each.cached_result is not None}

    def _clean_folder(self) -> None:
        if (folder := self.values.get("tmp_path")) is not None:
            shutil.rmtree(str(folder), ignore_errors=True)

    def forget(self) -> None:
        """Drop all values, so that the audit can see which objects of the run are otherwise unreferenced."""
        self.values = {}
        self.item._initrequest()

    def drop(self) -> None:
        """Tear down what can be torn down without awaiting, after a run that was cut off."""
        if len(self._finalizers) <= self._shared_count:
            return
        self._save_values()
        while len(self._finalizers) > self._shared_count:
            try:
                self._finalizers.pop()()
            except Exception:
                # The run is discarded, and so are the errors of its fixtures.
                pass
        self._clean_folder()
