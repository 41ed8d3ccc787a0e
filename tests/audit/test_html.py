"""The HTML report, as text. How it looks in a browser is the business of `make test-ui`."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from quiesce.audit import AuditResult, Cell, Example, Finding, Point, Strip, audit
from quiesce.audit.findings.result import MARKS, LaneSpan, Timeline
from quiesce.audit.html.findings import ADVICE, as_test
from quiesce.audit.html.page import render, write_html
from quiesce.audit.html.strips import SIGNS
from quiesce.audit.html.style import STYLE
from quiesce.audit.html.text import esc
from quiesce.audit.html.timeline import LANES, draw
from quiesce.audit.model.run_record import KINDS
from quiesce.audit.model.source_places import Place

VOID = {"meta", "br", "hr", "img", "link", "input"}
HOSTILE = "<img src=x onerror=alert(1)>&\"'</style><script>alert(2)</script>"


async def poll() -> None:
    while True:
        await asyncio.sleep(1)


async def session() -> None:
    poller = asyncio.create_task(poll())
    await asyncio.sleep(3)
    poller.cancel()
    await asyncio.wait([poller])


async def tidy() -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(asyncio.sleep(number))


async def failing() -> None:
    await asyncio.sleep(0)
    raise RuntimeError("no <database>")


class Page(HTMLParser):
    """A page taken apart; raises if an element is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of <{tag}> is there twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str, name: str = "") -> list[dict[str, str | None]]:
        """The attributes of every such element that has this class."""
        return [a for t, a in self.tags if t == tag and (not name or name in (a.get("class") or "").split())]

    def values(self, attribute: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(attribute)) is not None]

    @property
    def text(self) -> str:
        return "".join(data for tag, data in self.texts if tag not in ("style", "title"))


@pytest.fixture(scope="module")
def leaky() -> AuditResult:
    return audit(session, timelines=True)


def place(line: int, *, file: str = "app/pool.py", function: str = "Pool.acquire") -> Place:
    return Place(file, line, function)


def made_up(**changes: object) -> Finding:
    example = Example(
        "cancel", (Point("main", 3, "early"),), "cancel/early/main:3@0", (place(3),), (place(9),), 7, ""
    )
    return replace(Finding("leaked", "poll", (place(1),), "error", example), **changes)  # type: ignore[arg-type]


