"""`@pytest.mark.cancel_everywhere`: the test becomes a scenario, and the audit runs it.

The sweep takes the test over from the plugin that would have run it. That plugin creates no loop and no fixture for it;
its markers only choose the backend: trio's marker or anyio's `anyio_backend` select trio.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quiesce.audit.findings import AuditResult, matches
from quiesce.audit.model import WORLDS, BadScenario, BadToken, UnknownStop, check_patience, choose_stops
from quiesce.audit.sweep import audit, read_ignores, read_phases

from .fixtures import FreshFixtures, make_wider_fixtures
from .ledger import ENTRY, Ledger, entry
from .settings import SWEEP_OPTIONS, ignores_of, is_async


def problems_of_sweep(item: pytest.Item, mark: pytest.Mark) -> Iterator[str]:
    """Messages about what is wrong with the marker, before anything runs."""
    if not isinstance(item, pytest.Function) or not is_async(item):
        yield "the test is not an async function, so it has no point where it could be stopped"
        return
    if hasattr(item.obj, "hypothesis"):
        yield "a hypothesis test cannot be swept: each example would be a scenario of its own"
    options = mark.kwargs
    if mark.args:
        yield f"it takes keyword arguments only, not {mark.args[0]!r}"
    if unknown := sorted(set(options) - SWEEP_OPTIONS):
        yield f"there is no option {', '.join(unknown)}; there are {', '.join(sorted(SWEEP_OPTIONS))}"
    backend = options.get("backend") or _static_backend(item)
    if backend not in WORLDS:
        yield f"there is no backend {backend!r}; there are {', '.join(WORLDS)}"
        return
    if options.get("depth", 1) not in (1, 2):
        yield f"depth must be 1 or 2, not {options['depth']!r}"
    if options.get("check") is not None and not callable(options["check"]):
        yield f"check={options['check']!r} is not a function"
    try:
        choose_stops(options.get("stops"), "trio" if backend == "trio" else "asyncio", "coroutine")
        read_phases(options.get("phases"))
        read_ignores(options.get("ignore"))
        if options.get("patience") is not None:
            check_patience(options["patience"])
    except ValueError as error:  # UnknownStop is one
        yield str(error)


def _static_backend(item: pytest.Item) -> str:
    """The backend, as far as it is known before any fixture exists."""
    if item.get_closest_marker("trio") is not None:
        return "trio"
    callspec = getattr(item, "callspec", None)
    return _backend_name(
        callspec.params.get("anyio_backend", "asyncio") if callspec is not None else "asyncio"
    )


def _backend_name(value: Any) -> str:
    """The name in a value of anyio's `anyio_backend`, which is a name or a pair of name and options."""
    return str(value[0] if isinstance(value, tuple) else value)


