"""Ignores over several audits: one that matches in any of them is not stale.

`audit()` calls an ignore stale when nothing matches it, which is right for one audit. A command that makes several, with
the same ignores for all, has to look at them together, and only then is a stale one worth failing for.
"""

from __future__ import annotations

from collections.abc import Iterable

from .result import AuditResult


class Ignores:
    def __init__(self) -> None:
        self._matched: dict[tuple[str, str], bool] = {}  # whose ("" for everybody's) and which pattern

    def note(self, result: AuditResult, *, own: Iterable[str], for_all: Iterable[str]) -> None:
        """Take the question of what is stale from a result, to answer it when all are there.

        `own` are the patterns of its `@scenario`. A sweep that was not made whole cannot say that something is gone.
        """
        stale, result.stale_ignores = set(result.stale_ignores), []
        is_whole = result.is_complete and result.verdict in ("CLEAN", "FINDINGS")
        for owner, patterns in ((result.target, own), ("", for_all)):
            for pattern in patterns:
                key = (owner, pattern)
                matches = not is_whole or pattern not in stale
                self._matched[key] = self._matched.get(key, False) or matches
        if result.verdict == "FINDINGS" and not result.errors:
            result.verdict = "CLEAN"

    def stale(self) -> list[str]:
        """The patterns that matched nothing at all."""
        return sorted(pattern for (_, pattern), matched in self._matched.items() if not matched)
