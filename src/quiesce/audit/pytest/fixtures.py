"""Fresh function-scoped fixtures for each run of a sweep.

pytest makes the fixtures of a test once. A sweep needs them once a run, made, used and undone inside the run, and the
async ones in the very task that runs the test. So each run gets a request of its own, and is filled by pytest's own
machinery, with one difference: where that would make an async fixture, `Unentered` is raised instead. The run then
awaits the fixture, leaves the value where pytest looks for it, and asks again; what is made by then is found
made. Whatever depends on whatever, and however it is overridden, stays pytest's business.

Finalisers go where pytest puts them, on the item's own list, and are called from its end: the async ones awaited, the
others called. A cancel on the way ends none of that early.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from _pytest.fixtures import SubRequest, resolve_fixture_function
from _pytest.tmpdir import tmppath_result_key

# They make event loops, and the sweep has its own.
_LOOPS = frozenset({"event_loop_policy", "_asyncio_loop_factory"})
_RUNNERS = "_scoped_runner"


class Unentered(Exception):
    """An async fixture that has to be awaited before pytest can go on."""

    def __init__(self, fixturedef: pytest.FixtureDef[Any], request: SubRequest, made: Any) -> None:
        super().__init__(
            f"the fixture {fixturedef.argname!r} is async, and was asked for while a test or a fixture ran "
            "(request.getfixturevalue): name it as an argument"
        )
        self.fixturedef = fixturedef
        self.request = request
        self.made = made


def is_plumbing(name: str) -> bool:
    return name in _LOOPS or name.endswith(_RUNNERS)


def is_async_fixture(fixturedef: pytest.FixtureDef[Any]) -> bool:
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
    """Call where pytest is about to make a fixture for a sweep; raises `Unentered` for an async one."""
    if request.scope != "function" or not is_async_fixture(fixturedef):
        return
    if fixturedef.argname == "nursery" and fixturedef.func.__module__.startswith("pytest_trio"):
        raise Unentered(fixturedef, request, _nursery())
    arguments = {name: request.getfixturevalue(name) for name in fixturedef.argnames}
    raise Unentered(fixturedef, request, resolve_fixture_function(fixturedef, request)(**arguments))


async def _nursery() -> AsyncGenerator[Any]:
    """What pytest-trio's `nursery` is: ended, not waited for, when the test is over."""
    import trio

    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


def make_wider_fixtures(item: pytest.Function) -> None:
    """Make the fixtures that all runs share, or refuse the sweep."""
    for name in item.fixturenames:
        fixturedefs = item._fixtureinfo.name2fixturedefs.get(name)
        if not fixturedefs or is_plumbing(name):
            continue
        fixturedef = fixturedefs[-1]
        if name == "mock_clock" and fixturedef.func.__module__.startswith("pytest_trio"):
            pytest.fail(
                f"{item.name} cannot be swept: its fixture 'mock_clock' would be a second clock. A sweep has a virtual "
                "clock of its own, which jumps when nothing can run",
                pytrace=False,
            )
        if fixturedef.scope == "function":
            continue
        if is_async_fixture(fixturedef):
            pytest.fail(
                f"{item.name} cannot be swept: its fixture {name!r} is async and {fixturedef.scope}-scoped, so that "
                "it would be made once, in another event loop, and no run would get a fresh one. Make it "
                "function-scoped, or leave it out of tests that are swept",
                pytrace=False,
            )
        item._request.getfixturevalue(name)


class _AsyncFinalizer:
    """Stands in the item's list of finalisers for a fixture that has to be awaited."""

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
        """The run was cut off: nobody can await this any more."""


class FreshFixtures:
    """The function-scoped fixtures of a sweep, made anew in each run."""

    def __init__(self, item: pytest.Function, function: Callable[..., Any]) -> None:
        self.item = item
        self._function = function
        self._finalizers = item.session._setupstate.stack[item][0]
        self._kept = len(self._finalizers)
        self.values: dict[str, Any] = {}  # of the run that is over, for its check

    async def call(self) -> None:
        """Make the fixtures, call the test, undo the fixtures."""
        self.drop()  # of a run that was cut off
        try:
            await self._fill()
            arguments = {name: self.item.funcargs[name] for name in self.item._fixtureinfo.argnames}
            await self._bound()(**arguments)
        except GeneratorExit:
            self.drop()
            raise
        except BaseException as error:
            await self._undo(error)
            raise
        await self._undo(None)

    async def _fill(self) -> None:
        item = self.item
        item._initrequest()
        item.stash[tmppath_result_key] = {}  # `tmp_path` looks for it when it goes, and takes it away
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
            # As pytest does it: without a result, the fixture would count as never made, and not be undone.
            fixturedef.cached_result = (None, key, (error, error.__traceback__))
            raise
        fixturedef.cached_result = (value, key, None)

    async def _undo(self, error: BaseException | None) -> None:
        """Call all finalisers of this run; raise the first of their errors, if the test has raised none."""
        first: BaseException | None = None
        self._note_values()
        while len(self._finalizers) > self._kept:
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
        # Of a cancellation and a failure the later one is the news; of two failures the first.
        if error is None or isinstance(error, Exception) is not isinstance(first, Exception):
            raise first from error

    def _note_values(self) -> None:
        # Not `funcargs`: a run that was stopped in its set-up has made more than it got to handing over.
        made = self.item._request._fixture_defs.items()
        self.values = {name: each.cached_result[0] for name, each in made if each.cached_result is not None}

    def _clean_folder(self) -> None:
        if (folder := self.values.get("tmp_path")) is not None:
            shutil.rmtree(str(folder), ignore_errors=True)

    def forget(self) -> None:
        """Hold no value any longer: what a run has left must be seen to be dropped."""
        self.values = {}
        self.item._initrequest()

    def drop(self) -> None:
        """Undo what can be undone without awaiting: the run was cut off."""
        if len(self._finalizers) <= self._kept:
            return
        self._note_values()
        while len(self._finalizers) > self._kept:
            try:
                self._finalizers.pop()()
            except Exception:  # of a run that is being thrown away
                pass
        self._clean_folder()
