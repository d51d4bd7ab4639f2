"""Adapted layers against plain layers with the merged weight, in float64: values, gradients and state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from halrp import Adapted, layer_rule
from halrp.model import kernels
from halrp.model.factors import Factors, identity_factors
from halrp.model.layers.head import new_head
from halrp.model.layers.merged import Merged, adapt_merged
from halrp.model.layers.registry import adapt, adapted_form
from halrp.model.plan import plan
from tests.helpers import drawn

TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""Sums of at most a few hundred products in float64, in another order."""


def factors_for(weight: Tensor, view: str = "mean", rank: int = 2) -> Factors:
    """Random trainable factors for a weight."""
    g = torch.Generator().manual_seed(7)
    rows, columns = weight.shape[0], weight.shape[1]
    width = columns if view == "mean" else weight[0].numel()

    def draw(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(*shape, generator=g, dtype=torch.float64))

    return Factors(draw(rows), draw(columns), draw(rows, rank), draw(rank, width))


def reference(layer: nn.Module, factors: Factors, name: str = "weight") -> nn.Module:
    """A copy of the layer that holds the merged weight."""
    plain = copy.deepcopy(layer)
    with torch.no_grad():
        weight = cast(Tensor, getattr(plain, name))
        scale = torch.einsum("j,i->ji", factors.r, factors.s)
        spread = (factors.p @ factors.q).detach()
        extra = (1,) * (weight.dim() - 2)
        spread = spread.view(*spread.shape, *extra) if spread.shape[1] == weight.shape[1] else spread.view(weight.shape)
        weight.copy_(weight * scale.view(*scale.shape, *extra) + spread)
    return plain


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def agree_in_values_and_gradients(
    adapted: nn.Module, plain: nn.Module, factors: Factors, x: Tensor, base: Tensor
) -> None:
    """Compare outputs, the input's gradient, and the factors' gradients by the chain rule through the merged weight."""
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = adapted(mine), plain(theirs)
    torch.testing.assert_close(y, expected, **TOLERANCE)
    direction = random(*y.shape)
    (y * direction).sum().backward()
    (expected * direction).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, **TOLERANCE)
    gradient = cast(Tensor, cast(Tensor, plain.weight).grad)
    copies = factors.map(lambda t: t.detach().clone().requires_grad_())
    copies.merged(base).backward(gradient)
    for tensor, copied in zip(factors.tensors(), copies.tensors(), strict=True):
        torch.testing.assert_close(tensor.grad, copied.grad, **TOLERANCE)


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_its_merged_weight(shape: tuple[int, ...], bias: bool) -> None:
    layer = drawn(lambda: nn.Linear(6, 5, bias=bias).double())
    base = cast(Tensor, layer.weight).detach().clone()
    factors = factors_for(base)
    plain = reference(layer, factors)
    adapt(layer, factors)
    agree_in_values_and_gradients(layer, plain, factors, random(*shape), base)


