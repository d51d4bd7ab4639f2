"""The page in a browser: it draws everything, asks no network, and does what its controls say."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from halrp.lab.methods import METHODS as REGISTERED
from halrp.lab.report.build import build, made_from
from halrp.lab.report.figure import Figure
from halrp.lab.report.page import LeftOut, Section, page
from tests.lab.made_records import made, parsed
from tests.lab.report.many_records import METHODS, many
from tests.timing import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium or google-chrome to open the page with")

HOSTILE = "</script><img src=x onerror=hacked=1>"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
MARKS = ".role-mark.mark-symbol path, .role-mark.mark-line path, .role-mark.mark-rect path"
LABELS = ".role-axis-label text"


class Opened(NamedTuple):
    """A page in a browser, and what it was made from."""

    page: Page
    records: list[dict[str, Any]]
    sections: tuple[Section, ...]
    requests: list[str]
    errors: list[str]

    def table(self, key: str) -> list[dict[str, str]]:
        """The rows of a table as they are shown, by the titles of columns."""
        rows: list[dict[str, str]] = self.page.evaluate(
            """key => {
                const part = document.querySelector(`article[data-key="${key}"]`);
                const heads = [...part.querySelectorAll("th")].map(head => head.textContent.replace("\\u00a0", " "));
                return [...part.querySelectorAll("tbody tr")].map(row => Object.fromEntries(
                    [...row.cells].map((cell, i) => [heads[i], cell.textContent.replace(/^[▲≈▼]/, "")])));
            }""",
            key,
        )
        return rows

    def shown(self, key: str) -> str:
        """The part's own selector, once the part is on the screen."""
        name = f'article[data-key="{key}"]'
        self.page.locator(name).scroll_into_view_if_needed()
        return name

    def marks(self, key: str) -> int:
        """How many marks a figure has, once it is drawn."""
        stage = f"{self.shown(key)} .stage"
        self.page.locator(stage).scroll_into_view_if_needed()
        self.page.wait_for_selector(f"{stage} svg", state="attached")
        return self.page.locator(stage).locator(MARKS).count()


def study() -> list[dict[str, Any]]:
    """Records that every kind of figure has something to draw of, and one of a stranger."""
    records = many((0.05,), 1)
    tried = itertools.product((10.0, 100.0, 1000.0), (False, True))
    for strength, shuffle in tried:
        settings: dict[str, Any] = {"settings": {"strength": strength}, "recipe": {"epochs": 20, "shuffle": shuffle}}
        accuracies = [[0.3], [0.2, 0.3 + strength / 10_000]]
        records.append(made(accuracies, method="ewc", stream="cifar100-split", backbone="lenet", **settings))
    stranger = made([[0.5], [0.5, 0.6]], method=HOSTILE, stream=HOSTILE, backbone=HOSTILE, order=HOSTILE)
    for row in stranger["rows"]:
        row["task"] = HOSTILE
    return [*records, stranger]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        started_browser = started.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield started_browser
        started_browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], tuple[Section, ...]]:
    records = study()
    sections = build(parsed(records))
    path = tmp_path_factory.mktemp("page") / "report.html"
    left_out = [LeftOut(f"results/{HOSTILE}.json", "damaged", HOSTILE)]
    path.write_text(page(HOSTILE, sections, left_out, made_from(parsed(records), [Path("results")])), encoding="utf-8")
    return path, records, sections


@pytest.fixture(scope="module")
def opened(browser: Browser, file: tuple[Path, list[dict[str, Any]], tuple[Section, ...]]) -> Iterator[Opened]:
    path, records, sections = file
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    shown = context.new_page()
    shown.set_default_timeout(1000 * PATIENCE)
    page = Opened(shown, records, sections, [], [])
    shown.on("request", lambda request: page.requests.append(request.url))
    shown.on("pageerror", lambda error: page.errors.append(str(error)))
    shown.on(
        "console", lambda message: page.errors.append(message.text) if message.type in ("error", "warning") else None
    )
    shown.goto(path.as_uri())
    shown.wait_for_selector("html[data-ready]", state="attached")
    yield page
    context.close()


def figures(sections: tuple[Section, ...]) -> list[Figure]:
    return [part for section in sections for part in section.parts if isinstance(part, Figure)]


def test_every_figure_is_drawn_when_it_comes_into_view(opened: Opened) -> None:
    all_figures = figures(opened.sections)
    assert len(all_figures) >= 10
    far = f'article[data-key="{all_figures[-1].key}"] svg'
    assert opened.page.locator(far).count() == 0
    for figure in all_figures:
        assert opened.marks(figure.key) > 0, figure.key


