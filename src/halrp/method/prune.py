"""Compression after fine-tuning: pruning by the paper's three thresholds and its growth bound, or none.

Only entries of the factors p and q are pruned; an entry is zeroed when |entry| ≤ threshold. The threshold is absolute,
relative (a percentile of the entries' magnitudes, chosen so that the stream's growth stays near a bound γ), or mixed,
the larger of the two. Growth is the paper's count of all that tasks added, factors counted densely, relative to the
base.

In the paper every later task is pruned again whenever a new one is added, so old tasks change. Here that is an option;
by default a committed task never changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from halrp.errors import SettingError, UnknownTaskError
from halrp.model.delta import Delta

Factors = Mapping[str, tuple[Tensor, Tensor]]
"""Factors (p, q) of one task, by layer."""

KINDS = ("absolute", "relative", "mixed")
SCOPES = ("layer", "task", "all")


@dataclass(frozen=True)
class Keep:
    """Choose not to prune."""

    independent: ClassVar[bool] = True
    changes_committed: ClassVar[bool] = False

    def compress(self, tasks: Mapping[str, Delta], newest: str, base_parameters: int) -> Mapping[str, Delta]:
        """Return the tasks as they are."""
        return tasks


@dataclass(frozen=True)
class Prune:
    """Choose how factors are pruned, `prune`. The released code's published runs are `Prune(committed=True)`.

    With `committed=True` every later task is pruned again when a new one is committed, as in the paper and the released
    code. That changes the logits of old tasks: it **breaks zero forgetting**, and is the only thing that does.
    """

    kind: Literal["absolute", "relative", "mixed"] = "mixed"
    """What the threshold is: `value`, a percentile, or the larger of the two."""
    value: float = 1e-5
    """The absolute threshold."""
    growth: float = 0.2
    """The bound γ on growth, relative to the base."""
    scope: Literal["layer", "task", "all"] = "task"
    """Over which entries a percentile is taken: one layer of one task, one task, or all tasks together."""
    bound: bool = True
    """Whether to prune only as much as γ asks for (`rate`), and not at all below it."""
    wait: bool = False
    """Whether nothing is pruned before growth reaches γ, also when not `bound`: the condition in Algorithm 1."""
    committed: bool = False
    """Whether committed tasks are pruned again; False never changes any task but the newest."""
    independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(f"Prune.kind is {self.kind!r}; choose one of {', '.join(map(repr, KINDS))}")
        if self.scope not in SCOPES:
            raise SettingError(f"Prune.scope is {self.scope!r}; choose one of {', '.join(map(repr, SCOPES))}")
        if not (math.isfinite(self.value) and self.value >= 0):
            raise SettingError(f"Prune.value is {self.value}; give a finite threshold of at least 0")
        _check_growth(self.growth, self.bound)

    @property
    def changes_committed(self) -> bool:
        """Whether committed tasks are pruned again."""
        return self.committed

    def compress(self, tasks: Mapping[str, Delta], newest: str, base_parameters: int) -> dict[str, Delta]:
        """Prune the newest task, and the committed ones if asked for; tasks that do not change are the same objects."""
        later = {n: d for n, d in tasks.items() if not d.is_base}
        increment = sum(delta.paper_count(dense=True) for delta in later.values()) / base_parameters
        before = {n: {layer: (f.p, f.q) for layer, f in d.factors.items()} for n, d in later.items()}
        after = prune(before, self, increment, newest)
        return dict(tasks) | {n: _with_factors(later[n], after[n]) for n in later if after[n] is not before[n]}


def rate(increment: float, growth: float, bound: bool) -> float:
    """Return the share of factor entries to zero so that growth `increment` falls to about the bound `growth`.

    Bound: 0 if increment < γ, else 1 − γ/increment. Not bound: 1 − γ, whatever the increment.
    """
    _check_growth(growth, bound)
    if not bound:
        return 1 - growth
    return 0.0 if increment < growth else 1 - growth / increment


def prune(tasks: Mapping[str, Factors], rule: Prune, increment: float, newest: str) -> dict[str, Factors]:
    """Zero the entries of the factors that fall under the rule's threshold.

    `tasks` maps task → layer → (p, q); `increment` is the growth of the stream before pruning. The result has the same
    structure. Inputs are not modified, and a task or tensor in which nothing changes is returned as the same object.

    If the rule is bound or waits, and increment < γ, nothing is pruned, not even by an absolute threshold. The scope
    is over which entries a percentile is taken; `committed` decides which tasks may change. With scope "all" and
    committed tasks left alone, their entries still count in the pool.
    """
    if newest not in tasks:
        raise UnknownTaskError(f"newest task is {newest!r}; it must be one of {', '.join(map(repr, tasks))}")
    if (rule.bound or rule.wait) and increment < rule.growth:
        return dict(tasks)
    share = rate(increment, rule.growth, rule.bound)
    changing = [name for name in tasks if rule.committed or name == newest]
    result = dict(tasks)
    if rule.scope == "all":
        threshold = _threshold([pair for factors in tasks.values() for pair in factors.values()], rule, share)
        result.update({name: _cut(tasks[name], dict.fromkeys(tasks[name], threshold)) for name in changing})
    elif rule.scope == "task":
        for name in changing:
            threshold = _threshold(list(tasks[name].values()), rule, share)
            result[name] = _cut(tasks[name], dict.fromkeys(tasks[name], threshold))
    else:
        for name in changing:
            thresholds = {layer: _threshold([pair], rule, share) for layer, pair in tasks[name].items()}
            result[name] = _cut(tasks[name], thresholds)
    return result


def percentile(magnitudes: Tensor, share: float) -> Tensor:
    """Return the value below which a share of the magnitudes lies, interpolated linearly (0-dim).

    It sorts, because `torch.quantile` refuses pools of more than 16 million entries.
    """
    ordered = magnitudes.flatten().sort().values
    position = share * (len(ordered) - 1)
    low = min(int(position), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], position - low)


def _threshold(pool: list[tuple[Tensor, Tensor]], rule: Prune, share: float) -> Tensor | float:
    """Return the rule's threshold for a pool of factors, zeros included."""
    if rule.kind == "absolute" or not any(factor.numel() for pair in pool for factor in pair):
        return rule.value
    relative = percentile(torch.cat([factor.abs().flatten() for pair in pool for factor in pair]), share)
    return relative if rule.kind == "relative" else relative.clamp(min=rule.value)


def _cut(factors: Factors, thresholds: Mapping[str, Tensor | float]) -> Factors:
    """Zero the entries of one task's factors up to the threshold of their layer."""
    pruned = {layer: (_zero(p, thresholds[layer]), _zero(q, thresholds[layer])) for layer, (p, q) in factors.items()}
    same = all(pruned[layer][0] is p and pruned[layer][1] is q for layer, (p, q) in factors.items())
    return factors if same else pruned


def _zero(factor: Tensor, threshold: Tensor | float) -> Tensor:
    pruned = torch.where(factor.abs() <= threshold, 0, factor)
    return factor if torch.equal(pruned, factor) else pruned


def _with_factors(delta: Delta, factors: Factors) -> Delta:
    return delta.with_factors({n: replace(f, p=factors[n][0], q=factors[n][1]) for n, f in delta.factors.items()})


def _check_growth(growth: float, bound: bool) -> None:
    if not (math.isfinite(growth) and growth > 0):
        raise SettingError(f"growth is {growth}; give a finite growth bound above 0, such as 0.2")
    if not bound and growth > 1:
        raise SettingError(f"growth is {growth} and not bound; a share of 1 - growth needs growth of at most 1")
