"""Collects the data of all tests of a session, from this process or from xdist's workers, and judges the session.

An ignore that is declared for more than one test is stale if no test shows a finding that it matches. That is judged
only if all those tests have run: not in a session that was narrowed to some tests or ended early.
"""

from __future__ import annotations

import base64
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .settings import Ignore, Settings

if TYPE_CHECKING:
    from quiesce.audit.findings import AuditResult, Baseline, Finding

# In the stash of an item: the data that its next report will carry.
ENTRY = pytest.StashKey[dict[str, Any]]()
# The attribute of a report with that data.
ATTRIBUTE = "quiesce"
# The world of findings under --quiesce, where the event loops belong to other plugins.
WORLD = "pytest"


def entry(
    findings: Sequence[Finding],
    ignores: Sequence[Ignore],
    used: Sequence[Ignore],
    *,
    result: AuditResult | None = None,
    strips: Sequence[str] = ("baseline",),
    keep_result: bool = False,
) -> dict[str, Any]:
    """The data that the report of a test carries to the summary: plain, so that it can come from another process."""
    return {
        "mode": "watch" if result is None else "sweep",
        "world": WORLD if result is None else result.world,
        "runs": 0 if result is None else result.runs,
        "trouble": ""
        if result is None or result.verdict in ("CLEAN", "FINDINGS")
        else result.verdict.lower(),
        "strips": list(strips),
        "findings": [
            {
                "key": finding.key,
                "kind": finding.kind,
                "status": _status(finding),
                "count": finding.runs if result is None else 1,
                "strips": list(finding.strips),
            }
            for finding in findings
        ],
        "declared": [[i.node, i.pattern, i.reason] for i in ignores if not i.is_own],
        "used": [[i.node, i.pattern] for i in used if not i.is_own],
        "result": base64.b64encode(pickle.dumps(result)).decode()
        if keep_result and result is not None
        else "",
    }


def _status(finding: Finding) -> str:
    if finding.ignored:
        return "ignored"
    if finding.known:
        return "known"
    return "counts" if finding.counts else "warning"


