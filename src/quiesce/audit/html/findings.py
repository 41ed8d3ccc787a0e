"""The findings of the HTML report: what each is, where it was made, stopped and stuck, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Iterable

from quiesce.audit.findings import AuditResult, Example, Finding
from quiesce.audit.model import ITEM, STOPS, Place, Point, makers

from .strips import PHASES, Anchors
from .text import code, esc, frame, frames, plural, sentence
from .timeline import draw

# Findings beyond this number are folded, so that the page can be read from top to bottom.
OPEN = 8

# The usual fix for each kind.
ADVICE: dict[str, str] = {
    "hang": "Code waits for something that was stopped and will never come: stop waiting when the other side stops.",
    "crash": "Look at the error: it broke the event loop itself, and with it everything else.",
    "leaked": "Start it in a task group, or cancel it and await it in a finally block.",
    "destroyed": "Keep a reference to the task and await it; the event loop itself keeps only a weak reference.",
    "process": "Terminate it and wait for it in a finally block.",
    "thread": "Signal it to stop and join it in a finally block.",
    "descriptor": "Close it in a finally block, or open it in a with block.",
    "swallowed": "An except block caught the cancellation and did not raise it again.",
    "replaced": "Raise the cancellation again after the clean-up, instead of another error.",
    "bystander": "Cancel only what you started yourself.",
    "check": "In a finally block, undo what was done before the await, even if the result has already arrived.",
    "again": "Something outside the scenario keeps the state of the stopped run.",
    "close": "Closing must work at any point, and more than once.",
    "late": "Await it before you exit, or cancel it.",
    "outlived": "Before you exit, await the clean-up of what you have cancelled.",
    "generator": "Use contextlib.aclosing around the loop, or call aclose() in a finally block.",
    "unawaited": "Create the coroutine where it is awaited, or close it if it is no longer needed.",
    "unretrieved": "Await the task, or read its exception.",
    "callback": "A callback must handle its own errors: there is no caller to raise them to.",
    "unraisable": "Clean up in a finally block, not in __del__.",
    "unclosed": "Close it in a finally block, or open it in a with block.",
    "reported": "Nothing, if this is intended; otherwise handle the error where it occurred.",
    "count": "Call uncancel() exactly once for each cancellation that was caught.",
}


def findings(result: AuditResult, anchors: Anchors) -> str:
    """The findings of a result: those that decide the verdict first, the others folded below them."""
    groups: list[tuple[str, str, list[Finding]]] = [
        ("Findings", "bad", [f for f in result.findings if f.counts]),
        ("Unresolved", "warn", [f for f in result.findings if f.is_unresolved]),
        ("Warnings", "warn", [f for f in result.findings if _is_warning(f)]),
        ("Known", "quiet", [f for f in result.findings if f.known and not f.ignored]),
        ("Ignored", "quiet", [f for f in result.findings if f.ignored]),
    ]
    sections = []
    for title, style, members in groups:
        if members:
            note = "" if title in ("Findings", "Unresolved") else "They do not affect the verdict."
            found = "".join(
                _finding(f, result, anchors[id(f)], style, is_open=title == "Findings" and number < OPEN)
                for number, f in enumerate(members)
            )
            about = f'<p class="muted">{note}</p>' if note else ""
            sections.append(f"<h3>{title} <small>{len(members)}</small></h3>{about}{found}")
    return "".join(sections)


def _is_warning(finding: Finding) -> bool:
    return finding.severity == "warning" and not (finding.doubt or finding.known or finding.ignored)


def _finding(finding: Finding, result: AuditResult, anchor: str, style: str, *, is_open: bool) -> str:
    example = finding.example
    counts = f"{finding.runs} of {plural(result.runs, 'run')}"
    site = finding.site
    at = f'<span class="at">{frame(site)}</span>' if site is not None else ""
    parts = [
        f'<details class="finding {style}" id="{anchor}"{" open" * is_open}><summary><h4>'
        f'<span class="kind">{esc(finding.kind)}</span> {code(finding.what)}</h4> '
        f'<span class="muted">{counts}</span> {at}</summary><div class="body">',
        f"<p><strong>{esc(sentence(finding.means))}</strong> {esc(ADVICE.get(finding.kind, ''))}</p>",
        f"<p>Ignored: {esc(sentence(finding.ignored))}</p>" if finding.ignored else "",
        f"<p>Python's fault: {esc(sentence(finding.fault))}</p>" if finding.fault else "",
        f"<p>It {esc(sentence(finding.doubt))}</p>" if finding.doubt else "",
        f'<pre class="detail">{esc(example.detail)}</pre>' if example.detail else "",
        "<dl>",
        _where("Made at", finding.made_at, makers(finding.made_at)),
        f"<dt>Stopped</dt><dd><p>{_stopped(example)}</p>{_inner(example.stopped_at)}</dd>",
        _where("Stuck at", example.stuck_at[::-1]),
        f'<dt>Seen in</dt><dd class="seen">{"".join(f"<span>{esc(name)}</span>" for name in finding.strips)}</dd>',
        _commands(finding, result),
        "</dl>",
        _picture(finding, result),
        "</div></details>",
    ]
    return "".join(parts)


def _where(title: str, places: tuple[Place, ...], own: tuple[Place, ...] = ()) -> str:
    return f"<dt>{title}</dt><dd>{frames(places, own)}</dd>" if places else ""


def _inner(stopped_at: tuple[Place, ...]) -> str:
    return frames(stopped_at[::-1]) if stopped_at else ""


def _stopped(example: Example) -> str:
    if not example.stop:
        return "Not stopped: it appears after an undisturbed run."
    stop = STOPS.get(example.stop)
    says = stop.says if stop is not None else example.stop
    if not example.points:
        return f"{esc(sentence(says))} Seen after all runs of this stop."
    first, *more = example.points
    then = "".join(f", and once more {_moment(point)}" for point in more)
    words = f"{says[:1].upper()}{says[1:]}"
    return f"{esc(words)} {_moment(first)}{then}."


def _moment(point: Point) -> str:
    if point.lane == ITEM:
        return f"after item {point.number}" if point.number else "before the first item"
    if point.phase == "unstarted":
        return f"before the first step of {code(point.lane)}"
    return f"at suspension {point.number} of {code(point.lane)}, {PHASES[point.phase]}"


def _commands(finding: Finding, result: AuditResult) -> str:
    example = finding.example
    rows = ""
    if example.token:
        command = result.replay_command(example.token)
        rows += f"<dt>Replay</dt><dd><pre><code>{esc(command)}</code></pre></dd>"
    return rows + f"<dt>As a test</dt><dd><pre><code>{esc(as_test(finding, result))}</code></pre></dd>"


def as_test(finding: Finding, result: AuditResult) -> str:
    """A test for this finding that stays valid when the code changes.

    It audits the whole strip, because the token of a single run belongs to the code as it is.
    """
    example = finding.example
    name = result.target.rpartition(":")[2]
    arguments = [name]
    if example.stop:
        arguments.append(f"stops={example.stop!r}")
    if example.points and example.points[0].lane != ITEM:
        arguments.append(f"phases={example.points[0].phase!r}")
    if len(example.points) > 1:
        arguments.append(f"depth={len(example.points)}")
    if result.world != "asyncio":
        arguments.append(f"backend={result.world!r}")
    words = result.options.split()
    if "--real-io" in words:
        arguments.append("real_io=True")
    if "--patience" in words:
        arguments.append(f"patience={words[words.index('--patience') + 1]}")
    if result.seed is not None:
        arguments.append(f"seed={result.seed}")
    if finding.kind == "check":
        arguments.append(f"check={finding.what}")
    if finding.kind == "again":
        arguments.append("again=True")
    suffix = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name.rpartition(".")[2])
    return f"def test_{suffix}_can_be_stopped(): audit({', '.join(arguments)}).assert_clean()"


def _picture(finding: Finding, result: AuditResult) -> str:
    timeline = result.timelines.get(finding.example.token)
    if timeline is None or (finding.example.stop and not finding.example.token):
        return ""
    return draw(timeline, finding, result.scenario)


def anchors(results: Iterable[AuditResult]) -> dict[int, str]:
    """The id of each finding's element in the page, by `id(finding)`."""
    return {
        id(finding): f"s{number}f{place}"
        for number, result in enumerate(results, 1)
        for place, finding in enumerate(result.findings, 1)
    }
