"""`python -m tests.judges`: one line for each comparison; the exit code is 1 if one of them fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module

from tests.judges.comparison import Comparison

JUDGES = ("avalanche", "continuum")


def main(names: list[str]) -> int:
    """Ask the judges that are named, or all."""
    failures = 0
    for name in names or JUDGES:
        compare: Callable[[], Iterator[Comparison]] = import_module(f"tests.judges.by_{name}").compare
        for comparison in compare():
            failures += not comparison.agrees
            print(f"{name:9} {comparison}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
