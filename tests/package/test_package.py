"""The package: what is in the wheel, what an index shows, which names are public, and what development installs."""

from __future__ import annotations

import re
import runpy
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from halrp import __version__
from halrp.cli.extras import PACKAGES
from tests.package import signatures, wheels
from tests.package.programs import PROGRAMS
from tests.test_development import PROJECT, ROOT, pinned

SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
EXTRAS = sorted(PROJECT["optional-dependencies"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with what is installed."""
    return wheels.build(tmp_path_factory.mktemp("package"), isolated=False)


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for path in (ROOT / "src" / "halrp").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert names == {str(path.relative_to(ROOT / "src")) for path in files}


def test_the_description_of_the_package_has_only_links_that_work_on_an_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("METADATA")]
        content = Parser().parsestr(archive.read(name).decode())
    assert content["Description-Content-Type"] == "text/markdown"
    assert content["Version"] == __version__
    assert content["Author"] == "The halrp authors"
    assert set(content.get_all("Provides-Extra", [])) == set(EXTRAS)
    shown = str(content.get_payload())
    links = LINK.findall(shown)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    address = PROJECT["urls"]["Repository"]
    for link in links:
        inside = re.fullmatch(rf"{re.escape(address)}/(?:raw|blob)/v{re.escape(__version__)}/([^#]+)(?:#.*)?", link)
        assert inside is None or (ROOT / inside[1]).exists(), link


def test_addresses_of_the_project_are_made_from_one_setting() -> None:
    assert all(url.startswith(PROJECT["urls"]["Repository"]) for url in PROJECT["urls"].values())
    assert SETUP["absolute"]("![a](b.svg) [c](d.md#e) [f](#g) [h](https://i)", "https://r", "v1") == (
        "![a](https://r/raw/v1/b.svg) [c](https://r/blob/v1/d.md#e) [f](#g) [h](https://i)"
    )


def test_every_extra_has_a_program_that_shows_it_working() -> None:
    assert sorted(filter(None, PROGRAMS)) == [extra for extra in EXTRAS if extra != "dev"]


def test_dev_has_every_other_extra() -> None:
    [others] = [r for r in map(Requirement, PROJECT["optional-dependencies"]["dev"]) if r.name == "halrp"]
    covered = set(others.extras)
    for extra in others.extras:
        for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
            covered |= requirement.extras if requirement.name == "halrp" else set()
    assert covered == set(EXTRAS) - {"dev"}


def test_what_a_command_may_lack_is_named_with_an_extra_that_brings_it() -> None:
    for package, extra in PACKAGES.values():
        assert package in _all_of(extra), (package, extra)


def _all_of(extra: str) -> set[str]:
    names = set()
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        names |= {n for e in requirement.extras for n in _all_of(e)} if requirement.name == "halrp" else set()
        names.add(requirement.name)
    return names


def test_public_names_and_signatures_are_the_frozen_ones() -> None:
    assert signatures.text() == signatures.FILE.read_text("utf-8"), (
        "the public interface changed; if that is meant, see docs/compatibility.md and run: "
        "python -m tests.package.signatures"
    )


def needed(requirements: list[str], extras: set[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """The names of installed packages that requirements ask for here, and those that these ask for."""
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        for extra in ("", *requirement.extras):
            key = requirement.name.lower().replace("_", "-"), extra
            if key not in seen:
                seen.add(key)
                yield key[0]
                below = metadata.requires(requirement.name) or []
                yield from needed(below, {extra} if extra else set(), seen)


def test_the_lock_of_the_development_environment_has_everything_that_it_needs() -> None:
    versions = pinned("constraints.txt")
    if metadata.version("sphinx") != versions["sphinx"]:
        pytest.skip("this environment does not have the versions of constraints.txt")
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [r for extra in project["optional-dependencies"].values() for r in extra if not r.startswith("halrp[")]
    names = set(needed([*project["dependencies"], *asked], set(), set()))
    known = {re.sub(r"[._-]+", "-", name) for name in versions}
    assert sorted(name for name in names if re.sub(r"[._-]+", "-", name) not in known) == []


@pytest.mark.slow
def test_every_extra_works_in_an_empty_environment(tmp_path: Path) -> None:
    built = wheels.build(tmp_path)
    needed_here = wheels.needed_packages(tmp_path)
    for extra in PROGRAMS:
        wheels.check(built, needed_here, extra, tmp_path)
