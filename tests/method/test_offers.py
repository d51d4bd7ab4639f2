"""Gradients of the parts of a delta against autograd through merged weights and the formulas of scores, in float64."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from halrp import Recipe
from halrp.errors import DivergedError
from halrp.method import passes
from halrp.method.offers import LEAST_ROWS, PARTS_OF_A_BATCH, VectorGradient, Wanted, collect, followed_by_norm
from halrp.method.weight_gradients import Summed
from halrp.model.call import Call
from halrp.model.factors import Factors
from halrp.objectives import Classification
from halrp.training.batches import Data, InMemory, Loaded, TaskData
from halrp.training.run import TaskRun
from tests.helpers import Pairs, drawn, net, tiny_task

KEY = (0, "base", "task")
BATCH = 8


def run_of(data: Data, batch: int = BATCH) -> TaskRun:
    return TaskRun("task", TaskData(data, None, 3), Recipe(epochs=2, batch=batch), KEY)


def in_memory(kind: str, examples: int = 32, **settings: Any) -> InMemory:
    x, y = tiny_task(kind, examples=examples)
    return InMemory(x if kind == "gru" else x.double(), y, **settings)


def read(data: Data, examples: int = 10**6, batch: int = BATCH) -> list[list[tuple[Any, Tensor]]]:
    """The batches of both halves of a pass."""
    halves = passes.halves(data, batch, examples, (*KEY, "gradients"), torch.device("cpu"))
    return [list(half) for half in halves]


def collected(data: Data) -> list[list[tuple[Any, Tensor]]]:
    """The batches of both halves as `collect` reads them."""
    return read(data, batch=max(LEAST_ROWS, BATCH // PARTS_OF_A_BATCH))


def factored_loss(module: nn.Module, factors: dict[str, Factors], x: Tensor, y: Tensor) -> Tensor:
    parameters = dict(module.named_parameters())
    merged = {name: part.merged(parameters[name].detach()) for name, part in factors.items()}
    return functional.cross_entropy(torch.func.functional_call(module, merged, (x,)), y)


def neutral(weight: Tensor) -> Factors:
    def ones(count: int) -> Tensor:
        return torch.ones(count, dtype=torch.float64, requires_grad=True)

    empty = torch.zeros(0, dtype=torch.float64)
    return Factors(
        ones(weight.shape[0]),
        ones(weight.shape[1]),
        empty.new_zeros(weight.shape[0], 0),
        empty.new_zeros(0, weight[0].numel()),
    )


KINDS = {
    "mlp": (["0.weight", "2.weight"], ["0.bias", "2.bias", "4.weight"]),
    "conv": (["features.0.weight", "conv.weight", "hidden.weight"], ["features.1.weight", "norm.bias", "hidden.bias"]),
    "grouped": (["stem.weight", "grouped.weight", "depthwise.weight"], ["norm.weight", "norm.bias", "fc.bias"]),
    "transformer": (["encoder.layers.0.linear1.weight"], ["encoder.layers.1.norm2.weight", "fc.weight"]),
    "gru": (["gru.weight_ih_l0", "embedding.weight"], ["gru.bias_hh_l0"]),
}


def expected(
    kind: str, batches: list[list[tuple[Any, Tensor]]]
) -> dict[str, tuple[list[list[Tensor]], list[list[int]]]]:
    """By part, autograd's gradient for every batch of both halves, and the sizes of the batches."""
    weights, vectors = KINDS[kind]
    module = net(kind).double().eval()
    parameters = dict(module.named_parameters())
    by_part: dict[str, tuple[list[list[Tensor]], list[list[int]]]] = {}
    for half, pairs in enumerate(batches):
        for x, y in pairs:
            factors = {name: neutral(parameters[name]) for name in weights}
            loss = factored_loss(module, factors, x, y)
            leaves = {f"r/{n}": f.r for n, f in factors.items()} | {f"s/{n}": f.s for n, f in factors.items()}
            leaves |= {f"plain/{n}": parameters[n] for n in vectors}
            for key, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                gradients, sizes = by_part.setdefault(key, ([[], []], [[], []]))
                gradients[half].append(gradient)
                sizes[half].append(len(y))
    return by_part


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_small_parts_are_those_of_autograds_gradients_through_merged_weights(kind: str) -> None:
    weights, vectors = KINDS[kind]
    data = in_memory(kind, examples=29)  # the last batch is smaller
    module = net(kind).double()
    result, missing = collect(
        module, Wanted({}, frozenset(weights), frozenset(weights), frozenset(vectors)), run_of(data), 10**6
    )
    assert not missing
    reference = expected(kind, collected(data))
    assert result.keys() == reference.keys()
    for key, (gradients, sizes) in reference.items():
        first, second = (
            torch.stack([g * n for g, n in zip(half, counts, strict=True)]).sum(0) / sum(counts)
            for half, counts in zip(gradients, sizes, strict=True)
        )
        squares = [
            n * g.square().mean()
            for half, counts in zip(gradients, sizes, strict=True)
            for g, n in zip(half, counts, strict=True)
        ]
        h = torch.stack(squares).mean()
        torch.testing.assert_close(result[key].curvature, h, rtol=1e-9, atol=1e-18)
        score = ((first * second).sum() / (4 * h)).clamp(min=0)
        torch.testing.assert_close(result[key].score, score, rtol=1e-7, atol=1e-14)
        assert result[key].rate == pytest.approx(float((first.numel() * h) ** -0.5), rel=1e-6)


