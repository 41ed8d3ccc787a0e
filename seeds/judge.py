"""Audit the cases of one release, inside its environment: `python -m seeds.judge RELEASE FOLDER`.

Prints what was found, writes the reports to FOLDER, and exits 1 if a known bug was missed or silence was
broken. There is no network: an attempt to leave the machine is an error.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

from quiesce.audit import AuditResult, Finding, Limits, audit
from quiesce.audit.html.page import write_html
from quiesce.audit.model.source_places import Place
from quiesce.audit.report.machine import Outcome, to_json

from .table import RELEASES, Case, Known

LOOPBACK = ("127.", "::1", "localhost")


def main(name: str, folder: Path) -> int:
    sys.addaudithook(_refuse_network)
    logging.disable(logging.CRITICAL)  # the packages log what the audit reports
    release = next(release for release in RELEASES if release.name == name)
    package = release.package.partition("==")[0]
    print(f"{package} {version(package)} on Python {sys.version.split()[0]}, quiesce {version('quiesce')}")
    results: list[AuditResult] = []
    failed = False
    for case in release.cases:
        result = _audit(case)
        results.append(result)
        complaints = list(_complaints(case, result))
        failed = failed or bool(complaints)
        print("\n".join(["", *_summary(case, result), *complaints]), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text("\n\n\n".join(map(str, results)) + "\n")
    (folder / f"{name}.json").write_text(to_json(Outcome(results)))
    write_html(results, folder / f"{name}.html")
    return 1 if failed else 0


def _audit(case: Case) -> AuditResult:
    scenario = getattr(importlib.import_module(f"seeds.{case.module}"), case.scenario)
    return audit(scenario, stops=case.stops, limits=Limits(**case.limits), timelines=True, **case.options)  # type: ignore[arg-type]


def _summary(case: Case, result: AuditResult) -> Iterator[str]:
    yield f"  {case.scenario}, stopped by {case.stops.replace(',', ', ')}: {result.verdict}"
    yield f"    {result.scope}, {result.seconds:.1f} s"
    for finding in result.findings:
        is_known = any(_is(known, finding) for known in case.known)
        yield f"    {'known' if is_known else 'also '} {finding.kind.upper()} {finding.what}, {finding.runs} runs"
        if site := _site(finding):
            yield f"          {site}"
        if is_known and finding.example.detail:
            yield f"          {finding.example.detail}"


def _complaints(case: Case, result: AuditResult) -> Iterator[str]:
    if result.verdict not in ("CLEAN", "FINDINGS"):
        yield f"    FAILED: {result.verdict}: {result.reason}"
    elif case.is_silent and result.findings:
        yield f"    FAILED: it should be silent, and there are {len(result.findings)} findings"
    for known in case.known:
        if not any(_is(known, finding) for finding in result.findings):
            where = f" at {known.at}" if known.at else ""
            yield f"    FAILED: not found: {known.kind.upper()} {known.what}{where}"


def _is(known: Known, finding: Finding) -> bool:
    return (
        finding.kind == known.kind
        and fnmatchcase(finding.what, known.what)
        and (not known.at or any(p.file.endswith(known.at) for _, places in _rows(finding) for p in places))
        and known.says in finding.example.detail
    )


def _rows(finding: Finding) -> list[tuple[str, tuple[Place, ...]]]:
    """Its places, each row with the innermost first."""
    example = finding.example
    return [
        ("made at", finding.made_at),
        ("stuck at", example.stuck_at[::-1]),
        ("stopped at", example.stopped_at[::-1]),
    ]


def _site(finding: Finding) -> str:
    """Where in the packages it is: the first row that leads into one."""
    for title, places in _rows(finding):
        if inside := [str(place) for place in places if "site-packages" in place.file]:
            return f"{title} {' <- '.join(inside[:3])}"
    return ""


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else ""
    elif event == "socket.getaddrinfo":
        host = arguments[0] or ""
    else:
        return
    if host and not str(host).startswith(LOOPBACK):
        raise RuntimeError(f"no network here, and something asked for {host!s}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
