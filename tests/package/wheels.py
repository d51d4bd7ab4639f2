"""Builds the wheel and installs it in empty environments, one for each extra: `python -m tests.package.wheels`.

An environment has what pip installs for that extra and nothing else, in the versions of constraints.txt. What
the library needs without any extra is large, so it is installed once, and the other environments read it from there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.package.programs import PROGRAMS

ROOT = Path(__file__).parent.parent.parent
SOURCES = ("src", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def build(folder: Path, isolated: bool = True) -> Path:
    """Build source distribution and wheel of a copy of the tree into `folder/dist`, and return the wheel."""
    copy = folder / "tree"
    copy.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(ROOT / name, copy / name)
    options = [] if isolated else ["--no-isolation"]
    run([sys.executable, "-m", "build", *options, "--outdir", str(folder / "dist"), str(copy)], folder)
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


def run(command: Sequence[str], folder: Path, **variables: str) -> str:
    """Run a command in a folder without this project's paths, and return what it printed; failing is an error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=folder, env=environment | variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def bin(self) -> Path:
        """The folder of its commands."""
        return self.folder / "bin"

    @classmethod
    def create(cls, folder: Path, beside: Environment | None = None) -> Environment:
        """Create an empty environment, or one that also reads the packages of another."""
        run([sys.executable, "-m", "venv", str(folder)], folder.parent)
        made = cls(folder)
        if beside is not None:
            made.read(beside)
        return made

    def read(self, other: Environment) -> None:
        """Have the packages of another environment, too."""
        (self._packages() / "beside.pth").write_text(f"{other._packages()}\n")

    def _packages(self) -> Path:
        [packages] = self.folder.glob("lib/python*/site-packages")
        return packages

    def install(self, *requirements: str) -> str:
        """Install packages, in the versions of constraints.txt."""
        constraints = str(ROOT / "constraints.txt")
        return run([str(self.bin / "pip"), "install", "--quiet", "-c", constraints, *requirements], self.folder)

    def run(self, *command: str, folder: Path) -> str:
        """Run one of its commands in a folder, with its commands on the path."""
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return run([str(self.bin / command[0]), *command[1:]], folder, PATH=path, VIRTUAL_ENV=str(self.folder))


def check(wheel: Path, needed: Environment, extra: str, folder: Path) -> str:
    """Install the wheel with an extra in an empty environment, run the extra's program there, and return its output."""
    work = folder / f"work-{extra or 'core'}"
    work.mkdir()
    environment = Environment.create(folder / f"env-{extra or 'core'}", beside=needed)
    environment.install(f"{wheel}[{extra}]" if extra else str(wheel))
    environment.run("pip", "check", folder=work)
    (work / "program.py").write_text(PROGRAMS[extra])
    return environment.run("python", "-W", "ignore", "program.py", folder=work)


def needed_packages(folder: Path) -> Environment:
    """An environment with what the library needs without any extra, and without the library."""
    made = Environment.create(folder / "env-needed")
    made.install(*tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"])
    return made


def main() -> None:
    """Check the core and every extra, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"of {', '.join(filter(None, PROGRAMS))}")
    chosen = parser.parse_args().extras
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build(folder)
        print(f"built {wheel.name}")
        needed = needed_packages(folder)
        for extra in ["", *(chosen or filter(None, PROGRAMS))]:
            check(wheel, needed, extra, folder)
            print(f"halrp[{extra}]: works" if extra else "halrp: works")


if __name__ == "__main__":
    main()