CONVOLUTIONS: list[tuple[type[nn.Module], dict[str, Any]]] = [
    *[
        (convolution, {"padding": padding, "padding_mode": mode})
        for convolution in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        for mode in ("zeros", "reflect", "circular", "replicate")
        for padding in ("same", "valid", 1)
        if not (convolution is nn.Conv3d and mode == "reflect" and padding == "valid")
    ],
    (nn.Conv1d, {"padding": "same", "kernel_size": 4, "dilation": 3}),
    (nn.Conv2d, {"padding": "same", "kernel_size": (2, 3), "dilation": (1, 2)}),
    (nn.Conv2d, {"padding": "same", "kernel_size": (2, 4), "padding_mode": "reflect"}),
    (nn.Conv2d, {"stride": 2, "padding": (2, 0), "kernel_size": (3, 2)}),
    (nn.Conv2d, {"stride": (1, 2), "dilation": 2, "bias": False}),
    (nn.Conv2d, {"kernel_size": 1}),
    (nn.Conv2d, {"groups": 2, "padding": 1}),
    (nn.Conv2d, {"groups": 4, "padding": "same"}),
    (nn.Conv1d, {"groups": 4, "stride": 2, "padding": 1, "padding_mode": "circular"}),
    (nn.Conv3d, {"stride": 2, "padding": 1, "groups": 2}),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch, in the reference
@pytest.mark.parametrize("view", ["mean", "full"])
@pytest.mark.parametrize(("convolution", "settings"), CONVOLUTIONS)
def test_convolution_equals_its_merged_weight(
    convolution: type[nn.Module], settings: dict[str, Any], view: str
) -> None:
    layer = drawn(lambda: convolution(4, 8, **{"kernel_size": 3, **settings}).double())
    base = cast(Tensor, layer.weight).detach().clone()
    factors = factors_for(base, view)
    plain = reference(layer, factors)
    adapt(layer, factors)
    x = random(2, 4, *(7,) * (base.dim() - 2))
    agree_in_values_and_gradients(layer, plain, factors, x, base)
    torch.testing.assert_close(layer(x[0]), plain(x[0]), **TOLERANCE)  # one unbatched example


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_an_embedding_looks_up_its_merged_weight(shape: tuple[int, ...], padding: int | None) -> None:
    layer = drawn(lambda: nn.Embedding(9, 6, padding_idx=padding).double())
    base = cast(Tensor, layer.weight).detach().clone()
    factors = factors_for(base)
    plain = reference(layer, factors)
    adapt(layer, factors)
    ids = torch.randint(9, shape, generator=torch.Generator().manual_seed(1))
    ids.view(-1)[::3] = 2  # tokens occur several times, those of the padding among them
    y, expected = layer(ids), plain(ids)
    torch.testing.assert_close(y, expected, **TOLERANCE)
    direction = random(*y.shape)
    (y * direction).sum().backward()
    (expected * direction).sum().backward()
    copies = factors.map(lambda t: t.detach().clone().requires_grad_())
    copies.merged(base).backward(cast(Tensor, cast(Tensor, plain.weight).grad))
    for tensor, copied in zip(factors.tensors(), copies.tensors(), strict=True):
        torch.testing.assert_close(tensor.grad, copied.grad, **TOLERANCE)
    torch.testing.assert_close(layer.weight, plain.weight, **TOLERANCE)


def test_an_adapted_embedding_never_builds_its_table() -> None:
    layer = drawn(lambda: nn.Embedding(100_000, 8))
    adapt(layer, identity_factors(cast(Tensor, layer.weight).detach()))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        layer(torch.arange(10).view(2, 5))
    assert max(event.cpu_memory_usage for event in profile.events()) < 100_000


def test_an_embedding_that_divides_gradients_by_frequency_is_merged() -> None:
    model = nn.Sequential(nn.Embedding(20, 12, scale_grad_by_freq=True), nn.Linear(12, 12), nn.Linear(12, 3))
    decision = plan(model).parameters["0.weight"]
    assert (decision.kind, decision.by_rule) == ("adapted", False)
    assert "scale_grad_by_freq" in decision.reason


AUTOCAST: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Linear(6, 8), torch.ones(3, 6)),
    "linear without bias": (lambda: nn.Linear(6, 8, bias=False), torch.ones(3, 2, 6)),
    "convolution": (lambda: nn.Conv2d(6, 8, 3), torch.ones(2, 6, 5, 5)),
    "one-dimensional convolution": (lambda: nn.Conv1d(6, 8, 3, groups=2), torch.ones(2, 6, 5)),
    "embedding": (lambda: nn.Embedding(9, 6), torch.arange(8).view(2, 4)),
}


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("kind", AUTOCAST)
def test_under_autocast_an_adapted_layer_gives_the_type_of_the_plain_one(kind: str, lower: bool, rank: int) -> None:
    build, x = AUTOCAST[kind]
    layer = drawn(build)
    factors = factors_for(cast(Tensor, layer.weight), rank=rank).map(lambda t: t.detach().float())
    plain = reference(layer, factors)
    adapt(layer, factors)
    x = x.bfloat16() if lower and x.is_floating_point() else x
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = layer(x), plain(x)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, rtol=0.1, atol=0.1)  # a few of the eight bits of bfloat16


