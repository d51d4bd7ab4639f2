"""Published numbers that come with the package: task orders, the paper's tables, download addresses and checksums."""

import json
from functools import cache
from importlib import resources
from typing import Any


def load_reference(name: str) -> dict[str, Any]:
    """Read `<name>.json` of this folder, such as the paper's "task_orders"; every call returns a new copy."""
    content: dict[str, Any] = json.loads(_text(name))
    return content


@cache
def _text(name: str) -> str:
    return (resources.files(__name__) / f"{name}.json").read_text("utf-8")
