"""The site's llms.txt: a list of its pages for programs that read text, with a sentence about each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

TREE = re.compile(r"^```\{toctree\}\n(?::.*\n)*?:caption: (.+)\n(?::.*\n)*((?:.+\n)*?)```$", re.MULTILINE)


def chapters(index: str) -> dict[str, list[str]]:
    """The names of pages by the titles of chapters, from the lists at the end of the start page."""
    return {title: [line.strip() for line in pages.split("\n") if line.strip()] for title, pages in TREE.findall(index)}


def about(page: str) -> tuple[str, str]:
    """The title of a page and its first sentence."""
    title = re.search(r"^# (.+)$", page, re.MULTILINE)
    rest = page[title.end() :] if title else page
    prose = [b for b in rest.split("\n\n") if re.match(r"\s*[\w*]", b) and not b.strip().startswith("```")]
    first = re.split(r"(?<=[.:])\s", " ".join(prose[0].split()) if prose else "")[0]
    return (title[1] if title else "").replace("`", ""), re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first)


def text(docs: Path, whole: Mapping[str, str], description: str) -> str:
    """The file's content."""
    lines = ["# halrp", "", f"> {description}"]
    for chapter, names in chapters((docs / "index.md").read_text("utf-8")).items():
        lines += ["", f"## {chapter}", ""]
        for name in names:
            file = docs.parent / whole[name] if name in whole else docs / f"{name}.md"
            title, sentence = about(file.read_text("utf-8"))
            lines.append(f"- [{title}](_sources/{name}.md.txt): {sentence}")
    return "\n".join(lines) + "\n"
