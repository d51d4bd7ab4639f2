"""The site: every page is listed, links lead somewhere, every public name is in the reference, and it builds."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.package import signatures
from tests.test_development import PROJECT

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.append(str(DOCS))
from llms import about, chapters  # type: ignore[import-not-found]  # noqa: E402

WHOLE = {"architecture": "ARCHITECTURE.md", "changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
INDEX = (DOCS / "index.md").read_text("utf-8")
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
LINK = re.compile(r"!?\[[^\]]*\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ +(.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def prose(text: str) -> str:
    """A page without its blocks of code and its code in a line."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL))


def test_every_page_stands_in_the_list_of_pages() -> None:
    listed = [name for names in chapters(INDEX).values() for name in names]
    assert sorted([*listed, "index"]) == [page.removesuffix(".md") for page in PAGES]


def test_every_page_says_what_it_is_about_in_a_sentence() -> None:
    for page in PAGES:
        file = ROOT / WHOLE[page.removesuffix(".md")] if page.removesuffix(".md") in WHOLE else DOCS / page
        title, sentence = about(file.read_text("utf-8"))
        assert title, page
        assert len(sentence.split()) > 3, page


@pytest.mark.parametrize(
    "page", [*(f"docs/{page}" for page in PAGES), "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_links_inside_the_repository_lead_somewhere(page: str) -> None:
    file = ROOT / page
    for path, anchor in LINK.findall(prose(file.read_text("utf-8"))):
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            whole = target.parent == DOCS and target.stem in WHOLE
            leads_to = ROOT / WHOLE[target.stem] if whole else target
            assert anchor in anchors(leads_to.read_text("utf-8")), f"{path}#{anchor}"


def test_every_public_name_is_in_the_reference() -> None:
    shown = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"\.\. auto\w+:: (\S+)", shown))
    for module in signatures.MODULES:
        for name in signatures.public_names(module):
            names = {f"{other}.{name}" for other in (module, "halrp")} | {f"halrp.method.{name}.fit"}
            parts = any(entry.startswith(f"halrp.method.{name}.") for entry in documented)
            assert name == "__version__" or names & documented or parts, f"{module}.{name}"


def test_addresses_outside_of_pages_are_those_of_the_setting() -> None:
    for page in ("README.md", *(f"docs/{page}" for page in PAGES)):
        assert PROJECT["urls"]["Repository"] not in (ROOT / page).read_text("utf-8"), f"{page}: write a relative link"


class _Page(HTMLParser):
    """The links and the anchors of a page of the site."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.anchors |= {value for key in ("id", "name") if (value := values.get(key))}
        self.links += [value for key in ("href", "src") if (value := values.get(key))]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_links_lead_somewhere(site: Path) -> None:
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert len(pages) >= len(PAGES)
    missing = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("data:"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            leads = not parts.fragment or target not in pages or parts.fragment in pages[target].anchors
            if not target.exists() or not leads:
                missing.append(f"{path.relative_to(site)}: {link}")
    assert missing == []
    listed = (site / "llms.txt").read_text("utf-8")
    assert all((site / link).exists() for link in re.findall(r"\]\(([^)]+)\)", listed))
    assert listed.count("- [") == len(PAGES) - 1
