"""Pruning against numpy's percentile, the growth bound in closed form, and what must not be touched."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from halrp import Delta, Flat, Halrp, Learner
from halrp.errors import SettingError, UnknownTaskError
from halrp.method.prune import Factors, Keep, Prune, percentile, prune, rate
from tests.helpers import FAST, net, tiny_task

Task = dict[str, tuple[Tensor, Tensor]]


def tasks(*names: str) -> dict[str, Task]:
    """Return tasks with two layers each; later tasks and second layers have larger entries."""
    generator = torch.Generator().manual_seed(0)

    def draw(rows: int, columns: int, size: float) -> Tensor:
        return size * torch.randn(rows, columns, generator=generator)

    return {
        name: {
            layer: (draw(20, 4, scale * (n + 1)), draw(4, 30, scale * (n + 1)))
            for layer, scale in (("conv", 0.01), ("fc", 1.0))
        }
        for n, name in enumerate(names)
    }


def entries(*pairs: tuple[Tensor, Tensor]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return torch.cat([factor.flatten() for pair in pairs for factor in pair]).numpy()


def share_of_zeros(*pairs: tuple[Tensor, Tensor]) -> float:
    return float((entries(*pairs) == 0).mean())


@pytest.mark.parametrize("bound", [True, False])
def test_rate_follows_the_growth_bound(bound: bool) -> None:
    assert rate(0.1, 0.2, bound) == (0 if bound else 0.8)
    assert rate(0.2, 0.2, bound) == (0 if bound else 0.8)
    assert rate(0.8, 0.2, bound) == pytest.approx(0.75 if bound else 0.8)


@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.77, 1.0])
@pytest.mark.parametrize("count", [1, 2, 101])
def test_percentile_is_numpys_with_linear_interpolation(share: float, count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64).abs()
    expected = np.percentile(values.numpy(), 100 * share)
    assert float(percentile(values, share)) == pytest.approx(float(expected), rel=1e-12)


def test_percentile_takes_pools_beyond_the_limit_of_torch_quantile() -> None:
    pool = torch.zeros(2**24 + 2)
    pool[-1] = 1.0
    assert float(percentile(pool, 1.0)) == 1


def test_absolute_zeroes_entries_up_to_and_including_the_value() -> None:
    p, q = torch.tensor([[0.5, -0.25], [0.125, -1.0]]), torch.tensor([[0.25, 0.0, -0.26]])
    rule = Prune("absolute", value=0.25, growth=0.2)
    got_p, got_q = prune({"a": {"fc": (p, q)}}, rule, 0.5, "a")["a"]["fc"]
    assert got_p.tolist() == [[0.5, 0], [0, -1]]
    torch.testing.assert_close(got_q, torch.tensor([[0, 0, -0.26]]))
    assert p[0, 1] == -0.25


@pytest.mark.parametrize("kind", ["absolute", "relative", "mixed"])
def test_a_bound_rule_does_nothing_at_all_below_the_growth_bound(kind: Any) -> None:
    stream = tasks("a", "b")
    pruned = prune(stream, Prune(kind, value=10.0, growth=0.2, committed=True), 0.199, "b")
    assert pruned == stream
    assert all(pruned[name] is stream[name] for name in stream)


def test_an_unbound_rule_prunes_whatever_the_growth() -> None:
    stream = tasks("a")
    pruned = prune(stream, Prune("relative", growth=0.3, bound=False), 0.0, "a")
    # 400 entries: the percentile falls between two of them, so the share is right to one entry.
    assert share_of_zeros(*pruned["a"].values()) == pytest.approx(0.7, abs=1 / 400)
    gone = prune(stream, Prune("absolute", value=100.0, bound=False), 0.0, "a")
    assert share_of_zeros(*gone["a"].values()) == 1


def test_mixed_takes_the_larger_threshold() -> None:
    stream = tasks("a")
    half = Prune("mixed", value=1e-5, growth=0.2)
    assert share_of_zeros(*prune(stream, half, 0.4, "a")["a"].values()) == pytest.approx(0.5, abs=1 / 400)
    high = Prune("mixed", value=1.0, growth=0.2)
    assert share_of_zeros(*prune(stream, high, 0.4, "a")["a"].values()) == pytest.approx(
        float((np.abs(entries(*stream["a"].values())) <= 1).mean())
    )


@pytest.mark.parametrize("increment", [0.25, 0.4, 1.0])
def test_scope_layer_gives_every_layer_the_same_share(increment: float) -> None:
    pruned = prune(tasks("a"), Prune("relative", scope="layer"), increment, "a")
    for pair in pruned["a"].values():
        assert share_of_zeros(pair) == pytest.approx(1 - 0.2 / increment, abs=1 / 200)


@pytest.mark.parametrize("increment", [0.25, 0.4, 1.0])
def test_scope_task_gives_every_task_the_same_share_and_small_layers_more(increment: float) -> None:
    pruned = prune(tasks("a", "b"), Prune("relative", committed=True), increment, "b")
    for factors in pruned.values():
        assert share_of_zeros(*factors.values()) == pytest.approx(1 - 0.2 / increment, abs=1 / 400)
        assert share_of_zeros(factors["conv"]) > share_of_zeros(factors["fc"])


def test_scope_task_agrees_with_numpy_entry_by_entry() -> None:
    stream = tasks("a")
    pruned = prune(stream, Prune("relative"), 0.6, "a")
    before = entries(*stream["a"].values())
    threshold = np.percentile(np.abs(before), 100 * (1 - 0.2 / 0.6))
    assert np.array_equal(entries(*pruned["a"].values()), np.where(np.abs(before) <= threshold, 0, before))


def test_scope_all_pools_every_task() -> None:
    stream = tasks("a", "b")
    pruned = prune(stream, Prune("relative", scope="all", committed=True), 0.4, "b")
    everything = [pair for factors in pruned.values() for pair in factors.values()]
    assert share_of_zeros(*everything) == pytest.approx(0.5, abs=1 / 800)
    assert share_of_zeros(*pruned["a"].values()) > share_of_zeros(*pruned["b"].values())
    newest_only = prune(stream, Prune("relative", scope="all"), 0.4, "b")
    assert newest_only["a"] is stream["a"]
    assert torch.equal(newest_only["b"]["fc"][0], pruned["b"]["fc"][0])


@pytest.mark.parametrize("scope", ["layer", "task", "all"])
@pytest.mark.parametrize("kind", ["absolute", "relative", "mixed"])
def test_committed_tasks_are_never_touched_by_default(kind: Any, scope: Any) -> None:
    stream = tasks("a", "b", "c")
    pruned = prune(stream, Prune(kind, value=0.1, scope=scope), 2.0, "b")
    assert pruned["a"] is stream["a"]
    assert pruned["c"] is stream["c"]
    assert share_of_zeros(*pruned["b"].values()) > 0
    everywhere = prune(stream, Prune(kind, value=0.1, scope=scope, committed=True), 2.0, "b")
    assert all(share_of_zeros(*factors.values()) > 0 for factors in everywhere.values())


@pytest.mark.parametrize("scope", ["layer", "task", "all"])
def test_inputs_stay_as_they_are(scope: Any) -> None:
    stream = tasks("a", "b")
    copies = {name: {layer: (p.clone(), q.clone()) for layer, (p, q) in task.items()} for name, task in stream.items()}
    prune(stream, Prune(scope=scope, committed=True), 2.0, "b")
    for name, task in stream.items():
        for layer, (p, q) in task.items():
            assert torch.equal(p, copies[name][layer][0])
            assert torch.equal(q, copies[name][layer][1])


def test_tensors_in_which_nothing_changes_are_the_same_objects() -> None:
    small, large = torch.full((2, 1), 1e-6), torch.ones(1, 2)
    stream = {"a": {"x": (small, large), "y": (large, large)}, "b": {"x": (large, large)}}
    pruned = prune(stream, Prune("absolute", committed=True), 1.0, "b")
    assert pruned["a"]["x"][0] is not small
    assert pruned["a"]["x"][1] is large
    assert pruned["b"] is stream["b"]
    again = prune(pruned, Prune("absolute", committed=True), 1.0, "b")
    assert again["a"] is pruned["a"]


def test_layers_of_rank_zero_are_no_obstacle() -> None:
    empty = (torch.zeros(4, 0), torch.zeros(0, 3))
    for scope in ("layer", "task", "all"):
        rule = Prune(scope=scope)
        assert prune({"a": {"fc": empty}}, rule, 1.0, "a")["a"]["fc"] == empty
        assert prune({"a": {}}, rule, 1.0, "a") == {"a": {}}


def test_entries_that_are_not_finite_are_not_hidden() -> None:
    p, q = torch.tensor([[float("nan")], [1.0]]), torch.ones(1, 2)
    got, _ = prune({"a": {"fc": (p, q)}}, Prune("absolute"), 1.0, "a")["a"]["fc"]
    assert bool(got[0].isnan())


def test_after_pruning_growth_exceeds_the_bound_only_by_what_cannot_be_pruned() -> None:
    """Check 8: three tasks of 400 entries over a base of 2000, pruned after each task as in the released code."""
    base, fixed, rule = 2000, 60, Prune(growth=0.2, committed=True)
    fresh = tasks("a", "b", "c")
    stream: dict[str, Factors] = {}
    for count, name in enumerate(fresh, start=1):
        stream[name] = fresh[name]
        increment = count * (fixed + 400) / base
        stream = prune(stream, rule, increment, name)
        share = rate(increment, 0.2, bound=True)
        for factors in stream.values():
            assert share_of_zeros(*factors.values()) == pytest.approx(share, abs=2 / 400)
        remaining = sum(np.count_nonzero(entries(*factors.values())) for factors in stream.values())
        # A percentile leaves at most one entry per task more than its share.
        assert (remaining + count * fixed) / base <= 0.2 + count * (fixed + 1) / base


@pytest.mark.parametrize(
    ("base", "fixed", "later", "growth"),
    [
        (2_995_620, 13_143, 1, 0.182),
        (2_995_620, 13_143, 9, 0.235),
        (2_993_115, 10_638, 1, 0.181),
        (2_993_115, 10_638, 4, 0.210),
        (2_993_115, 10_638, 19, 0.264),
    ],
)
def test_growth_of_lenet_is_the_published_one(base: int, fixed: int, later: int, growth: float) -> None:
    """All ranks at their cap: conv1 3, conv2 20, fc1 100, fc2 100 give the prunable entries of a task."""
    prunable = 3 * (20 + 3) + 20 * (50 + 20) + 100 * (800 + 3200) + 100 * (500 + 800)
    assert prunable == 531_469
    zeros = rate(later * (fixed + prunable) / base, 0.2, bound=True)
    assert round(later * (fixed + prunable * (1 - zeros)) / base, 3) == growth


def learned(*names: str) -> dict[str, Delta]:
    """A base's own task and deltas on it."""
    learner = Learner(net("mlp"), method=Halrp(allocate=Flat(2)), recipe=FAST)
    for seed, name in enumerate(("base", *names)):
        learner.learn(name, tiny_task("mlp", seed))
    return dict(learner.tasks)


