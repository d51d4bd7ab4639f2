"""Every public name and its signature, as text: `python -m tests.package.signatures` renews signatures.txt.

A change of that file is a change of the interface: it needs a line in CHANGELOG.md, and follows docs/compatibility.md.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "signatures.txt"
MODULES = (
    "halrp",
    "halrp.callbacks",
    "halrp.errors",
    "halrp.lab.backbones",
    "halrp.lab.methods",
    "halrp.lab.methods.check",
    "halrp.lab.metrics",
    "halrp.lab.streams",
    "halrp.mlflow",
    "halrp.objectives",
    "halrp.sklearn",
    "halrp.tools.inspect",
    "halrp.tools.onnx_family",
    "halrp.tools.verify",
)
"""The public modules. All else may change in any version."""
QUOTED = re.compile(r"(: |-> )'([^']*)'")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def public_names(module: str) -> list[str]:
    """The public names of a module: its `__all__`, or what it defines without an underscore."""
    content = import_module(module)
    if hasattr(content, "__all__"):
        return sorted(content.__all__)
    return sorted(
        name
        for name, value in vars(content).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module and hasattr(value, "__name__")
    )


def lines() -> Iterator[str]:
    """One line for each public name and for each public member of a public class."""
    for module in MODULES:
        content = import_module(module)
        for name in public_names(module):
            yield from _described(f"{module}.{name}", getattr(content, name))


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"class {name}({bases})"
        yield from (f"    {line}" for line in _members(value))
    elif inspect.ismodule(value):
        functions = {key: part for key, part in vars(value).items() if inspect.isfunction(part)}
        for key in sorted(functions):
            if not key.startswith("_") and functions[key].__module__ == value.__name__:
                yield f"{name}.{key}{_signature(functions[key])}"
    elif callable(value):
        yield f"{name}{_signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _members(kind: type) -> Iterator[str]:
    """Constructor, fields, methods and properties that the class itself or a class of this package defines."""
    if not issubclass(kind, BaseException):
        yield f"__init__{_signature(kind)}"
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for name in sorted(dir(kind)):
        home = next((c for c in kind.__mro__ if name in vars(c)), None)
        if name.startswith("_") or name in fields or home is None or not home.__module__.startswith("halrp"):
            continue
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property | cached_property):
            getter = value.func if isinstance(value, cached_property) else value.fget
            returns = getattr(getter, "__annotations__", {}).get("return", "")
            yield f"{name} -> {returns if isinstance(returns, str) else getattr(returns, '__name__', returns)}"
        elif isinstance(value, staticmethod | classmethod) or inspect.isroutine(value):
            yield f"{name}{_signature(getattr(kind, name))}"
        else:
            yield f"{name}: {type(value).__name__}"


def _signature(value: Any) -> str:
    try:
        return QUOTED.sub(r"\1\2", ADDRESS.sub("", str(inspect.signature(value))))
    except (TypeError, ValueError):
        return "(...)"


def text() -> str:
    """The file's content."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
    print(f"wrote {FILE}")
