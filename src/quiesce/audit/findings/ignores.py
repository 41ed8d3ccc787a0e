"""Ignores over several audits: an ignore that matches in any of them is not stale.

`audit()` reports an ignore as stale if it matches nothing, which is right for a single audit. A command that makes
several audits with the same ignores has to judge them together: an ignore is stale only if it matches in none of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from .result import AuditResult


class Ignores:
    """Which ignores have matched so far."""

    def __init__(self) -> None:
        # By target ("" for ignores of all scenarios) and pattern.
        self._matched: dict[tuple[str, str], bool] = {}

    def note(self, result: AuditResult, *, own: Iterable[str], for_all: Iterable[str]) -> None:
        """Take the stale ignores out of a result and remember them; `stale()` judges them after the last audit.

        `own` are the patterns of its `@scenario`, `for_all` those of the command. In an incomplete sweep every pattern
        counts as matched, because the missing runs might have shown it.
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
