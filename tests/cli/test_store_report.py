"""`halrp report STORE`: the table, the page and JSON, what it refuses, and that everybody can read the page."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halrp import Halrp, Learner, Store
from halrp.cli.app import app
from halrp.cli.store_report import is_store
from tests.commands import invoke
from tests.helpers import FAST, net, tiny_task
from tests.lab.made_records import put, stable
from tests.lab.page_content import page_content
from tests.timing import PATIENCE

ran = partial(invoke, app)
MODEL = "tests.cli.test_store_report:build"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "</script><img src=x onerror=alert(1)>"


def build() -> object:
    return net("mlp")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports") / "birds and cars"
    method = Halrp.budget(bytes_per_task=20_000)
    learner = Learner(net("mlp"), method=method, recipe=FAST, base="given", store=folder)
    for number, name in enumerate(("birds", HOSTILE)):
        learner.learn(name, tiny_task("mlp", number), tiny_task("mlp", number))
    return folder


@pytest.fixture
def store(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield Path(shutil.copytree(saved, tmp_path / saved.name))
    sys.path[:] = before


def test_a_table_on_the_screen_and_a_page(store: Path) -> None:
    result = ran("report", store, "--model", MODEL)
    assert result.code == 0, result.error
    assert "Retained 100 % (bitwise): 2 tasks." in result.out
    assert "wrote report.html" in result.out
    text = Path("report.html").read_text("utf-8")
    assert "<title>Tasks of birds and cars</title>" in text
    assert str(store.parent) not in text
    assert HOSTILE not in text
    assert "vegaEmbed = " not in text
    assert len(text) < 100_000, "what draws figures is left out"
    facts = page_content(Path("report.html"))
    entry = Store(store).manifest().tasks["birds"]
    assert f'["birds",{entry.bytes},' in facts
    assert '"same bits"' in facts


def test_the_page_is_the_same_each_time_and_goes_where_it_is_asked_to(store: Path) -> None:
    for name in ("a.html", "b.html"):
        assert ran("report", store, "-o", name, "--title", "Mine & yours").code == 0
    assert Path("a.html").read_bytes() == Path("b.html").read_bytes()
    assert "<title>Mine &amp; yours</title>" in Path("a.html").read_text("utf-8")


def test_json_writes_a_page_only_if_asked_for(store: Path) -> None:
    facts: dict[str, Any] = json.loads(ran("report", store, "--json").out)
    assert facts["retained"]["share_bitwise"] == 1.0
    assert facts["tasks"][0]["retained"]["outputs"] is None
    assert not Path("report.html").exists()
    result = ran("report", store, "--json", "-o", "page.html")
    assert json.loads(result.out) == facts
    assert "wrote page.html" in result.error


def test_damage_is_shown_and_is_an_exit_code(store: Path) -> None:
    (store / Store(store).manifest().tasks["birds"].file).write_bytes(b"cut")
    for options in ((), ("--model", MODEL)):
        result = ran("report", store, *options)
        assert result.code == 1
        assert "Retained 50 % (bitwise): 1 of 2 tasks; 1 damaged." in result.out
        assert "birds: " in result.out
    assert '"damaged"' in page_content(Path("report.html"))


def test_a_key_decides_what_is_used(store: Path) -> None:
    ran("keygen", "team.key", "--kind", "hmac-sha256")
    result = ran("report", store, "--key", "team.key")
    assert result.code == 2
    assert "has no signature" in result.error
    ran("sign", store, "--key", "team.key")
    assert ran("report", store, "--key", "team.key", "--model", MODEL).code == 0


def test_a_store_is_known_by_its_files_and_its_options_are_its_own(store: Path, tmp_path: Path) -> None:
    put(tmp_path / "records", "stl.json", stable({0: 0.5, 1: 0.75}, [0, 1], "stl"))
    assert is_store(store)
    assert not is_store(tmp_path / "records")
    assert not is_store(tmp_path / "nowhere")
    for arguments in ((store, store), (store, "records"), (store, "--figures", "figures")):
        result = ran("report", *arguments)
        assert result.code == 2
        assert "about one store" in result.error
    result = ran("report", "records", "--model", MODEL)
    assert result.code == 2
    assert "are about a store" in result.error
    (store / "manifest.json").unlink()
    assert is_store(store)
    assert "halrp repair" in ran("report", store).error
    assert not Path("report.html").exists()


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium or google-chrome to open the page with")
def test_everybody_can_read_the_page_in_light_and_dark_and_on_a_phone(store: Path, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    ran("report", store, "--model", MODEL)
    errors: list[str] = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--headless", "--no-sandbox", "--disable-gpu"])
        for scheme, width in (("light", 1280), ("dark", 390)):
            options: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
            # The page allows no other scripts than its own, by checksum; axe-core is one.
            context = browser.new_context(bypass_csp=True, reduced_motion="reduce", **options)
            page = context.new_page()
            page.set_default_timeout(1000 * PATIENCE)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto((tmp_path / "report.html").as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            results = Axe().run(page)
            assert results.violations_count == 0, results.generate_report()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("article.table tbody tr").count() >= 8
            context.close()
        browser.close()
    assert errors == []
