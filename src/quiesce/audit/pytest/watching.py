"""`--quiesce`: every async test gets a leak verdict, no matter which plugin runs it.

The verdict is given at one of two moments. If nothing that still has to be torn down could change it, it is given at
the end of the call, and the test simply fails. Otherwise, and for everything that closing the loop brings up, it is
given after the test's own fixtures have been torn down and before any wider one is: as an error in the tear-down.

Nothing that a test can observe is changed. Its warnings and errors go where they would have gone, the plugin holds no
reference to its objects and does not drive its loops, and the settings of the garbage collector stay as they are.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.audit.model import Sighting

from .collector import Collector
from .complaints import Listener
from .ledger import ENTRY, WORLD, Ledger, entry
from .loops import Observer, Owner
from .process import ProcessWatch
from .settings import Ignore, ignores_of, is_async, sweep_marker

if TYPE_CHECKING:
    from quiesce.audit.findings import Finding

# Fixtures of these packages cannot clean up what a test leaves behind.
_PLUMBING = ("_pytest.", "pytest_asyncio.", "anyio.", "pytest_trio.", "xdist.")
# Except these, which pytest makes from the users' own `setup_method` and the like.
_XUNIT = ("_xunit_", "_unittest_")
_STOPS = (KeyboardInterrupt, SystemExit, pytest.exit.Exception)


class _Watched:
    """A test, from the start of its set-up until its own fixtures have been torn down."""

    def __init__(self, item: pytest.Function, ledger: Ledger) -> None:
        self.item = item
        self.owner = Owner(item.nodeid, is_test=True, file=str(item.path))
        self.ignores = [*ignores_of(item), *ledger.settings.ignores]
        self.known = ledger.known_keys(item.nodeid, WORLD)
        self.used: list[Ignore] = []
        # Whether it has function-scoped fixtures.
        self.has_fixtures = False
        self.has_passed = False


class Watching:
    """The pytest hooks of `--quiesce`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._observer = Observer(self._see)
        self._collector = Collector()
        self._current: _Watched | None = None
        # Nothing has run since the last verdict, which ended with a collection.
        self._is_collected = False
        self._stack = ExitStack()
        self._stack.callback(self._collector.stop)
        self._stack.enter_context(self._observer.installed())
        self._watch = self._stack.enter_context(ProcessWatch())
        self._listener = Listener(self._hear, self._hear_unclosed, lambda: self._collector.is_collecting)

    def _see(self, sighting: Sighting) -> None:
        if self._current is not None:
            self._watch.see(sighting)

    def _hear(self, sighting: Sighting) -> None:
        if self._current is not None and self._collector.is_sure():
            self._watch.see(sighting)

    def _hear_unclosed(self, sighting: Sighting) -> None:
        if self._current is not None and self._collector.is_sure():
            self._watch.see_unclosed(sighting)

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        # First of all plugins: pytest then looks for the last time at errors that could not be raised.
        self._stack.close()

    def pytest_collection_finish(self) -> None:
        if (uvloop := sys.modules.get("uvloop")) is not None:
            # libuv opens some descriptors once per process. Open them now, or the first test would leak them.
            uvloop.new_event_loop().close()
        # Not earlier: now pytest has installed its own hook, and gets what the listener passes on.
        self._listener.install()
        self._stack.callback(self._listener.undo)
        self._collector.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._collector.expect_older()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        if not isinstance(item, pytest.Function) or not is_async(item) or sweep_marker(item) is not None:
            self._is_collected = False
            yield
            return
        self._begin(item)
        yield
        # pytest calls the finalisers from the end of the list, so the first one runs after all of the test's own
        # fixtures have been torn down.
        finalizers = item.session._setupstate.stack[item][0]
        finalizers.insert(0, self._give_last_verdict)

    def _begin(self, item: pytest.Function) -> None:
        self._observer.notice_imports()
        self._collector.begin(follows_a_verdict=self._is_collected)
        self._watch.begin()
        self._listener.begin()
        self._current = _Watched(item, self._ledger)
        self._observer.owner = self._current.owner

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if self._current is None:
            return (yield)
        if request.scope == "function":
            self._current.has_fixtures = True
            return (yield)
        watch, observer = self._watch, self._observer
        owner, was_muted = observer.owner, watch.is_muted
        observer.owner, watch.is_muted = Owner(fixturedef.argname, is_test=False), True
        try:
            with watch.excused():
                return (yield)
        finally:
            observer.owner, watch.is_muted = owner, was_muted

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        watched = self._current
        if watched is None:
            yield
            return
        self._watch.start_call(has_fixtures=watched.has_fixtures)
        try:
            yield
        except _STOPS:
            raise
        except BaseException:
            text = self._judge(watched, at_call=True)
            if text:
                item.add_report_section("call", "quiesce", text)
            raise
        watched.has_passed = True
        text = self._judge(watched, at_call=True)
        if text:
            watched.has_passed = False
            pytest.fail(text, pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._end()

    def _give_last_verdict(self) -> None:
        watched = self._current
        if watched is None:
            return
        try:
            text = self._judge(watched, at_call=False)
        finally:
            self._end()
        if watched.has_passed and watched.ignores:
            from .verdict import stale

            text = "\n".join(part for part in (text, stale(watched.ignores, watched.used)) if part)
        if text and watched.has_passed:
            pytest.fail(text, pytrace=False)
        elif text:
            watched.item.add_report_section("teardown", "quiesce", text)

    def _end(self) -> None:
        watched, self._current = self._current, None
        if watched is not None:
            self._observer.owner = None
            self._observer.forget(watched.owner)
            self._listener.end()
            self._is_collected = True

    def _judge(self, watched: _Watched, *, at_call: bool) -> str:
        """Look for what the test has left behind, and return the message about it; "" if nothing counts."""
        watch, observer = self._watch, self._observer
        if not at_call:
            self._collector.end()
        if (not at_call or not _has_teardown(watched.item)) and (
            watch.has_new(in_call=at_call) or observer.may_find()
        ):
            self._collector.collect_everything()
            observer.look()
            look = watch.look_at_call if at_call else watch.look_at_all
            look(has_libuv=observer.has_libuv)
        seen = watch.take()
        # The usual case. Most of the audit is not even imported then.
        if not seen:
            watched.item.stash[ENTRY] = entry((), watched.ignores, watched.used)
            return ""
        from .verdict import apply_ignores, describe, find

        findings = find(seen)
        watched.used += apply_ignores(findings, watched.ignores, watched.known)
        self._record(watched, findings)
        if not any(finding.counts for finding in findings):
            return ""
        return describe(findings, watched.item.name)

    def _record(self, watched: _Watched, findings: list[Finding]) -> None:
        settings = self._ledger.settings
        data = entry(findings, watched.ignores, watched.used)
        if settings.html is not None:
            from .verdict import watched_result

            result = watched_result(watched.item.nodeid, findings)
            data["result"] = entry((), (), (), result=result, keep_result=True)["result"]
        watched.item.stash[ENTRY] = data
        if settings.write is not None:
            for finding in findings:
                # It will be in the baseline file, and must not fail the test.
                finding.known = True


def _has_teardown(item: pytest.Function) -> bool:
    """Whether code of the users' that may clean up after the test has yet to run."""
    for fixturedef in item._request._fixture_defs.values():
        if fixturedef.scope == "function" and _may_clean_up(fixturedef, item):
            return True
    # The first one is `_give_last_verdict`.
    finalizers = item.session._setupstate.stack[item][0][1:]
    return not all(map(_is_plumbing, finalizers))


def _may_clean_up(fixturedef: pytest.FixtureDef[Any], item: pytest.Function) -> bool:
    function = fixturedef.func
    if (getattr(function, "__module__", "") + ".").startswith(
        _PLUMBING
    ) and not fixturedef.argname.startswith(_XUNIT):
        return False
    if inspect.isasyncgenfunction(function):
        # pytest-trio sets up and tears down all async fixtures inside the call.
        return item.get_closest_marker("trio") is None
    return inspect.isgeneratorfunction(function) or not all(map(_is_plumbing, fixturedef._finalizers))


def _is_plumbing(finalizer: object) -> bool:
    if isinstance(finalizer, functools.partial):
        finalizer = finalizer.func
    return ((getattr(finalizer, "__module__", None) or "") + ".").startswith(_PLUMBING)
