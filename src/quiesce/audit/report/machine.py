"""The reports for programs: JSON and JUnit XML.

The shape of the JSON is stable for `"version": 1`; names may be added, but none removed:

    version, verdict (the worst), exit_code, interrupted, results, errors, stale_ignores, gone
    results[]            scenario, target, world, verdict, reason, scope, points, runs, seconds, seed, complete, notes,
                         strips, findings, stale_ignores
    results[].strips[]   stop, phase, depth, marks (one character per point: . clean, X finding, w warning,
                         u unresolved, ? missed, - skipped)
    results[].findings[] kind, what, means, severity, key, made_at, runs, strips, known, ignored, fault, doubt, replay,
                         example
    ...example           stop, token, stopped_at, stuck_at, step, detail
    a place              file, line, function
    errors[]             target, message: targets that could not be audited at all
    stale_ignores[]      patterns of --ignore that matched in none of the audits
    gone[]               scenario, world, finding: entries of the baseline file that no longer occur
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from quiesce._safe.printed import printed
from quiesce.audit.findings import AuditResult, Entry, Verdict

VERSION = 1
_WORST: tuple[Verdict, ...] = ("BASELINE-BROKEN", "NON-DETERMINISTIC", "UNRESOLVED", "FINDINGS", "CLEAN")


@dataclass(frozen=True, slots=True)
class Failure:
    """A target that could not be audited at all, or a file that could not be written."""

    target: str
    message: str


@dataclass(slots=True)
class Outcome:
    """The outcome of one command: all results and errors."""

    results: list[AuditResult] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    #: Ignores that matched in none of the audits.
    stale_ignores: list[str] = field(default_factory=list)
    gone: list[Entry] = field(default_factory=list)
    is_interrupted: bool = False
    #: With --write-baseline, findings are written and do not fail the command.
    is_adopting: bool = False

    @property
    def exit_code(self) -> int:
        """The worst of all: 2 for errors, 1 for findings; 130 after Ctrl-C."""
        if self.is_interrupted:
            return 130
        codes = [result.exit_code for result in self.results] + [2 for _ in self.failures]
        codes += [1 for _ in self.stale_ignores]
        worst = max(codes, default=2)
        return 0 if self.is_adopting and worst == 1 else worst

    @property
    def verdict(self) -> str:
        """The worst verdict of all results; ERROR if a failure is worse."""
        verdicts = {result.verdict for result in self.results}
        worst = next((verdict for verdict in _WORST if verdict in verdicts), None)
        return "ERROR" if worst is None or (self.failures and worst in ("FINDINGS", "CLEAN")) else worst


def to_json(outcome: Outcome) -> str:
    """The JSON report."""
    document = {
        "version": VERSION,
        "verdict": outcome.verdict,
        "exit_code": outcome.exit_code,
        "interrupted": outcome.is_interrupted,
        "results": [_result(result) for result in outcome.results],
        "errors": [{"target": failure.target, "message": failure.message} for failure in outcome.failures],
        "stale_ignores": outcome.stale_ignores,
        "gone": [
            {"scenario": entry.scenario, "world": entry.world, "finding": entry.finding}
            for entry in outcome.gone
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _result(result: AuditResult) -> dict[str, Any]:
    found = result.as_dict()
    for finding, written in zip(result.findings, found["findings"], strict=True):
        token = finding.example.token
        written["replay"] = result.replay_command(token) if token else ""
    return found


def to_junit(outcome: Outcome) -> str:
    """The JUnit report: one test case per scenario and world. Findings are failures; everything else is an error."""
    # `printed` escapes the control characters, which XML cannot contain.
    suite = ET.Element("testsuite", name="quiesce audit")
    for result in outcome.results:
        case = _case(suite, result.target, result.world, result.seconds)
        if result.verdict == "FINDINGS":
            what = (
                "; ".join(f"{finding.kind} {finding.what}" for finding in result.errors)
                or "an ignore is stale"
            )
            ET.SubElement(case, "failure", message=printed(what)).text = printed(str(result))
        elif not result.clean:
            message = f"{result.verdict}: {result.reason}"
            ET.SubElement(case, "error", message=printed(message)).text = printed(str(result))
    for failure in outcome.failures:
        case = _case(suite, failure.target, "", 0.0)
        ET.SubElement(case, "error", message=printed(failure.message.splitlines()[0])).text = printed(
            failure.message
        )
    cases = list(suite)
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(_count(cases, "failure")))
    suite.set("errors", str(_count(cases, "error")))
    suite.set("time", f"{sum(result.seconds for result in outcome.results):.3f}")
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _case(suite: ET.Element, target: str, world: str, seconds: float) -> ET.Element:
    target = printed(target)
    place, _, name = target.rpartition(":")
    attributes = {"classname": place or target, "name": f"{name} [{world}]" if world else name or target}
    return ET.SubElement(suite, "testcase", attributes, time=f"{seconds:.3f}")


def _count(cases: Sequence[ET.Element], kind: str) -> int:
    return sum(case.find(kind) is not None for case in cases)