def test_keep_returns_every_task_as_it_is() -> None:
    stream = learned("a", "b")
    result = Keep().compress(stream, "b", 1)
    assert list(result) == list(stream)
    assert all(result[name] is stream[name] for name in stream)


@pytest.mark.parametrize("committed", [True, False])
def test_tasks_are_compressed_by_the_growth_that_all_of_them_added(committed: bool) -> None:
    stream, rule = learned("a", "b"), Prune(kind="relative", growth=0.5, committed=committed)
    added = sum(delta.paper_count(dense=True) for delta in stream.values() if not delta.is_base)
    result = rule.compress(stream, "b", added)  # a growth of 1: half of the entries have to go
    factors = {n: {w: (f.p, f.q) for w, f in d.factors.items()} for n, d in stream.items() if not d.is_base}
    expected = prune(factors, rule, 1.0, "b")
    for name in factors:
        for weight, pair in expected[name].items():
            got = result[name].factors[weight]
            assert torch.equal(got.p, pair[0])
            assert torch.equal(got.q, pair[1])
    assert result["base"] is stream["base"]
    assert (result["a"] is stream["a"]) is not committed
    assert result["b"] is not stream["b"]
    assert rule.compress(stream, "b", 10 * added)["b"] is stream["b"]
    assert rule.changes_committed is committed
    assert not rule.independent


