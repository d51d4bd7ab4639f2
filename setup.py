"""The package's description: README.md, with links that work outside of the repository.

All else is in pyproject.toml. The address that links are made from is `project.urls.Repository` there.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def repository() -> str:
    """The address of the repository."""
    address: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
    return address


def version() -> str:
    """The version of the package."""
    names: dict[str, str] = {}
    exec((ROOT / "src" / "halrp" / "_version.py").read_text("utf-8"), names)
    return names["__version__"]


def absolute(text: str, address: str, tag: str) -> str:
    """Markdown whose relative links lead into the repository at a tag, those of images to the files themselves."""
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({address}/{'raw' if m[1] else 'blob'}/{tag}/{m[3]})", text)


def description() -> str:
    """README.md, as a package index shows it."""
    return absolute((ROOT / "README.md").read_text("utf-8"), repository(), f"v{version()}")


if __name__ == "__main__":
    from setuptools import setup

    setup(long_description=description(), long_description_content_type="text/markdown")