def test_gradients_of_weights_are_added_batch_by_batch() -> None:
    data, added = in_memory("conv", examples=29), list[tuple[Tensor, int, float]]()

    class Recorded(Summed):
        def add(self, gradient: Tensor, rows: int, weight: Tensor) -> None:
            added.append((gradient.clone(), rows, float(weight)))
            super().add(gradient, rows, weight)

    module = net("conv").double()
    weight = module.get_parameter("conv.weight")
    collect(module, Wanted({"conv.weight": Recorded(weight.detach(), {"full": 2})}), run_of(data), 10**6)
    batches = [pair for half in collected(data) for pair in half]
    assert [rows for _, rows, _ in added] == [len(y) for _, y in batches] == [4] * 6 + [5]
    assert [weight for _, _, weight in added] == [4] * 6 + [5]
    for (gradient, _, _), (x, y) in zip(added, batches, strict=True):
        fresh = net("conv").double().eval()
        functional.cross_entropy(fresh(x), y).backward()
        torch.testing.assert_close(gradient, fresh.get_parameter("conv.weight").grad, rtol=1e-10, atol=1e-15)


def test_batches_count_by_the_weights_of_their_classes() -> None:
    objective = Classification(3, weights=(0.1, 1.0, 5.0))
    data = in_memory("mlp", objective=objective)
    module = net("mlp").double()
    result, _ = collect(module, Wanted({}, vectors=frozenset({"0.bias"})), run_of(data), 10**6)
    means = []
    for half in collected(data):
        x, y = torch.cat([x for x, _ in half]), torch.cat([y for _, y in half])
        fresh = net("mlp").double().eval()
        objective.loss(fresh(x), y).backward()
        means.append(fresh.get_parameter("0.bias").grad)
    product = (means[0] * means[1]).sum()  # type: ignore[operator]
    score = (product / (4 * result["plain/0.bias"].curvature)).clamp(min=0)
    torch.testing.assert_close(result["plain/0.bias"].score, score, rtol=1e-6, atol=1e-12)  # class weights are float32


def test_nothing_of_a_network_is_left_changed_but_what_trains() -> None:
    module, data = net("conv").double(), in_memory("conv")
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    collect(module, Wanted({}, frozenset({"conv.weight"}), vectors=frozenset({"norm.bias"})), run_of(data), 10**6)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())


