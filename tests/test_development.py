"""What contributors and package indexes read: versions, bounds, workflow, hooks and citation agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from halrp import __version__

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def yaml_of(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def requirements() -> list[Requirement]:
    """Everything that the project asks for by itself."""
    extras = [text for extra in PROJECT["optional-dependencies"].values() for text in extra]
    return [Requirement(text) for text in (*PROJECT["dependencies"], *extras) if not text.startswith("halrp[")]


def pinned(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    return {line.split("==")[0].lower().replace("_", "-"): line.split("==")[1] for line in lines}


def test_the_changelog_has_this_version_after_what_is_unreleased() -> None:
    headings = re.findall(
        r"^## \[(.+?)\](?: - (\d{4}-\d{2}-\d{2}))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == __version__
    assert all(date for _, date in headings[1:])


def test_the_citation_has_this_version() -> None:
    citation = yaml_of("CITATION.cff")
    assert citation["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert len(citation["preferred-citation"]["authors"]) == 10


def test_lower_bounds_are_what_the_lowest_constraints_pin() -> None:
    bounds = {r.name.lower(): str(next(iter(r.specifier)).version) for r in requirements()}
    assert all(str(r.specifier).startswith(">=") for r in requirements())
    assert pinned("constraints-lowest.txt") == bounds


def test_every_requirement_is_pinned_for_development_within_its_range() -> None:
    versions = pinned("constraints.txt")
    for requirement in requirements():
        assert requirement.specifier.contains(versions[requirement.name.lower()]), requirement.name


def test_every_dependency_has_a_line_in_the_decisions() -> None:
    decisions = (ROOT / "docs" / "decisions.md").read_text()
    table = decisions.partition("## Dependencies")[2].partition("\n## ")[0].lower()
    missing = [r.name for r in requirements() if r.name.lower() not in table]
    assert missing == []


def test_the_workflow_tests_every_python_that_the_project_names() -> None:
    versions = yaml_of(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert versions == named
    assert PROJECT["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize("job", ["test", "pinned", "lowest", "documents", "site", "build"])
def test_jobs_run_commands_that_exist(job: str) -> None:
    steps = yaml_of(".github/workflows/ci.yml")["jobs"][job]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands
    for module in re.findall(r"python -m (halrp\S+)", " ".join(commands)):
        assert (ROOT / "src" / module.replace(".", "/") / "__main__.py").exists()
    for file in re.findall(r"-c (\S+\.txt)|--ignore=(\S+)", " ".join(commands)):
        assert (ROOT / (file[0] or file[1])).exists()


def test_hooks_are_local_and_use_the_development_environment() -> None:
    [repository] = yaml_of(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert all(hook["entry"].startswith(".venv/bin/") and hook["language"] == "system" for hook in repository["hooks"])


def test_templates_are_valid_forms() -> None:
    for name in ("bug_report", "feature_request"):
        form = yaml_of(f".github/ISSUE_TEMPLATE/{name}.yml")
        assert {"name", "description", "body"} <= form.keys()
        assert all(block["type"] in ("textarea", "input", "dropdown", "markdown") for block in form["body"])
