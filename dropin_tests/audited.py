"""Scenarios of a drop-in, stopped at every point, once and twice: the test that all of them share.

On asyncio every point, each time, as the clock is virtual; with eager tasks a sample. What an SDK itself does
with a stop is not judged, only what is left: tasks, clean-ups that have not ended, and a cancel that is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import pytest
from tests.kernel.audited import ledger
from tests.kernel.audited.sampled import quiet
from tests.world import world_names

from quiesce.audit import audit

# `twice`: the caller is cancelled again while it cleans up.
STOPS = ("cancel", "timeout", "twice")
WORLDS = [world for world in world_names() if world.startswith("asyncio")]


def audit_test(
    scenarios: Sequence[Callable[[], Any]],
    *,
    worlds: Sequence[str] = WORLDS,
    theirs: Mapping[str, str] | None = None,
    at_shutdown: bool = True,
    **options: Any,
) -> Callable[..., None]:
    """A test of these scenarios, which call `ledger.start()` first; `options` are those of `audit`.

    `theirs`: findings that are the SDK's own, as patterns with a reason. `at_shutdown`: also stopped by the end of
    the event loop; not where an SDK then waits for a process in real time.
    """

    @pytest.mark.time_limit(120)
    @pytest.mark.parametrize("where", worlds)
    @pytest.mark.parametrize("scenario", scenarios, ids=lambda scenario: scenario.__name__)
    def test_stopped_anywhere_nothing_is_left(scenario: Callable[[], Any], where: str) -> None:
        chosen = {"backend": where, "sample": None if where == "asyncio" else 4, **options}
        with quiet():
            results = [audit(scenario, stops=STOPS, check=ledger.check, **chosen)]
            if at_shutdown:
                # Then asyncio cancels each task, and tasks of the SDK that pass on theirs cancel others again: what
                # that does to clean-ups is nothing that we have in our hands.
                results.append(audit(scenario, stops="shutdown", **chosen))
        for result in results:
            ours = [
                finding
                for finding in result.findings
                if not any(fnmatch(f"{finding.kind} {finding.what}", pattern) for pattern in theirs or ())
            ]
            assert result.points > 3, str(result)
            assert not ours, str(result)
            assert result.verdict in ("CLEAN", "FINDINGS"), str(result)  # it could be run

    return test_stopped_anywhere_nothing_is_left