class Idle(nn.Module):
    """A network with a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle, self.head = nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.used(x).relu())
        return outputs


def test_weights_that_no_gradient_reaches_are_named() -> None:
    names = frozenset({"used.weight", "idle.weight"})
    module = drawn(Idle).double()
    _, missing = collect(module, Wanted({}, names, names), run_of(in_memory("mlp")), 10**6)
    assert set(missing) == {"idle.weight"}


def test_gradients_that_are_not_finite_are_refused_by_name() -> None:
    module = net("mlp").double()
    with torch.no_grad():
        module.get_parameter("4.weight").fill_(torch.inf)
    with pytest.raises(DivergedError, match=r"task: the gradients of plain/0\.bias are not finite"):
        collect(module, Wanted({}, vectors=frozenset({"0.bias"})), run_of(in_memory("mlp")), 10**6)


# ---- scores ---------------------------------------------------------------------------------------------------------


def vector(first: Iterable[tuple[list[float], int]], second: Iterable[tuple[list[float], int]]) -> VectorGradient:
    result = VectorGradient(torch.zeros(2, dtype=torch.float64))
    for half in (first, second):
        for values, rows in half:
            result.add(torch.tensor(values, dtype=torch.float64), rows, torch.tensor(float(rows)))
        result.end_half()
    return result


def test_halves_that_agree_give_the_decrease_of_the_best_step() -> None:
    gradient = vector([([3.0, 1.0], 4)], [([3.0, 1.0], 4)])
    h = 4 * 5.0  # four examples, mean square 5
    assert float(gradient.curvature) == pytest.approx(h)
    # min over t of −t‖g‖² + h t²‖g‖²
    assert float(gradient.score) == pytest.approx(10 / (4 * h))


def test_halves_that_contradict_each_other_promise_nothing() -> None:
    assert float(vector([([3.0, 1.0], 4)], [([-3.0, 1.0], 4)]).score) == 0


def test_the_mean_of_a_half_counts_every_example_alike() -> None:
    split = vector([([1.0, 0.0], 6), ([4.0, 3.0], 3)], [([1.0, 1.0], 9)])
    joined = vector([([2.0, 1.0], 9)], [([1.0, 1.0], 9)])
    assert float(split.score * split.curvature) == pytest.approx(float(joined.score * joined.curvature))


def test_noise_is_worth_nothing_on_average() -> None:
    """The two halves are independent, so what is praised by chance is punished as often."""
    generator = torch.Generator().manual_seed(0)
    products = []
    for _ in range(400):
        noise = torch.randn(4, 50, generator=generator, dtype=torch.float64)
        products.append(float((noise[:2].mean(0) * noise[2:].mean(0)).sum()))
    error = torch.tensor(products).std() / 20
    assert abs(sum(products) / 400) < 3 * float(error)


def test_a_part_without_gradient_is_worth_nothing_and_has_a_finite_step() -> None:
    still = vector([([0.0, 0.0], 4)], [([0.0, 0.0], 4)])
    assert float(still.score) == 0
    assert torch.tensor(still.rate).isfinite()


# ---- halves ---------------------------------------------------------------------------------------------------------


def labels(batches: list[tuple[Any, Tensor]]) -> list[int]:
    return torch.cat([y for _, y in batches]).tolist() if batches else []


def numbered(examples: int) -> InMemory:
    return InMemory(torch.arange(examples, dtype=torch.float32)[:, None], torch.arange(examples))


def test_halves_are_all_batches_of_one_pass_each_once() -> None:
    first, second = read(numbered(40))
    assert [len(first), len(second)] == [2, 3]
    assert sorted(labels(first) + labels(second)) == list(range(40))
    assert labels(first) != list(range(16))  # drawn, so that classes that lie together are in both halves


def test_fewer_examples_are_batches_spread_over_the_pass() -> None:
    everything = [pair for half in read(numbered(160)) for pair in half]
    first, second = read(numbered(160), examples=40)
    assert [len(first), len(second)] == [2, 3]
    chosen = [labels([pair]) for pair in (*first, *second)]
    numbers = [[labels([pair]) for pair in everything].index(each) for each in chosen]
    assert numbers == [3, 7, 11, 15, 19]


@pytest.mark.parametrize(("total", "examples"), [(8, 100), (40, 3)])
def test_a_single_batch_is_both_halves(total: int, examples: int) -> None:
    first, second = read(numbered(total), examples=examples)
    assert labels(first) == labels(second)
    assert len(first) == len(second) == 1


def test_a_loader_is_read_once_and_draws_from_the_task_alone() -> None:
    passes_read: list[int] = []

    class Counted(Pairs):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            passes_read.append(index)
            return super().__getitem__(index)

    x = torch.arange(40, dtype=torch.float32)[:, None]
    loader = DataLoader(Counted(x, torch.arange(40)), batch_size=8, shuffle=True)
    data = Loaded(loader, torch.device("cpu"), Classification(40), (8,) * 5)
    before = torch.random.get_rng_state()
    once = read(data)
    assert sorted(passes_read) == list(range(40))
    assert [labels(half) for half in read(data)] == [labels(half) for half in once]
    assert torch.equal(torch.random.get_rng_state(), before)


# ---- layers before a norm -------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """A convolution whose output goes somewhere."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.conv, self.fc, self.where = nn.Conv2d(3, 4, 1), nn.Linear(4, 3), where
        self.norm = nn.BatchNorm2d(4)
        self.other: nn.Module = {
            "relu": nn.ReLU(),
            "relu in place": nn.ReLU(inplace=True),
            "no parameters": nn.BatchNorm2d(4, affine=False),
            "group norm": nn.GroupNorm(2, 4),
        }.get(where, nn.Conv2d(4, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        given = self.conv(x)
        if self.where in ("relu", "relu in place"):
            given = self.norm(self.other(given))
        elif self.where in ("no parameters", "group norm"):
            given = self.other(given)
        elif self.where == "function in place":
            given = self.norm(given.relu_())
        elif self.where == "function":
            given = self.norm(given.relu())
        elif self.where == "another layer too":
            given = self.norm(given) + self.other(given)
        elif self.where == "called again":
            given = self.norm(given) + self.conv(x + 1)
        else:
            given = self.norm(given)
        outputs: Tensor = self.fc(given.mean((2, 3)))
        return outputs


ELSEWHERE = ("relu", "relu in place", "no parameters", "group norm", "function", "function in place")


@pytest.mark.parametrize("where", [*ELSEWHERE, "another layer too", "called again"])
def test_a_layer_whose_outputs_do_not_all_go_into_a_batch_norm_alone_is_not_found(where: str) -> None:
    assert "conv" not in followed_by_norm(drawn(lambda: Layers(where)), Call(), tiny_task("conv")[0])


def test_a_layer_whose_output_goes_into_a_batch_norm_is_found() -> None:
    assert followed_by_norm(drawn(lambda: Layers("norm")), Call(), tiny_task("conv")[0]) == {"conv"}


def test_convolutions_of_a_common_network_are_found() -> None:
    x, _ = tiny_task("conv")
    module = net("conv")
    assert followed_by_norm(module, Call(), x) == {"features.0", "conv"}
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_the_search_for_norms_changes_no_statistics() -> None:
    x, _ = tiny_task("conv")
    module = net("conv").train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    followed_by_norm(module, Call(), x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
