"""Importance against autograd by hand, an independent K-FAC, dense Fishers and an autograd Hessian, in float64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

from halrp.method import allocate
from halrp.method.importance import Curvature, GradientNorm, MeanSquare, curvature
from halrp.model.layers.registry import family_for
from halrp.training.batches import InMemory
from tests.helpers import drawn, net, tiny_task

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-14}
"""Sums of at most a few thousand products of order one, in float64."""


def double(kind: str, examples: int = 13) -> tuple[nn.Module, InMemory]:
    """A net in float64 and evaluation mode, and a task that its batches do not divide."""
    x, y = tiny_task(kind, examples=examples)
    return net(kind).double().eval(), InMemory(x.double() if x.is_floating_point() else x, y)


def matrices(module: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in module.named_parameters() if p.dim() >= 2}


def gradient(module: nn.Module, weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.autograd.grad(F.cross_entropy(module(x), y), weight)[0]


@pytest.mark.parametrize("kind", ["conv", "mlp", "transformer", "gru"])
def test_mean_square_weighs_each_batchs_mean_squared_gradient_by_its_size(kind: str) -> None:
    module, data = double(kind)
    weights = matrices(module)
    measured = MeanSquare()(module, weights, data, 5)
    for name, weight in weights.items():
        batches = [(data.x[i : i + 5], data.y[i : i + 5]) for i in (0, 5, 10)]
        terms = [len(y) * gradient(module, weight, x, y).square().mean() for x, y in batches]
        torch.testing.assert_close(measured[name], sum(terms) / 3, **EXACT)


class Singles(InMemory):
    """Data in batches of one, the last one too."""

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.x.split(1), self.y.split(1), strict=True)


def test_mean_square_over_batches_of_one_is_the_mean_diagonal_of_the_empirical_fisher() -> None:
    module, data = double("mlp", 8)
    weights = matrices(module)
    measured = MeanSquare()(module, weights, Singles(data.x, data.y), 1)
    for name, weight in weights.items():
        rows = [gradient(module, weight, x, y).flatten() for x, y in zip(data.x.split(1), data.y.split(1), strict=True)]
        fisher = torch.stack([torch.outer(row, row) for row in rows]).mean(0)
        torch.testing.assert_close(measured[name], fisher.diagonal().mean(), **EXACT)


@pytest.mark.parametrize("batch", [4, 5, 100])
def test_gradient_norm_is_that_of_the_whole_data_whatever_the_batches(batch: int) -> None:
    module, data = double("conv")
    weights = matrices(module)
    measured = GradientNorm()(module, weights, data, batch)
    for name, weight in weights.items():
        expected = gradient(module, weight, data.x, data.y).square().sum()
        torch.testing.assert_close(measured[name], expected, rtol=1e-11, atol=1e-14)


def test_a_weight_that_the_output_does_not_use_has_no_importance() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(10, 3), nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Any:
            return self.used(x)

    module = drawn(Idle).double()
    data = InMemory(tiny_task("mlp")[0].double(), tiny_task("mlp")[1])
    weights = matrices(module)
    for rule in (MeanSquare(), GradientNorm()):
        measured = rule(module, weights, data, 8)
        assert measured["idle.weight"] == 0
        assert measured["used.weight"] > 0
    assert set(curvature(module, weights, data, 8)) == {"used.weight"}


def test_importance_changes_nothing_in_the_module() -> None:
    module, data = double("conv")
    before = {n: t.clone() for n, t in module.state_dict().items()}
    state = torch.get_rng_state()
    weights = matrices(module)
    MeanSquare()(module, weights, data, 5)
    curvature(module, weights, data, 5)
    assert all(p.grad is None for p in module.parameters())
    assert all(not layer._forward_hooks for layer in module.modules())
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    assert not module.training
    assert torch.equal(torch.get_rng_state(), state)


def test_hooks_are_gone_when_the_data_fail() -> None:
    module, data = double("conv")
    with pytest.raises(IndexError):
        curvature(module, matrices(module), InMemory(data.x, data.y + 100), 5)
    assert all(not layer._forward_hooks for layer in module.modules())


@pytest.mark.parametrize("rule", [MeanSquare(), GradientNorm()])
def test_ranks_do_not_depend_on_the_scale_of_the_gradients(rule: MeanSquare | GradientNorm) -> None:
    """Scaling a layer's whole importance scales all of its pooled scores, which leaves every share as it was."""
    module, data = double("mlp")
    weights = matrices(module)
    measured = rule(module, weights, data, 5)
    spectra = {n: torch.linspace(3, 1, 5, dtype=torch.float64).exp() for n in weights}
    ranks = [
        allocate.by_loss_rate({n: scale * measured[n] * spectra[n].square() for n in weights}, 0.9)
        for scale in (1e-9, 1.0, 1e9)
    ]
    assert ranks[0] == ranks[1] == ranks[2]
    assert 0 < sum(ranks[0].values()) < 15