def result_of(*findings: Finding, **changes: object) -> AuditResult:
    found = AuditResult(
        "main", "app:main", "asyncio", "asyncio", "FINDINGS", findings=list(findings), points=3, runs=9
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def strip_of(*cells: Cell) -> Strip:
    return Strip("cancel", "cancel the root", "early", list(cells))


def lane(label: str, end: int | None = 5, start: int = 0) -> LaneSpan:
    return LaneSpan(label, start, end, None, (place(1),), ((start + 1, None, "app/pool.py:9 in poll"),))


# The page


def test_the_page_is_whole_and_every_link_has_its_place(leaky: AuditResult) -> None:
    page = Page(render([leaky, audit(tidy), audit(failing)]))
    ids = page.values("id")
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert {link.removeprefix("#") for link in page.values("href")} <= set(ids)
    assert page.all("html")[0]["lang"] == "en"
    assert {"header", "main", "footer", "nav", "title", "h1"} <= {tag for tag, _ in page.tags}
    assert len(page.all("h1")) == 1


def test_the_page_needs_nothing_but_itself(leaky: AuditResult) -> None:
    text = render([leaky])
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert page.values("src") == []
    assert all(link.startswith("#") for link in page.values("href"))
    assert not re.search(r"https?:|url\(|@import", text)


def test_the_same_results_give_the_same_page(leaky: AuditResult) -> None:
    assert render([leaky]) == render([leaky])


def test_no_results_are_said_to_be_none() -> None:
    assert "Nothing was audited" in Page(render([])).text


# The verdict


def test_the_verdict_of_one_scenario_counts_its_findings(leaky: AuditResult) -> None:
    page = Page(render([leaky]))
    assert "1 finding" in page.text
    assert leaky.scope in page.text
    assert page.all("h1", "bad")
    assert page.all("table") == []


def test_a_clean_scenario_is_said_to_be_clean_with_what_was_covered() -> None:
    result = audit(tidy)
    page = Page(render([result]))
    assert page.all("h1", "ok")
    assert f"Covered: {result.scope}" in page.text
    assert "Nothing was left over, wherever it was stopped." in page.text


def test_a_clean_scenario_that_was_only_sampled_is_not_said_to_be_clean_everywhere() -> None:
    text = Page(render([audit(tidy, sample=1)])).text
    assert "wherever it was stopped" not in text
    assert "Other points were not tried." in text


def test_an_interrupted_audit_is_said_to_be_one() -> None:
    assert "The audit was interrupted" in Page(render([result_of(made_up(), is_interrupted=True)])).text


def test_a_scenario_that_fails_by_itself_is_shown_with_its_reason() -> None:
    result = audit(failing)
    page = Page(render([result]))
    assert page.all("h1", "miss")
    assert "Fails without a stop" in page.text
    assert "no <database>" in page.text


def test_several_scenarios_get_a_table_and_the_worst_verdict(leaky: AuditResult) -> None:
    page = Page(render([audit(tidy), leaky, audit(failing)]))
    assert "Findings in 1 of 3 scenarios, 1 could not be judged" in page.text
    assert page.all("h1", "bad")
    assert [a["href"] for a in page.all("a")][:3] == ["#s1", "#s2", "#s3"]


def test_notes_and_stale_ignores_are_told() -> None:
    result = audit(tidy, ignore={"leaked nobody*": "it was mended"})
    result.notes.append("the moon was full")
    text = Page(render([result])).text
    assert "The moon was full." in text
    assert "“leaked nobody*” matches nothing any more" in text
    assert "1 stale ignore" in text


# The strips


def test_every_point_has_a_cell_and_every_strip_its_baseline(leaky: AuditResult) -> None:
    page = Page(render([leaky]))
    cells = [a for tag, a in page.tags if tag in ("a", "b") and a.get("title")]
    strips = [strip for strip in leaky.strips if strip.cells]
    assert len(cells) == sum(len(strip.cells) for strip in strips) + len(strips)
    assert len(page.all("b", "base")) == len(strips) + 1  # and the legend's


def test_a_cell_says_its_point_where_it_is_and_what_was_found(leaky: AuditResult) -> None:
    page = Page(render([leaky]))
    titles = [a["title"] or "" for a in page.all("a", "bad")]
    assert titles
    first = titles[0].split("\n")
    assert first[0].startswith("early/session:1")
    assert re.fullmatch(r".*test_html\.py:\d+ in session", first[1])
    assert first[2] == "leaked poll"


def test_a_cell_with_a_finding_leads_to_it_and_a_clean_one_nowhere(leaky: AuditResult) -> None:
    page = Page(render([leaky]))
    assert {a["href"] for a in page.all("a", "bad")} == {"#s1f1"}
    assert [a for a in page.all("details", "finding") if a["id"] == "s1f1"]
    assert page.all("a", "ok") == []


def test_every_mark_has_a_class_and_a_sign_of_its_own() -> None:
    assert set(SIGNS) == set(MARKS)
    assert len({name for name, _, _ in SIGNS.values()}) == len(SIGNS)
    assert len({sign for _, sign, _ in SIGNS.values()}) == len(SIGNS)
    assert all(f".cells .{name}" in STYLE for name, _, _ in SIGNS.values())


def test_a_strip_without_points_is_left_out(leaky: AuditResult) -> None:
    empty = replace(
        leaky, strips=[*leaky.strips, Strip("shutdown", "nobody ever said this", "late", depth=2)]
    )
    assert "nobody ever said this" not in render([empty])


def test_the_points_can_be_read_without_pointing(leaky: AuditResult) -> None:
    page = Page(render([leaky]))
    assert f"Where the {leaky.points} points are" in page.text
    assert "session:1" in page.text


# The findings


def test_a_finding_tells_what_where_how_often_and_how_to_see_it_again(leaky: AuditResult) -> None:
    [finding] = leaky.findings
    text = Page(render([leaky])).text
    assert "A task that never ends." in text
    assert f"{finding.runs} of {leaky.runs} runs" in text
    assert leaky.replay_command(finding.example.token) in text
    assert "Cancel the root at suspension 1 of session, just after it suspended." in text
    for title, line in (("Made at", "session"), ("Stopped", "session"), ("Stuck at", "poll")):
        assert re.search(rf"{title}[^\0]*test_html\.py:\d+ in {line}", text)


def test_frames_in_libraries_are_folded_and_the_readers_own_are_not(leaky: AuditResult) -> None:
    text = render([leaky])
    [made] = re.findall(r"<dt>Made at</dt><dd>(.*?)</dd>", text)
    shown, _, folded = made.partition("<details>")
    assert "test_html.py" in shown
    assert "create_task" not in shown
    assert "create_task" in folded
    assert "1 frame in libraries" in folded


def test_the_worst_is_first_and_what_does_not_count_is_below_and_folded() -> None:
    text = render(
        [
            result_of(
                made_up(what="first"),
                made_up(what="asked_for", severity="warning"),
                made_up(what="old", known=True),
                made_up(what="wanted", ignored="we like it"),
                made_up(what="second"),
            )
        ]
    )
    order = ["first", "second", "asked_for", "old", "wanted"]
    found = re.findall(r'<details class="finding (\w+)" id="\w+"( open)?>.*?<code>(\w+)</code></h4>', text)
    assert [what for _, _, what in found] == order
    assert [style for style, _, _ in found] == ["bad", "bad", "warn", "quiet", "quiet"]
    assert [bool(is_open) for _, is_open, _ in found] == [True, True, False, False, False]
    assert "Ignored: We like it." in Page(text).text


def test_a_finding_of_the_undisturbed_run_is_said_to_be_one() -> None:
    example = Example("", (), "", (), (place(9),), 0, "")
    text = Page(render([result_of(made_up(example=example))])).text
    assert "Not stopped: it appears after an undisturbed run." in text
    assert "--at" not in text


def test_every_kind_has_advice() -> None:
    assert set(ADVICE) == set(KINDS)


def test_the_test_to_write_is_the_whole_strip_with_the_world_it_was_found_in() -> None:
    result = result_of(world="trio", options="--backend trio --real-io --seed 4", seed=4)
    assert as_test(made_up(), result) == (
        "def test_main_can_be_stopped(): "
        "audit(main, stops='cancel', phases='early', backend='trio', real_io=True, seed=4).assert_clean()"
    )


def test_the_test_to_write_calls_the_check_that_failed() -> None:
    assert "check=pool_is_whole" in as_test(made_up(kind="check", what="pool_is_whole"), result_of())


def test_the_test_to_write_finds_what_was_found() -> None:
    result = audit(session)
    written = as_test(result.findings[0], result)
    scope: dict[str, object] = {"audit": audit, "session": session}
    exec(written, scope)
    with pytest.raises(AssertionError, match="LEAKED poll"):
        scope["test_session_can_be_stopped"]()  # type: ignore[operator]


# The timeline


def test_a_leaked_lane_goes_to_the_edge_and_says_that_it_is_pending(leaky: AuditResult) -> None:
    text = render([leaky])
    [drawn] = re.findall(r'<g class="lane leak about">.*?</g>', text, re.DOTALL)
    x, width = re.findall(r'<rect class="b" x="([\d.]+)%" width="([\d.]+)%"', drawn)[0]
    assert float(x) + float(width) == pytest.approx(100, abs=0.02)
    assert "still pending" in drawn
    assert ">poll<" in drawn
    [root] = re.findall(r'<g class="lane">.*?</g>', text, re.DOTALL)
    x, width = re.findall(r'<rect class="b" x="([\d.]+)%" width="([\d.]+)%"', root)[0]
    assert float(x) + float(width) < 95
    assert "still pending" not in root


def test_a_timeline_tells_where_a_lane_waits_and_where_it_was_made(leaky: AuditResult) -> None:
    text = render([leaky])
    assert re.search(r"<title>waits at [^<]*test_html\.py:\d+ in poll, from step \d+ on</title>", text)
    assert re.search(r"made at [^<]*test_html\.py:\d+ in session", text)
    assert "stopped here" in text
    assert "the root ended" in text


@pytest.mark.parametrize(("phase", "side"), [("early", 1), ("late", -1), ("unstarted", -1)])
def test_a_stop_is_drawn_on_the_side_of_its_step_on_which_it_came(phase: str, side: int) -> None:
    example = replace(made_up().example, points=(Point("main", 3, phase),))  # type: ignore[arg-type]
    drawn = draw(Timeline((lane("main"),), 10, ((4, "main"),), 9), made_up(example=example), "main")
    [at] = re.findall(r'<g class="stop"><line x1="([\d.]+)%"', drawn)
    width = 10 + 0.5 + 1.2
    assert float(at) == pytest.approx(100 * (4 + side / 2) / width, abs=0.01)


def test_the_end_of_a_root_that_never_ended_is_not_drawn() -> None:
    drawn = draw(Timeline((lane("main", end=None),), 10, (), 9), made_up(), "main")
    assert "the root ended" not in drawn
    assert "Not stopped." in drawn


def test_of_too_many_lanes_those_that_matter_are_drawn_and_the_others_counted() -> None:
    lanes = tuple(lane(f"other#{number}") for number in range(2, 200))
    lanes += (lane("main"), lane("stopped"), lane("poll#7", end=None))
    drawn = draw(Timeline(lanes, 10, ((4, "stopped"),), 9), made_up(), "main")
    assert drawn.count('class="lane') == LANES
    assert f"{len(lanes) - LANES} more tasks not drawn" in drawn
    for label in ("main (root)", "stopped", "poll#7"):
        assert f'y="13">{label}<' in drawn


def test_a_run_of_thousands_of_steps_is_drawn_in_few_strokes() -> None:
    waits = tuple((step, step + 2, "app/pool.py:9 in poll") for step in range(0, 20000, 2))
    drawn = draw(Timeline((replace(lane("main"), waits=waits),), 20000, (), 20000), made_up(), "main")
    assert drawn.count("<rect") < 300


def test_what_a_leaked_task_does_long_after_the_root_leaves_room_for_what_came_before() -> None:
    drawn = draw(
        Timeline((lane("main"), lane("poll", end=None), lane("slow", end=1900)), 2000, (), 6),
        made_up(),
        "main",
    )
    [over] = re.findall(r'<g class="end"><line x1="([\d.]+)%"', drawn)
    assert 25 < float(over) < 75
    assert "The last 1986 steps of leftover tasks are not drawn." in drawn
    [pending] = re.findall(r'<g class="lane leak about">.*?</g>', drawn, re.DOTALL)
    assert "still pending" in pending
    assert drawn.count("still pending") == 1


# What may come in


def test_nothing_that_a_program_is_called_gets_out_of_its_place() -> None:
    cells = [Cell((Point(HOSTILE, 1, "early"),), (place(1, function=HOSTILE, file=HOSTILE),), "clean")]
    example = Example(HOSTILE, (Point(HOSTILE, 1, "late"),), HOSTILE, (place(1),), (place(2),), 1, HOSTILE)
    finding = made_up(
        kind=HOSTILE, what=HOSTILE, example=example, ignored=HOSTILE, strips=[HOSTILE],
        made_at=(place(1, file=HOSTILE),),
    )  # fmt: skip
    result = result_of(finding, replace(finding, ignored=""), strips=[strip_of(*cells)])
    result.scenario = result.target = result.reason = HOSTILE
    result.notes, result.stale_ignores = [HOSTILE], [HOSTILE]
    result.strips[0].says = result.strips[0].stop = HOSTILE
    result.timelines[HOSTILE] = Timeline((lane(HOSTILE, end=None), lane(HOSTILE)), 9, ((1, HOSTILE),), 8)
    page = Page(render([result, result]))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not any("onerror" in attrs for _, attrs in page.tags)
    assert HOSTILE in page.text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("größe 測試 🜚", "größe 測試 🜚"),
        ("a\x1b[31mb\0", "a␛[31mb␀"),
        ("\u202eevil", "\\u202eevil"),
        ("caf\udce9", "caf\\xe9"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("<&\"'>", "&lt;&amp;&quot;&#x27;&gt;"),
    ],
)
def test_text_is_shown_as_it_is_and_what_cannot_be_seen_as_an_escape(given: str, shown: str) -> None:
    assert esc(given) == shown


