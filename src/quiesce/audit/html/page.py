"""The HTML report: one self-contained file without scripts.

`render` returns the page as a string, and the same results always give the same page. Everything that is shown by
colour is also shown in words or signs, and everything that needs a pointer can also be opened with the keyboard.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from quiesce.audit.findings import EXIT_CODES, AuditResult, Verdict

from .findings import anchors, findings
from .strips import Anchors, strips
from .style import STYLE
from .text import code, esc, plural, sentence

# CSS class, sign and words of each verdict.
VERDICTS: dict[Verdict, tuple[str, str, str]] = {
    "CLEAN": ("ok", "✓", "Clean"),
    "FINDINGS": ("bad", "×", "Findings"),
    "BASELINE-BROKEN": ("miss", "?", "Fails without a stop"),
    "NON-DETERMINISTIC": ("miss", "?", "Not deterministic"),
    "UNRESOLVED": ("miss", "?", "Not resolved"),
}
MEANINGS: dict[Verdict, str] = {
    "CLEAN": "Nothing was left over, wherever it was stopped.",
    "FINDINGS": "",
    "BASELINE-BROKEN": "The scenario fails without being stopped, so stopping it would show nothing.",
    "NON-DETERMINISTIC": "The scenario does not do the same thing in every run, so its points cannot be named.",
    "UNRESOLVED": "The program has changed since the replay token was written.",
}
WORST: tuple[Verdict, ...] = ("FINDINGS", "BASELINE-BROKEN", "NON-DETERMINISTIC", "UNRESOLVED", "CLEAN")


def write_html(results: Sequence[AuditResult], path: str | os.PathLike[str]) -> None:
    """Write the report to `path`, completely or not at all."""
    path = os.fspath(path)
    page = render(results).encode("utf-8")
    handle, temporary = tempfile.mkstemp(prefix=".quiesce-", suffix=".html", dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(page)
        umask = os.umask(0)
        os.umask(umask)
        # mkstemp creates files that only their owner can read. The umask can only be read by setting it.
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


# A second line of defence: even if unescaped text got into the page, it could not load, run or send anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(results: Sequence[AuditResult]) -> str:
    """The report on these results as one HTML page."""
    title = f"{_overall(results)[2]}: {results[0].target}" if len(results) == 1 else _headline(results)
    places = anchors(results)
    sections = "".join(_scenario(number, result, places) for number, result in enumerate(results, 1))
    summary = _summary(results) if len(results) > 1 else ""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{esc(title)} – quiesce audit</title><style>{STYLE}</style></head>\n"
        f"<body><header>{_banner(results)}</header>\n<main>{summary}{sections}</main>\n"
        "<footer><p>Made by <code>quiesce audit</code>. "
        "A clean verdict applies only to this schedule and these points.</p></footer>"
        "</body></html>\n"
    )


def _overall(results: Sequence[AuditResult]) -> tuple[str, str, str]:
    if not results:
        return ("miss", "?", "Nothing was audited")
    worst = min(results, key=lambda result: WORST.index(result.verdict))
    return VERDICTS[worst.verdict]


def _headline(results: Sequence[AuditResult]) -> str:
    if not results:
        return "Nothing was audited"
    if len(results) == 1:
        return _words(results[0])
    bad = sum(result.verdict == "FINDINGS" for result in results)
    broken = sum(EXIT_CODES[result.verdict] > 1 for result in results)
    total = plural(len(results), "scenario")
    parts = [f"findings in {bad} of {total}"] if bad else []
    if broken:
        parts.append(f"{broken} could not be judged" if bad else f"{broken} of {total} could not be judged")
    return sentence(", ".join(parts)).rstrip(".") if parts else f"Clean: {total}"


def _words(result: AuditResult) -> str:
    if result.verdict != "FINDINGS":
        return VERDICTS[result.verdict][2]
    if not result.errors:
        return plural(len(result.stale_ignores), "stale ignore")
    return plural(len(result.errors), "finding")


def _banner(results: Sequence[AuditResult]) -> str:
    style, sign, _ = _overall(results)
    runs = sum(result.runs for result in results)
    spent = sum(result.seconds for result in results)
    about = f"<p>{plural(runs, 'run')} in {spent:.1f} s</p>" if results else ""
    return (
        f'<p class="brand">quiesce audit</p><h1 class="verdict {style}"><span aria-hidden="true">{sign}</span> '
        f"{esc(_headline(results))}</h1>{about}"
    )


def _summary(results: Sequence[AuditResult]) -> str:
    rows = []
    for number, result in enumerate(results, 1):
        style, sign, words = VERDICTS[result.verdict]
        rows.append(
            f'<tr><td><span class="mark {style}"><span aria-hidden="true">{sign}</span> {words}</span></td>'
            f'<th scope="row"><a href="#s{number}">{esc(result.target)}</a></th>'
            f"<td>{_tally(result)}</td><td>{esc(result.world)}</td>"
            f'<td class="n">{result.points}</td><td class="n">{result.runs}</td></tr>'
        )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("Verdict", "Scenario", "Found", "World"))
    heads += '<th scope="col" class="n">Points</th><th scope="col" class="n">Runs</th>'
    return (
        '<nav aria-label="Scenarios"><table><caption>Scenarios</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></nav>"
    )


def _tally(result: AuditResult) -> str:
    errors = len(result.errors)
    others = len(result.findings) - errors
    parts = [plural(errors, "finding")] if errors else []
    if others:
        parts.append(f"{others} that {'does' if others == 1 else 'do'} not count")
    if result.stale_ignores:
        parts.append(plural(len(result.stale_ignores), "stale ignore"))
    return ", ".join(parts) or "–"


def _scenario(number: int, result: AuditResult, places: Anchors) -> str:
    style, sign, _ = VERDICTS[result.verdict]
    meaning = MEANINGS[result.verdict]
    if result.verdict == "CLEAN" and not result.is_complete:
        meaning = "Nothing was left over at the points that were tried. Other points were not tried."
    if result.is_interrupted:
        meaning = f"{meaning} The audit was interrupted: these are the findings so far.".strip()
    parts = [
        f'<section class="scenario" id="s{number}" aria-labelledby="s{number}h">'
        f'<h2 id="s{number}h"><span class="mark {style}"><span aria-hidden="true">{sign}</span> {esc(_words(result))}'
        f"</span> {code(result.target)}</h2>",
        f'<p class="scope">Covered: {esc(result.scope)}, {result.seconds:.2f} s.</p>',
        f"<p>{esc(meaning)}</p>" if meaning else "",
        f'<pre class="detail">{esc(result.reason)}</pre>' if result.reason else "",
        _jump(result, places),
        strips(result, places),
        findings(result, places),
        _remarks("Notes", [sentence(note) for note in result.notes]),
        _remarks(
            "Stale ignores",
            [
                f"The ignore “{pattern}” matches nothing any more: remove it."
                for pattern in result.stale_ignores
            ],
        ),
        "</section>",
    ]
    return "".join(parts)


def _jump(result: AuditResult, places: Anchors) -> str:
    """One line per finding that counts, above the strips."""
    if not result.errors:
        return ""
    items = "".join(
        f'<li><span class="kind">{esc(f.kind)}</span> <a href="#{places[id(f)]}">{code(f.what)}</a> '
        f'<span class="muted">{esc(f.means)}, {f.runs} of {plural(result.runs, "run")}</span></li>'
        for f in result.errors
    )
    return f'<ul class="jump">{items}</ul>'


def _remarks(title: str, remarks: Sequence[str]) -> str:
    if not remarks:
        return ""
    return f"<h3>{title}</h3><ul>{''.join(f'<li>{esc(remark)}</li>' for remark in remarks)}</ul>"
