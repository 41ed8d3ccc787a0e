"""The HTML report as a browser shows it: light and dark, narrow and wide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from quiesce.audit import AuditResult

Show = Callable[..., Page]
Results = dict[str, list[AuditResult]]

NAMES = ["session", "crawler", "clean", "several", "extreme", "nothing"]
WIDTHS = [360, 800, 1400]
SCHEMES = ["light", "dark"]
CONTRAST = (Path(__file__).parent / "colours.js").read_text()

reports = pytest.mark.parametrize("name", NAMES)
widths = pytest.mark.parametrize("width", WIDTHS)
schemes = pytest.mark.parametrize("scheme", SCHEMES)


@reports
@widths
@schemes
def test_a_picture_of_every_report_is_made(
    show: Show, pictures: Path, name: str, width: int, scheme: str
) -> None:
    page = show(name, width=width, scheme=scheme)
    path = pictures / f"{name}-{width}-{scheme}.png"
    # A page taller than a texture may be is cut; what matters of it is at the top.
    height = min(page.evaluate("document.documentElement.scrollHeight"), 8000)
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    assert path.stat().st_size > 3000


@reports
@widths
def test_nothing_is_wider_than_the_window(show: Show, name: str, width: int) -> None:
    page = show(name, width=width, unfold=True)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    sticking_out = page.evaluate(
        """() => [...document.body.querySelectorAll(':not(svg *)')]
            .filter(one => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 0.5)
            .map(one => one.outerHTML.slice(0, 120))"""
    )
    assert sticking_out == []


@reports
@schemes
def test_all_text_stands_out_from_what_is_behind_it(show: Show, name: str, scheme: str) -> None:
    page = show(name, scheme=scheme, unfold=True)
    measured = page.evaluate(CONTRAST)
    assert measured
    assert [found for found in measured if found[0] < 4.5] == []


def test_the_measure_of_contrast_sees_text_that_is_hard_to_read(show: Show) -> None:
    page = show("session")
    page.evaluate("document.querySelector('h2').style.color = '#999'")
    page.evaluate("document.querySelector('.t text').style.fill = '#ddd'")
    assert len([found for found in page.evaluate(CONTRAST) if found[0] < 4.5]) >= 2


def test_dark_is_dark_and_light_is_light(show: Show) -> None:
    def brightness(scheme: str, what: str) -> int:
        colour: str = show("several", scheme=scheme).evaluate(f"getComputedStyle(document.body).{what}")
        return sum(int(part) for part in colour[4:-1].split(","))

    assert brightness("light", "backgroundColor") > 700 > 150 > brightness("light", "color")
    assert brightness("dark", "backgroundColor") < 150 < 600 < brightness("dark", "color")


# Not the biggest: axe takes its time with a thousand cells that are all alike.
@pytest.mark.parametrize("name", ["session", "clean", "hostile", "nothing"])
@schemes
def test_the_page_is_accessible_as_axe_judges_it(show: Show, name: str, scheme: str) -> None:
    page = show(name, scheme=scheme, unfold=True)
    found = Axe().run(
        page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}
    )
    violations: list[dict[str, Any]] = found.response["violations"]
    assert [(v["id"], v["help"], [n["html"][:150] for n in v["nodes"][:3]]) for v in violations] == []


@pytest.mark.parametrize("name", ["session", "crawler", "several", "extreme"])
@widths
def test_every_cell_can_be_seen_and_says_where_it_is(
    show: Show, results: Results, name: str, width: int
) -> None:
    page = show(name, width=width)
    cells = page.evaluate(
        """() => [...document.querySelectorAll('.cells > *')].map(one => {
            const box = one.getBoundingClientRect();
            return [one.title, one.textContent, box.width, box.height, box.left, box.right];
        })"""
    )
    strips = [strip for result in results[name] for strip in result.strips if strip.cells]
    assert len(cells) == sum(len(strip.cells) for strip in strips) + len(
        strips
    )  # one more each: the baseline
    for title, sign, wide, high, left, right in cells:
        assert title.strip()
        assert sign.strip()
        assert wide >= 14
        assert high >= 14
        assert 0 <= left < right <= width
    titles = {title for title, *_ in cells}
    assert any("leaky.py:" in title or "pool.py:" in title for title in titles)


@pytest.mark.parametrize("name", ["session", "several", "extreme"])
def test_every_link_leads_to_a_place_in_the_page(show: Show, name: str) -> None:
    page = show(name)
    links = page.evaluate("[...document.querySelectorAll('a')].map(one => one.getAttribute('href'))")
    assert links
    assert all(link.startswith("#") for link in links)
    missing = page.evaluate("links => links.filter(link => !document.getElementById(link.slice(1)))", links)
    assert missing == []


def test_a_click_on_a_red_cell_goes_to_its_finding(show: Show) -> None:
    page = show("session")
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    cell = page.locator(".cells a.bad").first
    target = str(cell.get_attribute("href"))
    cell.click()
    assert page.evaluate("location.hash") == target
    finding = page.locator(target)
    assert finding.evaluate("one => one.matches(':target')")
    assert finding.evaluate("one => one.getBoundingClientRect().top < innerHeight")
    assert "poll" in finding.inner_text()


def test_the_keyboard_reaches_cells_and_its_place_can_be_seen(show: Show) -> None:
    page = show("session")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.cells a')"):
            break
    else:
        pytest.fail("twelve presses of Tab do not get to the first cell with a finding")
    outline = page.evaluate(
        "(style => [style.outlineStyle, parseFloat(style.outlineWidth)])(getComputedStyle(document.activeElement))"
    )
    assert outline == ["solid", 3]


@pytest.mark.parametrize("name", ["session", "crawler"])
@widths
@schemes
def test_a_leaked_lane_is_red_to_the_right_edge_and_no_other_lane_gets_there(
    show: Show, name: str, width: int, scheme: str
) -> None:
    page = show(name, width=width, scheme=scheme)
    lanes = page.evaluate(
        """() => [...document.querySelectorAll('svg.t .lane')].map(lane => {
            const bar = lane.querySelector('.b');
            const edge = lane.ownerSVGElement.getBoundingClientRect().right;
            return [lane.classList.contains('leak'), edge - bar.getBoundingClientRect().right,
                    getComputedStyle(bar).fill, lane.textContent.includes('still pending')];
        })"""
    )
    leaked = [lane for lane in lanes if lane[0]]
    ended = [lane for lane in lanes if not lane[0]]
    assert leaked
    assert ended
    for _, gap, colour, says_so in leaked:
        red, green, blue = (int(part) for part in colour[4:-1].split(","))
        assert abs(gap) < 1
        assert red > 1.4 * max(green, blue)
        assert says_so
    for _, gap, _, says_so in ended:
        assert gap > width * 0.02
        assert not says_so


def test_the_stop_is_marked_between_the_steps_it_came_between(show: Show) -> None:
    page = show("session")
    stop, marks = page.evaluate(
        """() => {
            const svg = document.querySelector('svg.t');
            const middle = one => (box => (box.left + box.right) / 2)(one.getBoundingClientRect());
            const lanes = [...svg.querySelectorAll('.lane')];
            return [middle(svg.querySelector('.stop line')), [...lanes[0].querySelectorAll('.s')].map(middle)];
        }"""
    )
    assert marks[0] < stop < marks[1]
    assert (
        page.locator("svg.t .stop line").first.evaluate("one => getComputedStyle(one).strokeDasharray")
        != "none"
    )


@widths
def test_a_label_of_a_timeline_is_not_cut_off_on_the_left(show: Show, width: int) -> None:
    page = show("extreme", width=width)
    left = page.evaluate(
        """() => [...document.querySelectorAll('svg.t text')].filter(one => one.checkVisibility()).map(one =>
            one.getBoundingClientRect().left - one.ownerSVGElement.getBoundingClientRect().left)"""
    )
    assert left
    assert min(left) >= -5


def test_what_a_program_is_called_cannot_become_part_of_the_page(show: Show) -> None:
    page = show("extreme", unfold=True)
    assert page.locator("script, img, iframe").count() == 0
    assert page.locator("body", has_text="<img src=x onerror=alert(1)>").count() == 1


def test_the_replay_command_can_be_selected_as_a_whole(show: Show, results: Results) -> None:
    page = show("session")
    result = results["session"][0]
    page.locator(".finding pre code").first.click()
    assert page.evaluate("getSelection().toString()") == result.replay_command(result.errors[0].example.token)


def test_folded_findings_are_printed(show: Show) -> None:
    page = show("extreme")
    page.emulate_media(media="print")
    assert (
        page.locator(".finding:not([open]) .body").last.evaluate("one => one.getBoundingClientRect().height")
        > 50
    )