class Shared(nn.Module):
    """A dilated and a strided convolution, a linear layer on every position and one on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(3, 4, 3, padding=2, dilation=2)
        self.act = nn.ReLU(inplace=True)
        self.strided = nn.Conv2d(4, 5, (2, 3), stride=2, padding=(0, 1), bias=False)
        self.position = nn.Linear(5, 6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.strided(self.act(self.wide(x)))
        return self.fc(self.position(x.flatten(2).mT).tanh().mean(1))


@pytest.mark.parametrize("batch", [4, 13])
def test_kronecker_factors_are_those_of_an_independent_library(batch: int) -> None:
    module = drawn(Shared).double().eval()
    x, y = tiny_task("conv", examples=14)
    data = InMemory(x.double(), y)
    weights = matrices(module)
    measured = curvature(module, weights, data, batch)
    with warnings.catch_warnings():  # the library's own use of deprecated functions
        warnings.simplefilter("ignore")
        from curvlinops import KFACLinearOperator

        operator = KFACLinearOperator(
            module,
            nn.CrossEntropyLoss(),
            list(weights.values()),
            list(data.batches(batch, None)),
            fisher_type="empirical",
            kfac_approx="expand",
            check_deterministic=False,
        )
        operator.compute_kronecker_factors()
    positions = {"wide": 8 * 8, "strided": 4 * 4, "position": 4 * 4, "fc": 1}
    assert set(measured) == {f"{layer}.weight" for layer in positions}
    for layer, count in positions.items():
        A, G = measured[f"{layer}.weight"]
        # The library takes the mean over positions of a aᵀ and the sum over positions of g gᵀ; here it is the
        # other way round, so that A of a kernel-mean error is a plain sum. The product is the same.
        torch.testing.assert_close(A, operator._input_covariances[layer] * count, **EXACT)
        torch.testing.assert_close(G, operator._gradient_covariances[layer] / count, **EXACT)


def test_one_position_and_one_example_give_the_empirical_fisher_exactly() -> None:
    module, data = double("mlp", 1)
    weights = matrices(module)
    for name, (A, G) in curvature(module, weights, data, 1).items():
        row = gradient(module, weights[name], data.x, data.y).flatten()
        torch.testing.assert_close(torch.kron(G, A), torch.outer(row, row), **EXACT)
        error = torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        predicted = torch.trace(G @ error @ A @ error.T)
        torch.testing.assert_close(predicted, (row @ error.flatten()).square(), **EXACT)


def test_factors_of_independent_inputs_and_gradients_give_the_dense_fisher() -> None:
    """With inputs that are the same for every example, a and g are independent and A ⊗ G is exact."""
    module = drawn(lambda: nn.Sequential(nn.Linear(4, 3))).double()
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).expand(6, 4)
    data = InMemory(x, torch.arange(6) % 3)
    weights = matrices(module)
    (A, G) = curvature(module, weights, data, 4)["0.weight"]
    rows = [gradient(module, weights["0.weight"], x[i : i + 1], data.y[i : i + 1]).flatten() for i in range(6)]
    fisher = torch.stack([torch.outer(row, row) for row in rows]).mean(0)
    torch.testing.assert_close(torch.kron(G, A), fisher, **EXACT)


class Rearranged(nn.Module):
    """One linear layer on every position of a sequence, whose axes come to it in different arrangements."""

    def __init__(self, arrangement: str) -> None:
        super().__init__()
        self.arrangement = arrangement
        self.position, self.fc = nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        if self.arrangement == "positions first":
            x = self.position(x.transpose(0, 1)).transpose(0, 1)
        elif self.arrangement == "windows in the batch":
            x = self.position(x.reshape(-1, 2, 8)).reshape(len(x), -1, 5)
        elif self.arrangement == "several calls":
            x = torch.stack([self.position(input=part) for part in x.unbind(1)], 1)
        elif self.arrangement == "and a call without gradient":
            with torch.no_grad():
                self.position(x)
            x = self.position(x)
        else:
            x = self.position(x)
        return self.fc(x.tanh().mean(1))


@pytest.mark.parametrize(
    "arrangement", ["positions first", "windows in the batch", "several calls", "and a call without gradient"]
)
def test_curvature_does_not_depend_on_how_examples_and_positions_are_arranged(arrangement: str) -> None:
    x, y = tiny_task("transformer", examples=9)
    data = InMemory(x.double(), y)

    def factors(order: str) -> Curvature:
        module = drawn(lambda: Rearranged(order)).double()
        return curvature(module, matrices(module), data, 4)["position.weight"]

    expected, measured = factors("plain"), factors(arrangement)
    torch.testing.assert_close(measured.A, expected.A, **EXACT)
    torch.testing.assert_close(measured.G, expected.G, **EXACT)


def test_layers_that_share_a_weight_sum_over_both() -> None:
    class Twice(nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.first, self.second, self.fc = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 3)
            self.tied = tied
            if tied:
                self.second.weight, self.second.bias = self.first.weight, self.first.bias

        def forward(self, x: Tensor) -> Any:
            return self.fc((self.second if self.tied else self.first)(self.first(x).tanh()))

    data = InMemory(tiny_task("mlp")[0].double(), tiny_task("mlp")[1])
    tied, called_twice = drawn(lambda: Twice(True)).double(), drawn(lambda: Twice(False)).double()
    called_twice.load_state_dict(tied.state_dict())
    expected = curvature(called_twice, {"first.weight": called_twice.get_parameter("first.weight")}, data, 8)
    measured = curvature(tied, {"first.weight": tied.get_parameter("first.weight")}, data, 8)
    torch.testing.assert_close(measured["first.weight"].A, expected["first.weight"].A, **EXACT)
    torch.testing.assert_close(measured["first.weight"].G, expected["first.weight"].G, **EXACT)


def test_a_linear_weight_tied_to_an_embedding_has_no_kronecker_factors() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.embedding, self.fc = nn.Linear(8, 20), nn.Embedding(20, 8), nn.Linear(20, 3)
            self.embedding.weight = self.linear.weight

        def forward(self, x: Tensor) -> Any:
            return self.fc(self.linear(self.embedding(x).mean(1)))

    module = drawn(Tied)
    assert (
        curvature(module, {"linear.weight": module.get_parameter("linear.weight")}, InMemory(*tiny_task("gru")), 8)
        == {}
    )


@pytest.mark.parametrize(("kind", "expected"), [("grouped", {"stem.weight", "fc.weight"}), ("gru", {"fc.weight"})])
def test_weights_without_kronecker_factors_are_left_out(kind: str, expected: set[str]) -> None:
    module, data = double(kind)
    assert set(curvature(module, matrices(module), data, 5)) == expected


PATCHED: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(12, 5, bias=False),
    "plain": lambda: nn.Conv2d(3, 4, 3, bias=False),
    "strided and padded": lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2), bias=False),
    "dilated": lambda: nn.Conv2d(3, 4, 3, padding=2, dilation=(2, 3), bias=False),
    "same": lambda: nn.Conv2d(3, 4, (4, 3), padding="same", dilation=(1, 2), bias=False),
    "valid": lambda: nn.Conv2d(3, 4, 3, padding="valid", bias=False),
    "circular": lambda: nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular", bias=False),
    "reflect same": lambda: nn.Conv2d(3, 4, (2, 3), padding="same", padding_mode="reflect", bias=False),
    "pointwise": lambda: nn.Conv2d(3, 4, 1, stride=2, bias=False),
    "one-dimensional": lambda: nn.Conv1d(3, 4, 5, stride=2, padding=3, dilation=2, bias=False),
    "one-dimensional same": lambda: nn.Conv1d(3, 4, 4, padding="same", bias=False),
    "one-dimensional replicated": lambda: nn.Conv1d(3, 4, 3, padding=1, padding_mode="replicate", bias=False),
}


@pytest.mark.parametrize("name", PATCHED)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
def test_patches_times_the_weight_are_the_layers_output(name: str, batched: bool) -> None:
    layer = drawn(PATCHED[name]).double()
    shape = {nn.Linear: (2, 7, 12), nn.Conv1d: (2, 3, 12), nn.Conv2d: (2, 3, 9, 10)}[type(layer)]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x if batched else x[0]
    weight = layer.get_parameter("weight")
    output = layer(x)
    channel = -1 if isinstance(layer, nn.Linear) else 1 - weight.dim()
    rows = output.movedim(channel, -1).reshape(-1, weight.shape[0])
    torch.testing.assert_close(family_for(layer).input_rows(layer, x) @ weight.flatten(1).T, rows, **EXACT)


def test_kernel_mean_factors_predict_what_the_full_form_predicts_of_the_repeated_error() -> None:
    module = drawn(Shared).double().eval()
    x, y = tiny_task("conv", examples=14)
    measured = curvature(module, matrices(module), InMemory(x.double(), y), 7)
    for layer in ("wide", "strided"):
        full = measured[f"{layer}.weight"]
        J, I, *kernel = module.get_parameter(f"{layer}.weight").shape  # noqa: E741
        mean = full.for_view("mean", I)
        assert mean.A.shape == (I, I)
        B = torch.randn(J, I, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        repeated = B.repeat_interleave(math.prod(kernel), dim=1)
        expected = torch.trace(full.G @ repeated @ full.A @ repeated.T)
        torch.testing.assert_close(torch.trace(mean.G @ B @ mean.A @ B.T), expected, **EXACT)
        assert full.for_view("full", I * math.prod(kernel)) is full
    assert measured["fc.weight"].for_view("mean", 6) is measured["fc.weight"]


class _Optimum:
    """A softmax regression at the optimum of data drawn from itself, where Fisher and Hessian agree."""

    def __init__(self, classes: int = 3, inputs: int = 4, examples: int = 1200) -> None:
        generator = torch.Generator().manual_seed(0)
        truth = torch.randn(classes, inputs, generator=generator, dtype=torch.float64)
        x = torch.randn(examples, inputs, generator=generator, dtype=torch.float64)
        y = torch.multinomial((x @ truth.T).softmax(1), 1, generator=generator).squeeze(1)
        self.data = InMemory(x, y)
        flat = truth.flatten()
        for _ in range(8):  # Newton's method; adding a vector to all rows changes no probability, so H is singular
            step = torch.linalg.pinv(hessian(self.loss, flat), rtol=1e-10) @ jacobian(self.loss, flat)
            flat = flat - step
        self.flat = flat
        self.module = nn.Sequential(nn.Linear(inputs, classes, bias=False, dtype=torch.float64))
        self.weight = self.module.get_parameter("0.weight")
        self.weight.data.copy_(flat.view_as(truth))

    def loss(self, flat: Tensor) -> Tensor:
        return F.cross_entropy(self.data.x @ flat.view(-1, self.data.x.shape[1]).T, self.data.y)


@pytest.fixture(scope="module")
def optimum() -> _Optimum:
    return _Optimum()


def directions(count: int) -> Tensor:
    rows = torch.randn(count, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.nn.functional.normalize(rows)


def test_theorem_1_bounds_the_loss_of_a_dropped_part_at_an_optimum(optimum: _Optimum) -> None:
    flat = optimum.flat
    assert float(jacobian(optimum.loss, flat).norm()) < 1e-12
    H = hessian(optimum.loss, flat)
    assert float(torch.linalg.eigvalsh(H).min()) > -1e-12
    bound = 0.5 * H.norm()
    for direction in directions(20):
        for size in (1e-1, 1e-2):
            change = float((optimum.loss(flat - size * direction) - optimum.loss(flat)).abs()) / size**2
            # The third-order term is at most of the order of the size itself, the loss's derivatives being below 1.
            assert change <= float(bound) * (1 + size)
            assert change == pytest.approx(float(0.5 * direction @ H @ direction), rel=2 * size, abs=1e-6)


def test_the_fishers_prediction_has_the_order_of_the_loss_at_an_optimum(optimum: _Optimum) -> None:
    """Half of h·‖Δ‖², of tr(G Δ A Δᵀ), and the true change, in the mean over isotropic directions."""
    flat, weights = optimum.flat, {"0.weight": optimum.weight}
    size = 0.05
    true = float(torch.stack([optimum.loss(flat - size * d) - optimum.loss(flat) for d in directions(200)]).mean())
    scalar = float(MeanSquare()(optimum.module, weights, optimum.data, 4)["0.weight"]) * size**2 / 2
    A, G = curvature(optimum.module, weights, optimum.data, 100)["0.weight"]
    errors = size * directions(200).view(-1, *optimum.weight.shape)
    kronecker = float(torch.einsum("nji,jk,nkl,li->n", errors, G, errors, A).mean()) / 2
    # 300 batches estimate a variance to about a tenth; A ⊗ G assumes that inputs and gradients are independent.
    assert scalar == pytest.approx(true, rel=0.3)
    assert kronecker == pytest.approx(true, rel=0.5)


def test_gradients_avoid_cudnn_for_recurrent_nets_and_only_for_them() -> None:
    """cuDNN's recurrent layers cannot run backward in evaluation mode."""
    for kind, expected in (("gru", False), ("conv", True)):
        module, data = double(kind)
        seen: list[bool] = []
        handle = module.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.enabled))  # noqa: B023
        before = torch.backends.cudnn.enabled
        MeanSquare()(module, matrices(module), data, 5)
        handle.remove()
        assert torch.backends.cudnn.enabled is before
        assert seen == [expected and before] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recurrent_nets_have_an_importance_on_cuda() -> None:
    module, data = double("gru")
    expected = MeanSquare()(module, matrices(module), data, 5)
    module.cuda()
    measured = MeanSquare()(module, matrices(module), InMemory(data.x.cuda(), data.y.cuda()), 5)
    for name, value in expected.items():
        torch.testing.assert_close(measured[name].cpu(), value)
