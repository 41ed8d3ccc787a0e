"""The documentation as its readers have it: built, served over HTTP, every page opened once in a browser.

A page is known by its address below the site's root: `""` is the first page, `words/own/` that of `own`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent
WIDE, NARROW = 1280, 400
BUILT_WITHIN = 300  # seconds, on a busy machine

# Theme and docs move by themselves; what is measured stands still.
STILL = "*, ::before, ::after { transition: none !important; animation: none !important; scroll-behavior: auto !important }"

OUTLINE = """() => ({
    title: document.title,
    heading: document.querySelector('article h1')?.innerText ?? '',
    ids: [...document.querySelectorAll('[id]')].map(one => one.id),
    links: [...document.querySelectorAll('a[href]')].map(one => one.href),
    navigation: [...document.querySelectorAll('nav.md-nav--primary a.md-nav__link[href]')].map(one => one.href),
    pictures: [...document.querySelectorAll('article img')].map(one => ({
        source: one.src, alt: one.alt, width: one.naturalWidth, height: one.naturalHeight,
    })),
})"""

# What sticks out of the window, unless something around it scrolls or cuts it off.
TOO_WIDE = """() => {
    const contained = one => {
        for (let around = one.parentElement; around && around !== document.body; around = around.parentElement)
            if (getComputedStyle(around).overflowX !== 'visible') return true;
        return false;
    };
    const wide = [...document.querySelectorAll('.md-content *')].filter(one => one.checkVisibility() &&
        one.getBoundingClientRect().right > innerWidth + 0.5 && !contained(one));
    const page = document.documentElement.scrollWidth;
    return [...(page > innerWidth ? [`the page is ${page} px wide`] : []), ...wide.map(one => one.outerHTML.slice(0, 120))];
}"""


@dataclass
class Visit:
    """What a browser saw of one page."""

    address: str
    status: int
    title: str = ""
    heading: str = ""
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    navigation: list[str] = field(default_factory=list)
    pictures: list[dict[str, Any]] = field(default_factory=list)
    too_wide: dict[int, list[str]] = field(default_factory=dict)
    """By the width of the window."""
    complaints: list[str] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)


def build_site(folder: Path) -> None:
    """With the mkdocs of this environment; what it only warns of is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BUILT_WITHIN, check=False
    )
    assert done.returncode == 0, f"mkdocs could not build the documentation:\n{done.stdout}{done.stderr}"


def addresses(folder: Path) -> list[str]:
    """Of every page but the one that is shown for those that are not there."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("index.html"))
    return sorted(path.removesuffix("index.html") for path in found)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *said: Any) -> None:
        """The browser says which requests fail."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder on a port of this machine; its address, with a slash at the end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, name="docs site")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def opened(
    browser: Browser, url: str, *, width: int = WIDE, scheme: str = "light"
) -> Iterator[tuple[Page, Visit]]:
    """A page of its own, without motion, with what it complained of and asked for."""
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    visit = Visit(url, 0)
    page.on("console", lambda said: visit.complaints.append(f"{said.type}: {said.text}"))
    page.on("pageerror", lambda error: visit.complaints.append(f"error: {error}"))
    page.on("request", lambda request: visit.requests.add(request.url))
    page.on("requestfailed", lambda request: visit.complaints.append(f"failed: {request.url}"))
    page.on("response", lambda answer: _note(answer, visit))
    try:
        answer = page.goto(url, wait_until="load")
        visit.status = answer.status if answer else 0
        page.add_style_tag(content=STILL)
        page.wait_for_function("document.readyState === 'complete'")
        yield page, visit
    finally:
        page.close()


def _note(answer: Any, visit: Visit) -> None:
    if answer.status >= 400:
        visit.complaints.append(f"{answer.status}: {answer.url}")


def visit_page(browser: Browser, site: str, address: str) -> Visit:
    """Wide, then narrow."""
    with opened(browser, site + address) as (page, visit):
        visit.address = address
        seen = page.evaluate(OUTLINE)
        visit.title, visit.heading, visit.ids = seen["title"], seen["heading"], set(seen["ids"])
        visit.links, visit.navigation, visit.pictures = seen["links"], seen["navigation"], seen["pictures"]
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": 900})
            visit.too_wide[width] = page.evaluate(TOO_WIDE)
        return visit
