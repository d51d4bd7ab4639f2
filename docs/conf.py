"""The site: `make docs` builds it from the Markdown that is read in the repository, and from docstrings.

Links of pages are written for the repository. Those that lead out of this folder become links to a page of the site,
where there is one, or to the repository, whose address is `project.urls.Repository` in pyproject.toml.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT / "src")]

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY: str = PROJECT["urls"]["Repository"]

project = "halrp"
author = PROJECT["authors"][0]["name"]
copyright = f"2026, {author}"
names: dict[str, str] = {}
exec((ROOT / "src" / "halrp" / "_version.py").read_text("utf-8"), names)
release = version = names["__version__"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_site"]
myst_heading_anchors = 4
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
suppress_warnings = ["ref.python"]  # the type `bytes` of a signature is not one of our attributes of that name

html_theme = "furo"
html_title = f"halrp {release}"
html_static_path = ["_site"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sphinx = False
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}

WHOLE = {"architecture": "ARCHITECTURE.md", "changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
"""Pages of the site that are files of the repository's root, by their names."""
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?\))")


def whole_files_and_links(app: Any, name: str, source: list[str]) -> None:
    """Put the root's files into their pages, and let every link lead to where it leads in the repository."""
    file = ROOT / WHOLE[name] if name in WHOLE else DOCS / f"{name}.md"
    text = file.read_text("utf-8") if name in WHOLE else source[0]
    source[0] = LINK.sub(lambda match: match[1] + target(file.parent, match[2], DOCS / name) + match[3], text)


def target(folder: Path, path: str, page: Path) -> str:
    """Where a relative link of a file in a folder leads from a page of the site."""
    leads_to = (folder / path).resolve()
    inside = {str(ROOT / file): f"{name}.md" for name, file in WHOLE.items()}
    if str(leads_to) in inside:
        leads_to = DOCS / inside[str(leads_to)]
    if leads_to.is_relative_to(DOCS) and leads_to.suffix in (".md", ".svg", ".txt"):
        up = "../" * (len(page.relative_to(DOCS).parts) - 1)
        return f"{up}{leads_to.relative_to(DOCS)}"
    kind = "tree" if leads_to.is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{leads_to.relative_to(ROOT)}"


def as_written(app: Any, kind: str, name: str, value: object, options: Any, lines: list[str]) -> None:
    """Docstrings are text with code in backticks; nothing else in them is markup. A table has not that of its type."""
    if kind == "data" and lines and "\n".join(lines).strip() == (inspect.getdoc(type(value)) or "").strip():
        lines.clear()
    text = "`".join(escaped(part) for part in enumerate("\n".join(lines).split("`")))
    lines[:] = unindented(text.split("\n"))


def escaped(part: tuple[int, str]) -> str:
    """Escape what reStructuredText would take for markup, outside of code."""
    number, text = part
    return text if number % 2 else re.sub(r"([*|\\]|_(?!\w))", r"\\\1", text)


def unindented(lines: list[str]) -> list[str]:
    """Put an empty line after an indented block that text follows at once."""
    result: list[str] = []
    for line in lines:
        before = len(result[-1]) - len(result[-1].lstrip()) if result and result[-1].strip() else 0
        if line.strip() and len(line) - len(line.lstrip()) < before:
            result.append("")
        result.append(line)
    return result


def for_screen_readers(app: Any, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Give headings of chapters a level, and take the lines of a long signature for no list: rules of WCAG."""
    context["furo_navigation_tree"] = re.sub(
        'class="caption" role="heading"', r'\g<0> aria-level="2"', context.get("furo_navigation_tree", "")
    )
    if "body" in context:
        context["body"] = re.sub(r"<dl>(?=\s*<dd>)", '<dl role="presentation">', context["body"])


def write_llms(app: Any, error: Exception | None) -> None:
    """Write llms.txt: what each page is about, with links to the pages as text."""
    if error is None:
        from llms import text

        (Path(app.outdir) / "llms.txt").write_text(text(DOCS, WHOLE, PROJECT["description"]), "utf-8")


def setup(app: Any) -> None:
    """Connect the steps above."""
    app.connect("source-read", whole_files_and_links)
    app.connect("autodoc-process-docstring", as_written)
    app.connect("html-page-context", for_screen_readers, priority=900)  # after the theme, which makes the navigation
    app.connect("build-finished", write_llms)
