"""`audit()`: the function behind the command and the pytest plugin, for use in your own tests too."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

from quiesce.audit.findings import AuditResult, matches
from quiesce.audit.model import (
    PHASES,
    STOPS,
    Limits,
    Phase,
    Scenario,
    Token,
    UnknownStop,
    World,
    choose_stops,
    parse_token,
)
from quiesce.audit.watch import Watch, closed_world
from quiesce.audit.worlds import GuardedWorld, Interrupted

from .sweep import (
    BrokenBaseline,
    Budget,
    NotDeterministic,
    NothingToDo,
    Progress,
    Sweep,
    Unresolved,
    quiet_collector,
)


def audit(
    scenario: Callable[[], Any],
    *,
    stops: Iterable[str] | str | None = None,
    phases: Iterable[Phase] | str | None = None,
    backend: str = "asyncio",
    depth: Literal[1, 2] = 1,
    check: Callable[[], Any] | None = None,
    again: bool = False,
    real_io: bool = False,
    patience: float | None = None,
    seed: int | None = None,
    dedupe: bool = False,
    sample: int | None = None,
    time_limit: float | None = None,
    ignore: Mapping[str, str] | None = None,
    baseline: Iterable[str] = (),
    at: str | None = None,
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
    timelines: bool = False,
    name: str | None = None,
    target: str | None = None,
) -> AuditResult:
    """Stop `scenario` at every point where it can be stopped, and report what is left over each time.

        from quiesce.audit import audit

        async def scenario():
            async with Connection() as connection:
                await connection.send(b"hello")

        audit(scenario).assert_clean()

    `scenario` is a function without arguments: an `async def`, an async generator function, or a callable that returns
    an async context manager. The audit runs it again and again, each time with a fresh event loop, a virtual clock and
    a fixed order of steps, and stops it at one more point, until every suspension point has been used.

    - `stops`: the kinds of stop (a list of names, a string with commas, or "all"); `phases`: early, late, unstarted.
    - `backend`: asyncio, asyncio-eager, uvloop or trio.
    - `depth=2`: stop it a second time at every point after the first stop.
    - `check`: your own function, sync or async, which is called after each run. It is a finding if the function raises
      or returns a false value other than None.
    - `again=True`: check after each stop that the scenario still runs undisturbed. Without it, the audit checks once
      per strip.
    - `real_io=True`: allow real sockets, processes and threads. Without it they are refused.
    - `patience`: with real I/O, how many real seconds a connection may be silent before the virtual clock jumps
      (default 0.05). A sighting after such a jump counts only if it comes back with ten times the patience.
    - `seed`: change the order in which the tasks of a round take their steps.
    - `dedupe`, `sample`, `time_limit`: limits for big scenarios; the result's `scope` says what was covered.
    - `ignore`: findings that do not count, as `{"leaked Client._poll*": "why"}`. A pattern that matches nothing any
      more fails the audit.
    - `baseline`: keys of findings that are known and do not count.
    - `at`: a replay token, to repeat exactly that run.
    """
    if _is_running():
        raise RuntimeError(
            "audit() runs event loops of its own and cannot be called inside a running one: "
            "call it from a plain function"
        )
    checked = Scenario(scenario, name=name)
    limits = limits or Limits()
    if patience is not None:
        limits = replace(limits, patience=patience)
    token = _read_token(at)
    wanted = read_phases(phases)
    ignores = read_ignores(ignore)
    with ExitStack() as stack:
        # The watch comes first and so is closed last: the collection at the end of `quiet_collector` has to happen
        # while the watch is still installed and muted.
        watch = stack.enter_context(Watch(patience=limits.linger))
        world = make_world(backend, watch, real_io=real_io, seed=seed, limits=limits)
        chosen = choose_stops(stops if token is None else [token.stop], world.backend, checked.shape)
        result = AuditResult(
            checked.name,
            target or _target_of(scenario),
            world.name,
            world.backend,
            "CLEAN",
            seed=seed,
            deduped=dedupe,
            options=_options(backend, real_io, seed, patience),
        )
        if not real_io:
            stack.enter_context(closed_world())
        stack.enter_context(quiet_collector())
        # Every run seeds the global generator; give the caller its state back.
        stack.callback(random.setstate, random.getstate())
        started = time.monotonic()
        guard = stack.enter_context(GuardedWorld(world, watch, limits.run))
        sweep = Sweep(
            guard,
            checked,
            result,
            check=check,
            budget=Budget(dedupe, sample, time_limit, seed or 0),
            again=again,
            progress=progress,
        )
        try:
            sweep.baseline()
            if token is not None:
                sweep.replay(token)
            else:
                sweep.sweep(chosen, wanted, depth)
            if timelines:
                sweep.draw_timelines()
        except BrokenBaseline as broken:
            result.verdict, result.reason = "BASELINE-BROKEN", str(broken)
        except NotDeterministic as difference:
            result.verdict, result.reason = "NON-DETERMINISTIC", str(difference)
        except (Unresolved, NothingToDo) as unresolved:
            result.verdict, result.reason = "UNRESOLVED", str(unresolved)
        except Interrupted as interrupted:
            sweep.cut_short()
            result.seconds = time.monotonic() - started
            _give_verdict(result, ignores, set(baseline), is_replay=True, is_certain=False)
            interrupted.result = result
            raise
        if guard.changed_directory:
            result.notes.append("it changes the working directory, which the audit restored after each run")
        result.seconds = time.monotonic() - started
    if result.verdict == "CLEAN":
        _give_verdict(
            result, ignores, set(baseline), is_replay=token is not None, is_certain=world.is_deterministic
        )
    return result


def make_world(backend: str, watch: Watch, *, real_io: bool, seed: int | None, limits: Limits) -> World:
    """Create the world of this name; raises an error that says what to install or change if that is not possible."""
    if backend in ("asyncio", "asyncio-eager"):
        from quiesce.audit.worlds import AsyncioWorld

        eager = backend == "asyncio-eager"
        if eager and not hasattr(asyncio, "eager_task_factory"):
            raise ValueError("asyncio-eager needs Python 3.12: eager tasks came with it")
        return AsyncioWorld(watch, eager=eager, real_io=real_io, seed=seed, limits=limits)
    if backend == "uvloop":
        from quiesce.audit.worlds import UvloopWorld

        return UvloopWorld(watch, seed=seed, limits=limits)
    if backend == "trio":
        from quiesce.audit.trio import TrioWorld

        return TrioWorld(watch, real_io=real_io, seed=seed, limits=limits)
    raise ValueError(f"there is no backend {backend!r}; there are asyncio, asyncio-eager, uvloop and trio")


def _give_verdict(
    result: AuditResult, ignores: Mapping[str, str], known: set[str], *, is_replay: bool, is_certain: bool
) -> None:
    """Apply ignores and known findings, and set the verdict and its reason.

    A replay does not judge ignores. With `is_certain`, a point that was not reached makes the verdict
    NON-DETERMINISTIC.
    """
    used: set[str] = set()
    for finding in result.findings:
        finding.known = finding.key in known
        for pattern, reason in ignores.items():
            if matches(finding, pattern):
                finding.ignored = reason
                used.add(pattern)
    if not is_replay:
        result.stale_ignores = sorted(set(ignores) - used)
    for cell in (cell for strip in result.strips for cell in strip.cells):
        if cell.mark in ("finding", "unresolved") and not any(
            finding.counts or finding.is_unresolved for finding in cell.findings
        ):
            cell.mark = "warning"
    missed = sum(cell.mark == "missed" for strip in result.strips for cell in strip.cells)
    if result.errors or result.stale_ignores:
        result.verdict = "FINDINGS"
    elif result.unresolved:
        first = result.unresolved[0]
        result.verdict, result.reason = "UNRESOLVED", f"{first.kind} {first.what} {first.doubt}"
    elif missed and is_certain:
        result.verdict = "NON-DETERMINISTIC"
        result.reason = f"{missed} of {result.runs} runs did not reach the point that the first runs had"
    if missed:
        result.notes.append(f"{missed} points were not reached again and are not covered")


def _is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _read_token(at: str | None) -> Token | None:
    if at is None:
        return None
    token = parse_token(at)
    if token.stop not in STOPS:
        raise UnknownStop(
            f"the replay token {at!r} names a stop {token.stop!r}; there are {', '.join(STOPS)}"
        )
    return token


def read_phases(phases: Iterable[str] | str | None) -> tuple[Phase, ...]:
    """Check names of phases and put them in their usual order; raises `ValueError` for an unknown one."""
    if phases is None:
        return PHASES
    words = phases.split(",") if isinstance(phases, str) else list(phases)
    names = [word.strip() for word in words]
    for name in names:
        if name not in PHASES:
            raise ValueError(f"there is no phase {name!r}; there are {', '.join(PHASES)}")
    return tuple(phase for phase in PHASES if phase in names)


def read_ignores(ignore: Mapping[str, str] | None) -> Mapping[str, str]:
    """Check that every ignore has a reason; raises `ValueError` otherwise."""
    for pattern, reason in (ignore or {}).items():
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"the ignore {pattern!r} has no reason; say why this finding does not count")
    return ignore or {}


def _target_of(scenario: object) -> str:
    module = getattr(scenario, "__module__", None)
    name = getattr(scenario, "__qualname__", None) or type(scenario).__qualname__
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if module == "__main__" and script:
        return f"{os.path.relpath(script)}:{name}"
    return f"{module}:{name}" if module else str(name)


def _options(backend: str, real_io: bool, seed: int | None, patience: float | None) -> str:
    """The command-line options that recreate this world in a replay."""
    parts = []
    if backend != "asyncio":
        parts.append(f"--backend {backend}")
    if real_io:
        parts.append("--real-io")
    if patience is not None:
        parts.append(f"--patience {patience:g}")
    if seed is not None:
        parts.append(f"--seed {seed}")
    return " ".join(parts)
