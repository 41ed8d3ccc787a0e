"""The documentation as a browser shows it: every page, light and dark, on a handler and on a phone."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page

from ui_tests.docs_site import (
    NARROW,
    ROOT,
    TOO_WIDE,
    WIDE,
    Visit,
    addresses,
    build_site,
    opened,
    served,
    visit_page,
)

# By what its picture is called.
LOOKED_AT = {
    "home": "",
    "getting-started": "getting-started/",
    "concepts": "concepts/",
    "chat": "chat/",
    "realtime": "realtime/",
    "scope": "words/scope/",
}
# One of each sort: a first page, prose with pictures, a long reference, tables, console output.
JUDGED = ["", "concepts/", "words/scope/", "performance/", "chat/"]
SMALLEST_TEXT = 12  # px, in the pictures as they were drawn
LEGIBLE = 11  # px, as they are shown
# Of the theme, not ours: its search is a dialog without a name.
FAULTS_OF_THE_THEME = {"aria-dialog-name": {"enabled": False}}

schemes = pytest.mark.parametrize("scheme", ["light", "dark"])
widths = pytest.mark.parametrize("width", [WIDE, NARROW])


@pytest.fixture(scope="session")
def folder(pictures: Path) -> Path:
    folder = pictures / "site"
    build_site(folder)
    return folder


@pytest.fixture(scope="session")
def site(folder: Path) -> Iterator[str]:
    with served(folder) as address:
        yield address


@pytest.fixture(scope="session")
def visits(browser: Browser, folder: Path, site: str) -> dict[str, Visit]:
    """Of every page, by its address."""
    return {address: visit_page(browser, site, address) for address in addresses(folder)}


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    """The first page; it may not have complained in the end."""
    with opened(browser, site) as (page, visit):
        yield page
    assert visit.complaints == []


def test_every_page_loads_with_a_title_and_a_heading(visits: dict[str, Visit]) -> None:
    written = list((ROOT / "docs").rglob("*.md"))
    assert len(visits) == len(written) > 50
    assert {address: visit.status for address, visit in visits.items() if visit.status != 200} == {}
    assert [
        address for address, visit in visits.items() if not visit.heading or "quiesce" not in visit.title
    ] == []


def test_no_page_complains_and_no_request_fails(visits: dict[str, Visit]) -> None:
    assert {address: visit.complaints for address, visit in visits.items() if visit.complaints} == {}


def test_a_page_that_complains_and_asks_in_vain_is_seen_to(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        "<img src=missing.png><script>console.error('oh'); nothing()</script>"
    )
    with served(tmp_path) as site:
        complaints = " ".join(visit_page(browser, site, "").complaints)
    for complaint in ("error: oh", "nothing is not defined", "404: ", "missing.png"):
        assert complaint in complaints


def test_no_page_asks_anybody_else_for_anything(visits: dict[str, Visit], site: str) -> None:
    elsewhere = {
        url for visit in visits.values() for url in visit.requests if not url.startswith((site, "data:"))
    }
    assert elsewhere == set()


def test_the_navigation_of_every_page_leads_to_every_page(visits: dict[str, Visit], site: str) -> None:
    for address, visit in visits.items():
        led_to = {url.partition("#")[0].removeprefix(site) for url in visit.navigation}
        assert set(visits) - led_to == set(), f"not in the navigation of {address!r}"


def test_every_link_within_the_site_leads_to_a_page_and_a_place_in_it(
    visits: dict[str, Visit], site: str
) -> None:
    broken = []
    followed = anchors = 0
    for address, visit in visits.items():
        for url in visit.links:
            if not url.startswith(site):
                continue
            followed += 1
            target, _, place = url.removeprefix(site).partition("#")
            anchors += bool(place)
            if target not in visits:
                broken.append((address, url, "no such page"))
            elif place and place not in visits[target].ids:
                broken.append((address, url, "no such place in it"))
    assert broken == []
    assert followed > 1000
    assert anchors > 500


def test_every_link_out_of_the_site_is_encrypted(visits: dict[str, Visit], site: str) -> None:
    outward = {url for visit in visits.values() for url in visit.links if not url.startswith(site)}
    assert outward
    assert {url for url in outward if not url.startswith("https://")} == set()


def test_a_click_on_a_link_with_an_anchor_shows_its_place(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}words/scope/") as (page, visit):
        link = page.locator("nav.md-nav--secondary a.md-nav__link").last
        target = str(link.get_attribute("href"))
        link.click()
        page.wait_for_function("target => location.hash === target", arg=target)
        top = page.locator(f"[id='{target[1:]}']").evaluate("one => one.getBoundingClientRect().top")
        assert 0 <= top < 900
        assert visit.complaints == []


def test_a_page_that_is_not_there_says_so_and_leads_home(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}404.html") as (page, visit):
        assert "404" in page.locator("article h1").inner_text()
        page.locator("a.md-logo").first.click()
        page.wait_for_url(site)
        assert visit.complaints == []


@widths
def test_nothing_is_wider_than_the_window(visits: dict[str, Visit], width: int) -> None:
    assert {address: found for address, visit in visits.items() if (found := visit.too_wide[width])} == {}


def test_the_measure_of_width_sees_what_sticks_out(browser: Browser, site: str) -> None:
    with opened(browser, site, width=NARROW) as (page, _):
        page.evaluate("document.querySelector('article p').style.width = '700px'")
        assert page.evaluate(TOO_WIDE)


def test_every_picture_that_there_is_is_shown_and_described(visits: dict[str, Visit], site: str) -> None:
    shown = {shown["source"]: shown for visit in visits.values() for shown in visit.pictures}
    drawn = {f"{site}pictures/{path.name}" for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert drawn
    assert drawn - set(shown) == set()
    for picture in shown.values():
        assert picture["width"] > 0, picture
        assert picture["height"] > 0, picture
        assert len(picture["alt"]) > 40, picture


def brightness(page: Page, picture: Locator) -> float:
    """Of what is painted, on average: 0 is black, 255 white."""
    painted = base64.b64encode(picture.screenshot()).decode()
    found: float = page.evaluate(
        """async painted => {
            const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + painted)).blob());
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext('2d');
            context.drawImage(image, 0, 0);
            const {data} = context.getImageData(0, 0, image.width, image.height);
            let sum = 0;
            for (let at = 0; at < data.length; at += 4) sum += data[at] + data[at + 1] + data[at + 2];
            return sum / (data.length / 4 * 3);
        }""",
        painted,
    )
    return found


@schemes
@pytest.mark.parametrize("address", ["concepts/", "tour/"])
def test_a_picture_is_light_in_the_light_and_dark_in_the_dark(
    browser: Browser, site: str, address: str, scheme: str
) -> None:
    with opened(browser, site + address, scheme=scheme) as (page, _):
        for picture in page.locator("article img").all():
            measured = brightness(page, picture)
            assert measured > 200 if scheme == "light" else measured < 90


def test_who_switches_to_dark_by_hand_gets_dark_pictures_too(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}concepts/", scheme="light") as (page, _):
        picture = page.locator("article img").first
        assert brightness(page, picture) > 200
        page.locator("label[for=__palette_1]").click()
        page.wait_for_selector("body[data-md-color-scheme=slate]")
        assert brightness(page, picture) < 90


@widths
@pytest.mark.parametrize("address", ["concepts/", "tour/"])
def test_the_text_of_a_picture_can_be_read(browser: Browser, site: str, address: str, width: int) -> None:
    with opened(browser, site + address, width=width) as (page, _):
        for picture in page.locator("article img").all():
            drawn = page.evaluate(
                """async source => +new DOMParser().parseFromString(await (await fetch(source)).text(), 'image/svg+xml')
                    .documentElement.getAttribute('viewBox').split(' ')[2]""",
                picture.get_attribute("src"),
            )
            shown = picture.evaluate("one => one.getBoundingClientRect().width")
            assert shown / drawn * SMALLEST_TEXT >= LEGIBLE


def test_the_search_finds_the_page_of_own(page: Page, site: str) -> None:
    page.keyboard.press("/")
    page.keyboard.type("own")
    found = page.locator(".md-search-result__item > a.md-search-result__link")
    found.first.wait_for()
    links = [str(link) for link in found.evaluate_all("all => all.map(one => one.href)")]
    assert f"{site}words/own/" in {link.partition("#")[0].partition("?")[0] for link in links[:3]}
    found.first.click()
    page.wait_for_url(lambda url: url != site)


@schemes
@pytest.mark.parametrize("address", JUDGED)
def test_no_page_has_a_serious_fault_as_axe_judges_it(
    browser: Browser, site: str, address: str, scheme: str
) -> None:
    with opened(browser, site + address, scheme=scheme) as (page, _):
        standards = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
        found = Axe().run(page, options={"runOnly": standards, "rules": FAULTS_OF_THE_THEME})
        violations: list[dict[str, Any]] = found.response["violations"]
        serious = [one for one in violations if one["impact"] in ("serious", "critical")]
        assert [(v["id"], v["help"], [n["html"][:150] for n in v["nodes"][:3]]) for v in serious] == []


@pytest.mark.parametrize("name", LOOKED_AT)
@widths
@schemes
def test_a_picture_of_the_pages_that_matter_most_is_made(
    browser: Browser, site: str, pictures: Path, name: str, width: int, scheme: str
) -> None:
    path = pictures / "docs" / f"{name}-{width}-{scheme}.png"
    path.parent.mkdir(exist_ok=True)
    with opened(browser, site + LOOKED_AT[name], width=width, scheme=scheme) as (page, visit):
        height = min(page.evaluate("document.documentElement.scrollHeight"), 8000)
        page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
        assert path.stat().st_size > 10_000
        assert visit.complaints == []