def test_a_convolution_gives_the_type_of_the_plain_one_under_autocast() -> None:
    weight, bias, x = torch.ones(4, 3, 3, 3), torch.ones(4), torch.ones(2, 3, 5, 5)
    geometry = kernels.Geometry((1, 1), (0, 0), (1, 1))
    for rank in (0, 2):
        factors = factors_for(weight, rank=rank).map(lambda t: t.detach().float())
        with torch.autocast("cpu", torch.bfloat16):
            assert kernels.conv(x, weight, bias, factors, geometry).dtype == torch.bfloat16


def two_inputs(layer: nn.Module) -> Tensor:
    return cast(Tensor, layer(random(3, 5), random(3, 6)))


GENERIC: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...], Callable[[nn.Module], Tensor]]] = {
    "transposed convolution": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2),
        ("weight",),
        lambda m: m(random(2, 4, 5, 5)),
    ),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        ("in_proj_weight",),
        lambda m: m(random(2, 5, 8), random(2, 5, 8), random(2, 5, 8))[0],
    ),
    "attention with separate projections": (
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True),
        ("q_proj_weight", "k_proj_weight", "v_proj_weight"),
        lambda m: m(random(2, 5, 8), random(2, 5, 6), random(2, 5, 4))[0],
    ),
    "gru": (
        lambda: nn.GRU(5, 6, num_layers=2, bidirectional=True),
        ("weight_ih_l0", "weight_hh_l0", "weight_hh_l1_reverse"),
        lambda m: m(random(4, 2, 5))[0],
    ),
    "lstm with projection": (
        lambda: nn.LSTM(5, 6, proj_size=3),
        ("weight_hh_l0", "weight_hr_l0"),
        lambda m: m(random(4, 2, 5))[0],
    ),
    "embedding": (lambda: nn.Embedding(9, 6, padding_idx=2), ("weight",), lambda m: m(torch.tensor([[1, 2], [8, 1]]))),
    "bilinear": (lambda: nn.Bilinear(5, 6, 7), ("weight",), two_inputs),
}


@pytest.mark.parametrize("view", ["mean", "full"])
@pytest.mark.parametrize("kind", GENERIC)
def test_any_layer_reads_its_merged_weight(kind: str, view: str) -> None:
    build, names, run = GENERIC[kind]
    layer = drawn(build).double().requires_grad_(False)
    plain = layer
    for name in names:
        factors = factors_for(cast(Tensor, getattr(layer, name)), view)
        plain = reference(plain, factors, name)
        adapt_merged(layer, name, Merged(factors))
    torch.testing.assert_close(run(layer), run(plain), **TOLERANCE)
    run(layer).square().sum().backward()
    learning = {name for name, p in layer.named_parameters() if p.grad is not None}
    assert learning == {f"parametrizations.{name}.0.{part}" for name in names for part in "rspq"}