class Ledger:
    """The data of one session."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.known: Baseline | None = None
        if settings.baseline is not None:
            self.known = _read_known(settings.baseline)
        self.deselected = 0
        self.stale: list[str] = []
        self.notes: list[str] = []
        self._entries: dict[str, list[dict[str, Any]]] = {}
        self._ran: set[str] = set()

    def known_keys(self, nodeid: str, world: str) -> list[str]:
        """The keys of the findings of a test that are in the baseline file."""
        return self.known.keys_for(nodeid, world) if self.known is not None else []

    def add(self, report: pytest.TestReport) -> None:
        """Take the data of a test from its report."""
        data = getattr(report, ATTRIBUTE, None)
        if data:
            self._entries.setdefault(report.nodeid, []).append(data)
        if report.when == "call" and report.outcome == "passed":
            self._ran.add(report.nodeid)

    def close(self, session: pytest.Session) -> None:
        """Find stale ignores, and write the baseline and the HTML report."""
        self.stale = self._find_stale(session)
        if self.settings.write is not None:
            self._write_baseline(self.settings.write)
        elif self.known is not None:
            self._note_gone()
        if self.settings.html is not None:
            self._write_html(self.settings.html)
        if self.stale and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    # Ignores

    def _find_stale(self, session: pytest.Session) -> list[str]:
        entries = [data for each in self._entries.values() for data in each]
        if session.shouldstop or session.shouldfail or session.exitstatus not in (0, 1) or self.deselected:
            return []
        used = {(node, pattern) for data in entries for node, pattern in data["used"]}
        declared = {(node, pattern): reason for data in entries for node, pattern, reason in data["declared"]}
        if self._is_narrowed():
            declared = {}
        elif entries:
            declared |= {("", ignore.pattern): ignore.reason for ignore in self.settings.ignores}
        return [
            f"the ignore {pattern!r} ({reason}) {'of ' + node if node else 'of the session'} "
            "matches nothing any more: remove it"
            for (node, pattern), reason in declared.items()
            if (node, pattern) not in used
        ]

    def _is_narrowed(self) -> bool:
        """Whether the command line names only some of the tests."""
        config = self.config
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            return False
        named = [(config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args]
        if any("::" in arg for arg in config.args) or any(path.is_file() for path in named):
            return True
        folders = [(config.rootpath / folder).resolve() for folder in config.getini("testpaths")]
        return not all(any(folder.is_relative_to(path) for path in named) for folder in folders)

    # The baseline

    def _write_baseline(self, path: str) -> None:
        from quiesce.audit.findings import BadBaseline, Baseline, Entry

        looked_at = {(nodeid, data["world"]) for nodeid, each in self._entries.items() for data in each}
        kept = [e for e in self.known.entries if (e.scenario, e.world) not in looked_at] if self.known else []
        found = {
            Entry(nodeid, data["world"], finding["key"], tuple(finding["strips"]))
            for nodeid, each in self._entries.items()
            for data in each
            for finding in data["findings"]
            if finding["status"] in ("counts", "known")
        }
        known = Baseline([*kept, *found])
        try:
            known.write(self.config.invocation_params.dir / path)
        except BadBaseline as error:
            self.stale.append(str(error))
            return
        tests = len({entry.scenario for entry in known.entries})
        self.notes.append(f"wrote {len(known.entries)} findings of {tests} tests to {path}")

    def _note_gone(self) -> None:
        """Add a note for each entry of the baseline that the session covered and did not show."""
        assert self.known is not None
        for entry in self.known.entries:
            each = [data for data in self._entries.get(entry.scenario, ()) if data["world"] == entry.world]
            if not each or (entry.scenario not in self._ran and each[0]["mode"] == "watch"):
                continue
            seen = {finding["key"] for data in each for finding in data["findings"]}
            made = {strip for data in each for strip in data["strips"]}
            if entry.finding not in seen and (not entry.strips or made.intersection(entry.strips)):
                self.notes.append(f"in the baseline, and gone: {entry.finding} ({entry.scenario})")

    # The reports

    def _write_html(self, path: str) -> None:
        from quiesce.audit.html import write_html

        results = [
            pickle.loads(base64.b64decode(data["result"]))
            for each in self._entries.values()
            for data in each
            if data["result"]
        ]
        target = self.config.invocation_params.dir / Path(path)
        try:
            write_html(results, target)
        except OSError as error:
            self.stale.append(f"the report {path} cannot be written: {error.strerror}")
            return
        self.notes.append(f"the report is in {path}")

    def summary(self) -> list[str]:
        """The lines of the terminal summary: the counts, then stale ignores and notes."""
        if not self._entries and not self.settings.is_on and not self.notes and not self.stale:
            return []
        modes: Counter[str] = Counter()
        statuses: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        bad = 0
        for each in self._entries.values():
            modes[each[0]["mode"]] += 1
            findings = [finding for data in each for finding in data["findings"]]
            bad += any(finding["status"] == "counts" for finding in findings)
            for finding in findings:
                statuses[finding["status"]] += finding["count"]
                if finding["status"] == "counts":
                    kinds[finding["kind"]] += finding["count"]
        runs = sum(data["runs"] for each in self._entries.values() for data in each)
        parts = [f"{_tests(modes['watch'], 'async test')} watched"] if self.settings.is_on else []
        if modes["sweep"]:
            parts.append(f"{_tests(modes['sweep'], 'test')} swept in {runs} runs")
        by_kind = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        trouble = Counter(
            data["trouble"] for each in self._entries.values() for data in each if data["trouble"]
        )
        parts += [f"{number} {verdict}" for verdict, number in trouble.items()]
        if bad:
            parts.append(f"{bad} with findings ({by_kind})")
        elif not trouble:
            parts.append("nothing left behind")
        parts += [f"{statuses[name]} {name}" for name in ("known", "ignored") if statuses[name]]
        return [f"quiesce: {', '.join(parts)}", *(f"  {line}" for line in [*self.stale, *self.notes])]


def _tests(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _read_known(path: str) -> Baseline:
    from quiesce.audit.findings import BadBaseline, Baseline

    try:
        return Baseline.read(path)
    except BadBaseline as error:
        raise pytest.UsageError(str(error).replace("--write-baseline", "--quiesce-write-baseline")) from None