def test_bad_settings_are_named() -> None:
    wrong: Any = "sometimes"
    with pytest.raises(SettingError, match="kind is 'sometimes'"):
        Prune(kind=wrong)
    with pytest.raises(SettingError, match="scope is 'sometimes'"):
        Prune(scope=wrong)
    with pytest.raises(SettingError, match="value is -1"):
        Prune(value=-1)
    with pytest.raises(SettingError, match="growth is 0"):
        Prune(growth=0)
    with pytest.raises(SettingError, match="not bound"):
        Prune(growth=1.5, bound=False)
    with pytest.raises(SettingError, match="growth is inf"):
        rate(1.0, math.inf, bound=True)
    with pytest.raises(UnknownTaskError, match="'z'"):
        prune(tasks("a"), Prune(), 1.0, "z")


def test_a_rule_that_waits_prunes_its_fixed_share_only_once_growth_reaches_the_bound() -> None:
    pair = (torch.linspace(0.1, 1.0, 10).reshape(5, 2), torch.linspace(-1.0, -0.1, 10).reshape(2, 5))
    rule = Prune(kind="relative", growth=0.2, bound=False, wait=True)
    tasks = {"a": {"layer": pair}}
    assert prune(tasks, rule, increment=0.19, newest="a")["a"]["layer"][0] is pair[0]
    pruned = prune(tasks, rule, increment=0.2, newest="a")["a"]["layer"]
    assert sum(int((t == 0).sum()) for t in pruned) == 16  # 1 − γ = 80 % of 20 entries