class TestSweep:
    """Takes an item over: replaces its `setup` and `runtest` for good."""

    __test__ = False

    def __init__(self, item: pytest.Function, mark: pytest.Mark, ledger: Ledger) -> None:
        self.item = item
        # Kept, because pytest-trio replaces `item.obj` before the call.
        self._function: Callable[..., Any] = item.obj
        self._options = dict(mark.kwargs)
        self._ledger = ledger
        self._last_error: BaseException | None = None
        item.setup = self.set_up  # type: ignore[method-assign]
        item.runtest = self.run  # type: ignore[method-assign]

    def set_up(self) -> None:
        make_wider_fixtures(self.item)

    def run(self) -> None:
        """Sweep the test, record the result, and fail the test unless the verdict is CLEAN."""
        item, settings = self.item, self._ledger.settings
        self._fixtures = FreshFixtures(item, self._function)
        ignores = [*ignores_of(item), *settings.ignores]
        result = self._audit({ignore.pattern: ignore.reason for ignore in ignores})
        self._raise_own_error(result)
        result.replay_with = f"pytest {shlex.quote(item.nodeid)} --quiesce-at"
        used = [i for i in ignores if any(matches(finding, i.pattern) for finding in result.findings)]
        # An incomplete sweep says nothing about ignores and baseline entries that it did not show.
        is_whole = settings.at is None and result.is_complete and result.verdict in ("CLEAN", "FINDINGS")
        own = {ignore.pattern for ignore in ignores if ignore.is_own and is_whole}
        result.stale_ignores = [pattern for pattern in result.stale_ignores if pattern in own]
        strips = ["baseline", *(f"{strip.stop}/{strip.phase}" for strip in result.strips)]
        data = entry(
            result.findings,
            ignores,
            used,
            result=result,
            strips=strips,
            keep_result=settings.html is not None,
        )
        if not is_whole:
            data["declared"] = []
            data["strips"] = []
        item.stash[ENTRY] = data
        if settings.write is not None:
            for finding in result.errors:
                # It will be in the baseline file, and must not fail the test.
                finding.known = True
        if result.verdict == "FINDINGS" and not result.errors and not result.stale_ignores:
            result.verdict = "CLEAN"
        if not result.clean:
            pytest.fail(str(result), pytrace=False)

    def _raise_own_error(self, result: AuditResult) -> None:
        """Let a test that fails or is skipped without being stopped do so as if it had no marker."""
        error, self._last_error = self._last_error, None
        if result.verdict != "BASELINE-BROKEN" or error is None:
            return
        if isinstance(error, Exception):
            self.item.stash[ENTRY] = entry((), (), (), result=result)
            why = result.reason if "real_io" in result.reason else "it fails without being stopped"
            error.add_note(f"quiesce: the test was not swept: {why}")
        raise error

    def _audit(self, ignores: dict[str, str]) -> AuditResult:
        options = self._options
        backend = options.pop("backend", None) or self._backend()
        check = options.pop("check", None)
        options.pop("ignore", None)
        self._has_check = check is not None
        settings = self._ledger.settings
        try:
            return audit(
                self._as_scenario(),
                **options,
                backend=backend,
                check=self._check(check) if check is not None else None,
                ignore=ignores,
                baseline=self._ledger.known_keys(self.item.nodeid, backend),
                at=settings.at,
                timelines=settings.html is not None,
                name=self.item.originalname,
                target=self.item.nodeid,
            )
        except (BadToken, BadScenario, UnknownStop, ValueError, ImportError) as error:
            pytest.fail(f"{self.item.name} cannot be swept: {error}", pytrace=False)

    def _backend(self) -> str:
        if self.item.get_closest_marker("trio") is not None:
            return "trio"
        if "anyio_backend" in self.item.fixturenames:
            return _backend_name(self.item._request.getfixturevalue("anyio_backend"))
        return "asyncio"

    def _as_scenario(self) -> Callable[[], Any]:
        """A scenario with the code of the test, so that a change of the test invalidates replay tokens."""

        async def scenario() -> None:
            await self._run_once()

        scenario.__wrapped__ = self._function  # type: ignore[attr-defined]
        # Hides the arguments of the test, which `_run_once` fills with fixtures.
        scenario.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        return scenario

    async def _run_once(self) -> None:
        self._last_error = None
        try:
            await self._fixtures.call()
        except (Exception, pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception) as error:
            self._last_error = error
            raise
        finally:
            if not self._has_check:
                self._fixtures.forget()

    def _check(self, check: Callable[..., Any]) -> Callable[[], Any]:
        """Wrap the user's check so that it is called with the fixtures that it names as arguments."""
        names = list(inspect.signature(check).parameters)
        missing = [name for name in names if name not in self.item.fixturenames]
        if missing:
            pytest.fail(
                f"{self.item.name} cannot be swept: its check asks for {', '.join(missing)}, which the test does not "
                "use: the arguments of a check must be fixtures of its test",
                pytrace=False,
            )

        def checked() -> Any:
            values = self._fixtures.values
            self._fixtures.forget()
            if any(name not in values for name in names):
                return None  # stopped before the fixtures existed
            return check(**{name: values[name] for name in names})

        checked.__qualname__ = getattr(check, "__qualname__", "check")
        return checked