def test_hundreds_of_points_and_dozens_of_findings_make_a_page_of_reasonable_size() -> None:
    findings = [made_up(what=f"task{number}") for number in range(60)]
    marks = ("clean", "finding", "warning", "missed", "skipped")
    cells = [
        Cell((Point("main", n, "early"),), (place(n),), marks[n % 5], findings[n % 60 :][: n % 5 == 1])  # type: ignore[arg-type]
        for n in range(900)
    ]
    text = render([result_of(*findings, strips=[strip_of(*cells)])])
    page = Page(text)
    assert len(page.all("details", "finding")) == 60
    assert len([a for a in page.all("details", "finding") if "open" in a]) == 8
    assert len(text) < 400_000


def test_a_report_on_over_a_hundred_points_is_small() -> None:
    async def worker() -> None:
        for _ in range(10):
            await asyncio.sleep(0.1)

    async def mid() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(12):
                group.create_task(worker())

    result = audit(mid, stops="cancel")
    assert result.points > 120
    assert len(render([result])) < 70_000


# Writing it


def test_the_file_is_the_page(tmp_path: Path) -> None:
    write_html([audit(tidy, name="größe")], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")


def test_the_file_may_be_named_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_html([], "out.html")
    assert os.listdir() == ["out.html"]


def test_a_report_that_cannot_be_written_leaves_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.html"
    path.write_text("before")

    def full(source: str, target: str) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_html([], path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out.html"]


def test_the_file_may_be_read_by_whom_the_process_lets_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_html([], tmp_path / "out.html")
    finally:
        os.umask(before)
    assert (tmp_path / "out.html").stat().st_mode & 0o777 == 0o640
