"""Reports of real audits, and a real browser to look at them with. Run by `make test-ui`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.inherited import put_in_order
from tests.time_limit import limit_each_test as pytest_runtest_call  # noqa: F401

from quiesce.audit import AuditResult, audit
from quiesce.audit.html.page import write_html
from ui_tests import extremes, leaky

put_in_order()

PICTURES = Path(__file__).parent.parent / "build" / "ui"


@pytest.fixture(scope="session")
def results() -> dict[str, list[AuditResult]]:
    """By the name of the report."""
    options: dict[str, Any] = {"timelines": True}
    session = audit(leaky.client_session, stops="all", depth=2, **options)
    crawler = audit(leaky.crawler, **options)
    several = [
        session,
        audit(leaky.busy_pool, check=leaky.pool_is_whole, **options),
        audit(leaky.stubborn, stops="cancel,twice,timeout", **options),
        audit(leaky.numbers, **options),
        audit(leaky.tidy, **options),
        audit(leaky.broken, **options),
        audit(leaky.moody, **options),
        audit(leaky.tidy, ignore={"leaked nothing*": "it was mended"}, sample=2),
    ]
    return {
        "session": [session],
        "crawler": [crawler],
        "clean": [audit(leaky.tidy)],
        "several": several,
        "extreme": [extremes.extreme(), *several],
        "hostile": [extremes.extreme(cells=14, findings=12, lanes=5, steps=30)],
        "nothing": [],
    }


@pytest.fixture(scope="session")
def reports(
    results: dict[str, list[AuditResult]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, found in results.items():
        write_html(found, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in results}


@pytest.fixture(scope="session")
def pictures() -> Path:
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir(parents=True)
    return PICTURES


# After `results`: a browser driven from synchronous code keeps an event loop running, and no audit runs inside one.
@pytest.fixture(scope="session")
def browser(results: object) -> Iterator[Browser]:
    path = os.environ.get("QUIESCE_BROWSER")
    if not path:
        pytest.fail("QUIESCE_BROWSER does not name a browser: run these tests with `make test-ui`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Browser, reports: dict[str, Path]) -> Iterator[Callable[..., Page]]:
    """Opens a report. At the end, no page may have complained, or asked for anything but itself."""
    opened: list[Page] = []
    complaints: list[str] = []
    requests: list[str] = []

    def show(name: str, *, width: int = 1000, scheme: str = "light", unfold: bool = False) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        page.on("console", lambda message: complaints.append(f"{name}: {message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{name}: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"{name}: {dialog.message}") or dialog.dismiss())  # type: ignore[func-returns-value]
        page.on("request", lambda request: requests.append(re.sub("#.*", "", request.url)))
        page.goto(reports[name].as_uri())
        if unfold:
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        return page

    yield show
    for page in opened:
        page.close()
    assert complaints == []
    assert set(requests) <= {path.as_uri() for path in reports.values()}
