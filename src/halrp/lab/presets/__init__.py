"""Sweeps that come with the package, by name: the paper's settings of each benchmark, and studies of our own.

A preset is a TOML file in the format of `halrp.lab.run.sweep_file`. Adding one is adding a file.
"""

import tomllib
from importlib import resources

from halrp.lab.names import check_name


def names() -> list[str]:
    """The names of all presets, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def text(name: str) -> str:
    """The text of a preset's file, with its comments."""
    check_name("preset", name, names())
    return (resources.files(__name__) / f"{name}.toml").read_text("utf-8")


def about(name: str) -> str:
    """The description of a preset, in one line."""
    return str(tomllib.loads(text(name)).get("about", ""))