def test_choosing_another_drawing_draws_it(opened: Opened) -> None:
    name = opened.shown("accuracy-matrix")
    texts = f"{name} .stage {LABELS}"
    before = opened.page.locator(texts).all_text_contents()
    labels = list(next(f for f in figures(opened.sections) if f.key == "accuracy-matrix").plots)
    opened.page.locator(f"{name} select").select_option(index=7)
    opened.page.wait_for_selector(f'{name} .stage[aria-label*="{labels[7]}"]')
    assert opened.marks("accuracy-matrix") > 0
    opened.page.locator(f"{name} input[type=search]").fill("stl order b")
    options = opened.page.locator(f"{name} select option").all_text_contents()
    assert options == [label for label in labels if "stl" in label and "order B" in label]
    opened.page.wait_for_selector(f'{name} .stage[aria-label*="{options[0]}"]')
    assert opened.page.locator(texts).all_text_contents() != before


def test_a_legend_hides_and_shows(opened: Opened) -> None:
    name = opened.shown("accuracy-over-stream")
    label = "CIFAR100-Split · LeNet · 5 %"
    opened.page.locator(f"{name} select").select_option(label=label)
    opened.page.wait_for_selector(f'{name} .stage[aria-label*="{label}"]')
    assert opened.page.locator(f"{name} .legend").inner_text().split() == sorted(METHODS, key=[*REGISTERED].index)
    everything = opened.marks("accuracy-over-stream")
    first = opened.page.locator(f"{name} .legend button").first
    first.click()
    assert first.get_attribute("aria-pressed") == "false"
    assert 0 < opened.marks("accuracy-over-stream") < everything
    first.dispatch_event("click")  # another click of the mouse might be taken for the second of two
    assert opened.marks("accuracy-over-stream") == everything


def test_pictures_are_saved(opened: Opened, tmp_path: Path) -> None:
    name = opened.shown("accuracy-over-stream")
    for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with opened.page.expect_download() as waiting:
            opened.page.locator(f"{name} [data-save={kind}]").click()
        waiting.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)
        assert waiting.value.suggested_filename.startswith("accuracy-over-stream")


def test_values_beside_the_paper_are_those_of_the_records(opened: Opened) -> None:
    rows = [row for row in opened.table("paper-accuracy") if row["data %"] == "5"]
    for method in ("halrp-budget", "stl", "be"):
        cells = [r for r in opened.records if r["cell"]["method"] == method]
        finals = [sum(r["rows"][-1]["test"]) / len(r["rows"]) for r in cells]
        (row,) = [row for row in rows if row["method"].endswith(method) and row["ours"]]
        assert row["ours"] == f"{100 * sum(finals) / len(finals):.2f}"
        assert row["difference"].replace("−", "-") == f"{float(row['ours']) - float(row['paper']):+.2f}"
        assert row["runs"] == "5"


def test_sorting_by_a_click_and_by_a_key(opened: Opened) -> None:
    name = opened.shown("runs")
    head = opened.page.locator(f"{name} th", has_text="accuracy")
    as_they_come = opened.table("runs")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    rising = [float(row["accuracy"]) for row in opened.table("runs")]
    assert rising == sorted(rising)
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert [float(row["accuracy"]) for row in opened.table("runs")] == rising[::-1]
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") is None
    assert opened.table("runs") == as_they_come


def test_rows_can_be_searched_and_filtered(opened: Opened) -> None:
    name = opened.shown("runs")
    total = len(opened.records)
    assert len(opened.table("runs")) == total
    opened.page.locator(f"{name} input[type=search]").fill("gpm")
    assert {row["method"] for row in opened.table("runs")} == {"gpm"}
    assert f"5 of {total} rows" in opened.page.locator(f"{name} .under").inner_text()
    opened.page.locator(f"{name} .tools label", has_text="order").locator("select").select_option(label="C")
    assert [row["order"] for row in opened.table("runs")] == ["C"]
    opened.page.locator(f"{name} input[type=search]").fill("")
    assert len(opened.table("runs")) == len(METHODS)
    opened.page.locator(f"{name} .tools label", has_text="order").locator("select").select_option(label="all")
    assert len(opened.table("runs")) == total


def test_tables_are_copied(opened: Opened) -> None:
    opened.page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    name = opened.shown("setups")
    opened.page.locator(f"{name} [data-copy=csv]").click()
    csv = opened.page.evaluate("window.copied")
    assert csv.splitlines()[0].startswith("benchmark,backbone,data %,tasks")
    assert "CIFAR100-Split,LeNet,5,10,20,10," in csv
    opened.page.locator(f"{name} [data-copy=latex]").click()
    latex = opened.page.evaluate("window.copied")
    assert "data \\%" in latex
    assert latex.count("\\\\\n") == len(opened.table("setups")) + 1