def test_attention_in_evaluation_mode_takes_torchs_fast_path_with_the_merged_weights() -> None:
    layer = drawn(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).double().requires_grad_(False).eval()
    plain = layer
    x = random(3, 5, 8)
    for path, name in [("self_attn", "in_proj_weight"), ("self_attn.out_proj", "weight"), ("linear1", "weight")]:
        owner = layer.get_submodule(path)
        factors = factors_for(cast(Tensor, getattr(owner, name))).map(lambda t: t.detach())
        plain = copy.deepcopy(plain)
        merged = reference(plain.get_submodule(path), factors, name)
        getattr(plain.get_submodule(path), name).copy_(getattr(merged, name))
        if adapted_form(owner) is None:
            adapt_merged(owner, name, Merged(factors))
        else:
            adapt(owner, factors)
    with torch.no_grad():
        fast, expected = layer(x), plain(x)
    torch.testing.assert_close(fast, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("build", [lambda: nn.Linear(4, 6), lambda: nn.Conv2d(4, 6, 3), lambda: nn.Conv1d(4, 6, 3)])
def test_an_adapted_layer_keeps_its_class_its_hooks_its_attributes_and_its_memory(
    build: Callable[[], nn.Module],
) -> None:
    layer = drawn(build).double()
    weight, old, calls = cast(Tensor, layer.weight), type(layer), []
    layer.register_forward_hook(lambda *_: calls.append(1))
    cast(Any, layer).note = "mine"
    factors = factors_for(weight)
    expected = factors.merged(weight.detach())
    adapt(layer, factors)
    assert isinstance(layer, old)
    assert isinstance(layer, Adapted)
    assert cast(Any, layer).note == "mine"
    assert layer.base_weight.data_ptr() == weight.data_ptr()
    torch.testing.assert_close(layer.weight, expected, rtol=0, atol=0)
    assert {n for n, _ in layer.named_parameters()} == {"bias", "r", "s", "p", "q"}
    assert "rank=2" in repr(layer)
    layer(random(2, 4, *(5,) * (weight.dim() - 2)))
    assert calls == [1]


def test_code_that_reads_the_weight_instead_of_calling_the_layer_trains_the_factors() -> None:
    layer = drawn(lambda: nn.Linear(4, 6).double())
    adapt(layer, factors_for(cast(Tensor, layer.weight)))
    (random(3, 4) @ cast(Tensor, layer.weight).T).sum().backward()
    assert all(cast(Tensor, getattr(layer, name)).grad is not None for name in "rspq")


def test_empty_factors_leave_a_layer_as_it_is() -> None:
    layer = drawn(lambda: nn.Conv2d(4, 6, 3).double())
    x = random(2, 4, 5, 5)
    expected = layer(x)
    adapt(layer, identity_factors(cast(Tensor, layer.weight).detach()))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)


class Doubled(nn.Module):
    """A user's layer: twice a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x @ self.weight.T


@pytest.mark.usefixtures("rules_restored")
def test_a_user_can_register_a_rule_for_their_own_layer() -> None:
    @layer_rule(Doubled)
    class AdaptedDoubled(Adapted, Doubled):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return 2 * kernels.linear(x, self.base_weight, None, self.r, self.s, self.p, self.q)

    class Special(Doubled):
        pass

    layer = drawn(lambda: Doubled().double())
    base = cast(Tensor, layer.weight).detach().clone()
    factors = factors_for(base)
    plain = reference(layer, factors)
    assert adapted_form(layer) is AdaptedDoubled
    assert adapted_form(Special()) is None
    adapt(layer, factors)
    agree_in_values_and_gradients(layer, plain, factors, random(3, 4), base)


def test_a_subclass_has_no_rule_because_it_may_compute_something_else() -> None:
    class Mine(nn.Linear):
        pass

    assert adapted_form(nn.Linear(2, 2)) is not None
    assert adapted_form(Mine(2, 2)) is None


@pytest.mark.parametrize("bias", [True, False])
def test_a_new_head_is_of_the_same_kind_with_one_output_per_class(bias: bool) -> None:
    heads: list[nn.Module] = [
        nn.Linear(5, 3, bias=bias).double(),
        nn.Conv2d(5, 3, 3, stride=2, padding=1, dilation=1, bias=bias, padding_mode="circular").double(),
        nn.Conv1d(5, 3, 1, bias=bias).double(),
    ]
    for head in heads:
        fresh = new_head(head, 7)
        assert type(fresh) is type(head)
        assert (fresh.bias is not None) is bias
        assert fresh.weight.dtype == torch.float64
        x = random(2, 5, *(6,) * (cast(Tensor, head.weight).dim() - 2))
        assert fresh(x).shape == (2, 7, *head(x).shape[2:])


def test_the_parametrized_form_still_is_an_instance_of_its_class() -> None:
    layer = drawn(lambda: nn.GRU(5, 6).double())
    adapt_merged(layer, "weight_hh_l0", Merged(factors_for(cast(Tensor, layer.weight_hh_l0))))
    assert isinstance(layer, nn.GRU)
    assert parametrize.is_parametrized(layer, "weight_hh_l0")
