"""Pruning applied to tasks: which deltas change, and which stay the objects they are."""

from __future__ import annotations

from dataclasses import replace

from halrp.method.prune import Keep, Prune
from halrp.model.delta import Delta


def compress(rule: Keep | Prune, tasks: dict[str, Delta], base_parameters: int) -> dict[str, Delta]:
    """Apply a method's pruning to the newest task, and to committed ones only if the rule says so.

    Growth is the paper's count of all that tasks added, factors counted densely, relative to the base.
    """
    if isinstance(rule, Keep):
        return tasks
    newest = next(reversed(tasks))
    later = {n: d for n, d in tasks.items() if not d.is_base}
    increment = sum(delta.paper_count(dense=True) for delta in later.values()) / base_parameters
    before = {n: {layer: (f.p, f.q) for layer, f in d.factors.items()} for n, d in later.items()}
    after = rule(before, increment, newest)
    changed = {
        n: {
            layer: pair
            for layer, pair in after[n].items()
            if any(a is not b for a, b in zip(pair, before[n][layer], strict=True))
        }
        for n in later
    }
    return tasks | {
        n: later[n].with_factors(
            {layer: replace(f, p=after[n][layer][0], q=after[n][layer][1]) for layer, f in later[n].factors.items()}
        )
        for n, layers in changed.items()
        if layers
    }
