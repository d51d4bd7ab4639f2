"""Walks the checklist of a release and publishes nothing: `make release`.

`python -m tests.package.release --skip tests` leaves the longest step out. Every step is run, also after one
that fails; what a person then types stands at the end.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import yaml
from packaging.version import Version

from halrp import __version__
from tests.package import signatures, wheels
from tests.package.programs import PROGRAMS

ROOT = Path(__file__).parent.parent.parent


class NotDoneError(Exception):
    """Why a step is not done, and what to do."""


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def clean_tree() -> str:
    """Nothing is uncommitted."""
    changed = _git("status", "--porcelain").splitlines()
    if changed:
        raise NotDoneError(f"{len(changed)} files are not committed, such as {changed[0][3:]}; commit or remove them")
    return _git("rev-parse", "--short", "HEAD").strip()


def new_version() -> str:
    """The version is newer than every tag."""
    tags = [Version(tag[1:]) for tag in _git("tag", "--list", "v*").split()]
    if tags and Version(__version__) <= max(tags):
        raise NotDoneError(f"version {__version__} is not newer than v{max(tags)}; change src/halrp/_version.py")
    return f"{__version__}, after {f'v{max(tags)}' if tags else 'no other'}"


def changelog() -> str:
    """The changelog has this version with a date, and nothing above it."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    heading = re.search(rf"^## \[{re.escape(__version__)}\] - (\d{{4}}-\d{{2}}-\d{{2}})$", text, re.MULTILINE)
    if heading is None:
        raise NotDoneError(f"CHANGELOG.md has no heading '## [{__version__}] - {date.today()}'")
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## [")[0].strip()
    if unreleased:
        count = len(re.findall(r"^- ", unreleased, re.MULTILINE))
        raise NotDoneError(f"{count} entries are under [Unreleased]; move them under a new version")
    return f"{__version__} of {heading[1]}"


def citation() -> str:
    """CITATION.cff has this version."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    if cited["version"] != __version__:
        raise NotDoneError(f"CITATION.cff has version {cited['version']}, the package {__version__}")
    return f"{cited['version']} of {cited['date-released']}"


def frozen_signatures() -> str:
    """Public signatures are those of signatures.txt."""
    if signatures.text() != signatures.FILE.read_text("utf-8"):
        raise NotDoneError("public signatures differ from tests/package/signatures.txt; see docs/compatibility.md")
    return f"{len(signatures.text().splitlines())} lines"


def _passed(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode:
        raise NotDoneError(f"{' '.join(command)} exited with {done.returncode}: {last}")
    return last


def documents() -> str:
    """Tables and figures of documents are what the records say."""
    _passed(sys.executable, "-m", "halrp.lab.report.documents", "--check")
    return "current"


def tests() -> str:
    """`make test` and `make slow` pass."""
    return f"{_passed('make', 'test')}; {_passed('make', 'slow')}"


def package() -> str:
    """The package builds, its description is valid, and every extra works in an empty environment."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = wheels.build(folder)
        files = sorted(map(str, (folder / "dist").iterdir()))
        _passed(sys.executable, "-m", "twine", "check", "--strict", *files)
        needed = wheels.needed_packages(folder)
        for extra in PROGRAMS:
            try:
                wheels.check(wheel, needed, extra, folder)
            except AssertionError as error:
                raise NotDoneError(f"halrp[{extra}]: {str(error).strip().splitlines()[-1]}") from error
    return f"{wheel.name}, {len(PROGRAMS) - 1} extras"


STEPS: dict[str, Callable[[], str]] = {
    "tree": clean_tree,
    "version": new_version,
    "changelog": changelog,
    "citation": citation,
    "signatures": frozen_signatures,
    "documents": documents,
    "tests": tests,
    "package": package,
}


def walk(skipped: list[str]) -> list[str]:
    """Run every step that is not skipped, print what came of it, and return the names of those that are not done."""
    failed = []
    for name, step in STEPS.items():
        if name in skipped:
            print(f"skipped     {name}: {step.__doc__}")
            continue
        try:
            print(f"done        {name}: {step()}", flush=True)
        except NotDoneError as problem:
            failed.append(name)
            print(f"NOT DONE    {name}: {problem}", flush=True)
    return failed


def main() -> None:
    """Walk the list, and exit with 1 if a step is not done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip", action="append", default=[], choices=list(STEPS), help="leave a step out")
    failed = walk(parser.parse_args().skip)
    if failed:
        sys.exit(f"not ready: {', '.join(failed)}")
    print(f"ready; to release: git tag -a v{__version__} && python -m build && python -m twine upload dist/*")


if __name__ == "__main__":
    main()