def test_texts_of_strangers_are_shown_and_not_run(opened: Opened) -> None:
    assert opened.page.evaluate("typeof window.hacked") == "undefined"
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("h1").inner_text() == HOSTILE
    assert any(row["method"] == HOSTILE for row in opened.table("runs"))
    name = opened.shown("accuracy-matrix")
    opened.page.locator(f"{name} input[type=search]").fill("onerror")
    opened.page.wait_for_selector(f'{name} .stage[aria-label*="onerror"]')
    assert opened.marks("accuracy-matrix") > 0
    label = opened.page.locator(f"{name} .stage {LABELS}", has_text="1 </script><img").first.text_content()
    assert str(label).startswith("1 </script><img src=x")


def test_the_pointer_shows_values_and_notes(opened: Opened) -> None:
    name = opened.shown("accuracy-over-stream")
    opened.marks("accuracy-over-stream")
    opened.page.locator(f"{name} .stage .role-mark.mark-symbol path").first.hover()
    box = opened.page.locator("#vg-tooltip-element.visible")
    box.wait_for()
    shown = box.inner_text()
    assert shown.split()[0] in {*METHODS, HOSTILE.split()[0]}
    for words in ("tasks learned", "average accuracy in %", "run"):
        assert words in shown
    opened.page.mouse.move(0, 0)


def test_a_wheel_zooms_with_a_key_and_a_double_click_resets(opened: Opened) -> None:
    name = opened.shown("accuracy-over-stream")
    opened.marks("accuracy-over-stream")
    texts = "[...document.querySelectorAll(name)].map(text => text.textContent).sort().join()"
    labels = f"{name} .stage {LABELS}"
    before = opened.page.evaluate(f"name => {texts}", labels)
    box = opened.page.locator(f"{name} .stage svg").bounding_box()
    assert box
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 3
    opened.page.mouse.move(*middle)
    opened.page.keyboard.down("Control")
    opened.page.mouse.wheel(0, -300)
    opened.page.keyboard.up("Control")
    opened.page.wait_for_function(f"([name, before]) => {texts} !== before", arg=[labels, before])
    opened.page.mouse.dblclick(*middle)
    opened.page.wait_for_function(f"([name, before]) => {texts} === before", arg=[labels, before])


def test_light_and_dark(opened: Opened) -> None:
    def seen() -> tuple[str, str]:
        paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        label = opened.page.locator(f'article[data-key="final-accuracy"] .stage {LABELS}').first
        return paper, label.evaluate("text => getComputedStyle(text).fill")

    opened.marks("final-accuracy")
    light = seen()
    opened.page.locator("#theme").click()
    dark = seen()
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] == "rgb(20, 23, 28)"
    assert light[1] != dark[1]
    opened.page.emulate_media(media="print")
    assert seen()[1] == light[1]
    opened.page.emulate_media(media="screen")
    assert seen() == dark
    opened.page.locator("#theme").click()
    assert seen() == light


def test_every_figure_is_printed(browser: Browser, opened: Opened) -> None:
    """Drawing takes no longer than the handler of the event: the browser would not wait for it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(opened.page.url)
    page.wait_for_selector("html[data-ready]", state="attached")
    drawn = page.evaluate(
        """() => {
            dispatchEvent(new Event("beforeprint"));
            return new Promise((done) => {
                const channel = new MessageChannel();  // the next thing that the browser does
                channel.port1.onmessage = () => done(document.querySelectorAll(".stage svg").length);
                channel.port2.postMessage(0);
            });
        }"""
    )
    assert drawn == len(figures(opened.sections))
    page.close()


def test_nothing_reaches_over_the_edge_of_a_phone(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 390, "height": 844})
    for figure in figures(opened.sections):
        assert opened.marks(figure.key) > 0
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
    wide = opened.page.evaluate(
        "[...document.querySelectorAll('.stage svg')].filter(s => s.getBoundingClientRect().right > 391).length"
    )
    assert wide == 0
    box = opened.page.locator(f"{opened.shown('runs')} .scroll")
    assert box.evaluate("box => { box.scrollLeft = 500; return box.scrollLeft; }") == 500
    first = box.locator("tbody td").first.bounding_box()
    assert first is not None
    assert 0 <= first["x"] < 40  # the first column stays
    opened.page.set_viewport_size({"width": 1280, "height": 900})


def test_no_network_and_no_errors(opened: Opened) -> None:
    """The last test of the file: it looks back at all that was done."""
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert opened.errors == []
