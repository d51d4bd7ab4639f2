"""The site in a browser: the rules of WCAG in both colour schemes, the keyboard, and screens of phones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium or google-chrome to open the site with"),
]

RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
"""Contrast of text is one of them, and that the keyboard reaches what scrolls."""
MAIN = (
    "index",
    "tutorials/your_model",
    "tutorials/tenants",
    "examples",
    "guide",
    "serving",
    "method",
    "comparison",
    "results",
    "lab",
    "reference/learner",
    "changelog",
    "search",
)
"""Pages of every kind that there is."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=BROWSER, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        yield launched
        launched.close()


def opened(browser: Browser, site: Path, name: str, width: int = 1280, scheme: Any = "light") -> Page:
    """A page of the site, in a context of its own."""
    size: Any = {"width": width, "height": 900}
    page = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce").new_page()
    page.goto((site / f"{name}.html").as_uri())
    return page


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_pages_satisfy_the_rules_of_wcag(browser: Browser, site: Path, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    problems = []
    for name in MAIN:
        page = opened(browser, site, name, width, scheme)
        report = Axe().run(page, options={"runOnly": list(RULES)}).response
        assert len(report["passes"]) > 10, name
        problems += [f"{name}: {v['id']}: {node['html'][:120]}" for v in report["violations"] for node in v["nodes"]]
        page.context.close()
    assert problems == []


def test_nothing_reaches_over_the_edge_of_a_phone_and_every_picture_is_there(browser: Browser, site: Path) -> None:
    page = opened(browser, site, "index", 390)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 390, path.name
        broken = "[...document.images].filter(image => !image.complete || !image.naturalWidth).map(image => image.src)"
        assert page.evaluate(broken) == [], path.name
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    page.context.close()


def test_the_keyboard_reaches_content_theme_and_wide_code(browser: Browser, site: Path) -> None:
    page = opened(browser, site, "tutorials/your_model", 390)
    page.keyboard.press("Tab")
    assert "Skip to content" in page.evaluate("document.activeElement.textContent")
    theme = page.locator(".theme-toggle").locator("visible=true").first
    before = page.evaluate("document.body.dataset.theme")
    theme.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.body.dataset.theme") != before
    wide = page.locator("article pre[tabindex]").first
    wide.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")
    stops = (
        "[...document.querySelectorAll('article pre')].map(pre => [pre.scrollWidth > pre.clientWidth, pre.tabIndex])"
    )
    assert all((index == 0) == is_wide for is_wide, index in page.evaluate(stops))
    page.set_viewport_size({"width": 1600, "height": 900})
    page.wait_for_function("document.querySelectorAll('article pre[tabindex]').length <= 2")
    page.context.close()
