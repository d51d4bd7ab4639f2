"""What other processes did to a store between two of its generations: `Changes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Changes:
    """What other processes did to the tasks of a store, by name. A task that was renamed is removed and added."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.added or self.removed or self.replaced)

    @staticmethod
    def between(before: Mapping[str, object], after: Mapping[str, object]) -> Changes:
        """What changed from one set of tasks, by name, to another."""
        return Changes(
            added=tuple(name for name in after if name not in before),
            removed=tuple(name for name in before if name not in after),
            replaced=tuple(name for name, task in after.items() if name in before and before[name] != task),
        )
