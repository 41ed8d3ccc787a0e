"""`audit()`: the one call behind the command, the pytest plugin and a test of your own."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from quiesce.audit.findings import AuditResult
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

WorldName: TypeAlias = Literal["asyncio", "asyncio-eager", "uvloop", "trio"]


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
    """Stop `scenario` at every point where it can be stopped, and say what is left each time.

        from quiesce.audit import audit

        async def scenario():
            async with Connection() as connection:
                await connection.send(b"hello")

        audit(scenario).assert_clean()

    `scenario` is a function without arguments: an `async def`, an async generator function, or something that gives an
    async context manager. It is run again and again, each time from nothing, in a world with a virtual clock and a
    fixed order, and stopped at one more point, until every suspension point has been used.

    - `stops`: which kinds of stop (names in a list or with commas, or "all"); `phases`: early, late, unstarted.
    - `backend`: asyncio, asyncio-eager, uvloop or trio.
    - `depth=2`: stop it a second time at every point after the first.
    - `check`: a function of your own that is called after each run, sync or async. What it raises, and an answer
      that is false (other than None), is a finding.
    - `again=True`: after each stop, the scenario must run undisturbed. Otherwise this is asked once a strip.
    - `real_io=True`: real sockets, processes and threads. Without it they are refused.
    - `patience`: with real I/O, how many real seconds a connection may be silent before the virtual clock jumps; 0.05
      unless told. What is seen after such a jump only counts if it is seen with ten times the patience too.
    - `seed`: step the tasks of a round in another order.
    - `dedupe`, `sample`, `time_limit`: for big scenarios, see the result's `scope`.
    - `ignore`: findings that do not count, as `{"leaked Client._poll*": "why"}`; one that matches nothing any more
      makes the verdict bad.
    - `baseline`: keys of findings that are known and do not count.
    - `at`: the token of one run, to make just that again.
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
        stack.callback(random.setstate, random.getstate())  # each run starts from the same one
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
            result.notes.append("it changes the working directory, which was put back after each run")
        result.seconds = time.monotonic() - started
    if result.verdict == "CLEAN":
        _give_verdict(
            result, ignores, set(baseline), is_replay=token is not None, is_certain=world.is_deterministic
        )
    return result


def make_world(backend: str, watch: Watch, *, real_io: bool, seed: int | None, limits: Limits) -> World:
    """The world of this name; says what is missing if it cannot be had."""
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
    used: set[str] = set()
    for finding in result.findings:
        finding.known = finding.key in known
        for pattern, reason in ignores.items():
            if fnmatchcase(finding.key, pattern) or fnmatchcase(f"{finding.kind} {finding.what}", pattern):
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
        result.reason = f"{missed} of {result.runs} runs did not get to the point that the first runs had"
    if missed:
        result.notes.append(f"{missed} points were not reached again, and are not covered")


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
    if phases is None:
        return PHASES
    names = phases.split(",") if isinstance(phases, str) else list(phases)
    for given in (given.strip() for given in names):
        if given not in PHASES:
            raise ValueError(f"there is no phase {given!r}; there are {', '.join(PHASES)}")
    return tuple(phase for phase in PHASES if phase in [given.strip() for given in names])


def read_ignores(ignore: Mapping[str, str] | None) -> Mapping[str, str]:
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
