"""The kernels against a materialised float64 weight: values, and gradients of everything that learns."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from halrp.errors import SettingError
from halrp.model import kernels
from halrp.model.factors import Factors
from halrp.model.kernels.conv import ConvStrategy, fastest
from halrp.model.kernels.convolution import is_computed_by_rows, pointwise

Parts = dict[str, Tensor]

STRATEGIES: list[ConvStrategy] = ["merged", "analytic"]
VIEWS = ["kernel-mean", "full-kernel"]
LEARNED = ("bias", "r", "s", "p", "q")
CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}

GEOMETRIES = [
    # dimensions, kernel size, stride, padding, dilation, groups
    (1, 3, 1, 1, 1, 1),
    (1, 4, 2, 2, 2, 2),
    (2, 1, 1, 0, 1, 1),
    (2, 1, 2, 0, 1, 2),
    (2, 2, 2, 0, 1, 1),
    (2, 3, 1, 0, 2, 1),
    (2, 3, 2, 2, 1, 1),
    (2, 4, 1, 2, 1, 1),
    (2, 5, 1, 2, 1, 1),
    (2, 5, 2, 2, 1, 2),
    (2, 3, 1, 1, 1, 4),
    (3, 2, 2, 0, 1, 1),
    (3, 3, 1, 2, 1, 2),
]
GEOMETRY = (2, 3, 1, 1, 1, 1)
"""The one used where the geometry does not matter."""


def assert_exact(got: Tensor, expected: Tensor, name: str = "") -> None:
    """Compare in float64.

    A sum of some thousand products of order one rounds near 1e-13, and Euler's identity may lose two digits.
    """
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10, msg=lambda text: f"{name}: {text}")


def parts(geometry: tuple[int, ...], view: str = "kernel-mean", rank: int = 2) -> Parts:
    """Return the float64 tensors of an adapted convolution: four channels in, six or eight out."""
    dimensions, size, _, _, _, groups = geometry
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows, columns = 8 if groups == 4 else 6, 4 // groups
    positions = size**dimensions if view == "full-kernel" else 1
    return {
        "x": draw(2, 4, *range(7, 7 - dimensions, -1)),
        "weight": draw(rows, columns, *[size] * dimensions),
        "bias": draw(rows),
        "r": 1 + 0.3 * draw(rows),
        "s": 1 + 0.3 * draw(columns),
        "p": draw(rows, rank),
        "q": draw(rank, columns * positions),
    }


def options(geometry: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Return stride, padding and dilation as tuples, and the groups."""
    dimensions, _, stride, padding, dilation, groups = geometry
    return (stride,) * dimensions, (padding,) * dimensions, (dilation,) * dimensions, groups


def dense_weight(weight: Tensor, r: Tensor, s: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Build W_t[j, i, …] = r_j W[j, i, …] s_i + B[j, i, …] from its definition."""
    rows, columns = weight.shape[:2]
    flat = weight.reshape(rows, columns, -1)
    residual = torch.einsum("jk,kc->jc", p, q).view(rows, columns, -1).expand_as(flat)
    return (torch.einsum("j,jic,i->jic", r, flat, s) + residual).view(weight.shape)


def dense_conv(geometry: tuple[int, ...], t: Parts) -> Tensor:
    """Convolve with the dense weight of the parts."""
    weight = dense_weight(t["weight"], t["r"], t["s"], t["p"], t["q"])
    return CONVOLUTIONS[geometry[0]](t["x"], weight, t.get("bias"), *options(geometry))


def adapted_conv(geometry: tuple[int, ...], t: Parts, strategy: ConvStrategy | None = None) -> Tensor:
    """Convolve with `kernels.conv`."""
    factors = Factors(t["r"], t["s"], t["p"], t["q"])
    return kernels.conv(t["x"], t["weight"], t.get("bias"), factors, kernels.Geometry(*options(geometry)), strategy)


def value_and_gradients(function: Callable[[Parts], Tensor], t: Parts, wanted: tuple[str, ...]) -> Parts:
    """Return y and the gradients of Σ c y, with a fixed random c, of the wanted parts."""
    leaves = {name: part.detach().requires_grad_(name in wanted) for name, part in t.items()}
    y = function(leaves)
    c = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y.dtype)
    gradients = torch.autograd.grad((c * y).sum(), [leaves[name] for name in wanted], materialize_grads=True)
    return {"y": y.detach(), **dict(zip(wanted, gradients, strict=True))}


def assert_conv_is_dense(
    geometry: tuple[int, ...], t: Parts, strategy: ConvStrategy | None, wanted: tuple[str, ...] = ("x", *LEARNED)
) -> None:
    """Compare values and gradients of an adapted convolution with the dense one."""
    got = value_and_gradients(lambda leaves: adapted_conv(geometry, leaves, strategy), t, wanted)
    expected = value_and_gradients(lambda leaves: dense_conv(geometry, leaves), t, wanted)
    for name in expected:
        assert_exact(got[name], expected[name], name)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("strategy", "geometry"),
    [(s, g) for s in STRATEGIES for g in GEOMETRIES if s != "analytic" or g[-1] == 1],
)
def test_every_strategy_equals_the_dense_convolution(
    strategy: ConvStrategy, geometry: tuple[int, ...], view: str
) -> None:
    assert_conv_is_dense(geometry, parts(geometry, view), strategy)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_chosen_strategy_equals_the_dense_convolution(geometry: tuple[int, ...]) -> None:
    assert_conv_is_dense(geometry, parts(geometry), None)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rank_zero_leaves_the_scaled_base(view: str, strategy: ConvStrategy) -> None:
    assert_conv_is_dense(GEOMETRY, parts(GEOMETRY, view, rank=0), strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_layer_without_bias(strategy: ConvStrategy) -> None:
    t = parts(GEOMETRY)
    del t["bias"]
    assert_conv_is_dense(GEOMETRY, t, strategy, wanted=("x", "r", "s", "p", "q"))


@pytest.mark.parametrize("strategy", [None, *STRATEGIES])
@pytest.mark.parametrize("wanted", [LEARNED, ("x",), ("x", "r"), ("x", "s"), ("x", "p"), ("x", "q"), ("bias",)])
def test_only_the_wanted_gradients(strategy: ConvStrategy | None, wanted: tuple[str, ...]) -> None:
    assert_conv_is_dense(GEOMETRY, parts(GEOMETRY), strategy, wanted)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("tiny", [0.0, 1e-300, -1e-12, 1e-3])
@pytest.mark.parametrize("rank", [0, 2])
def test_zero_and_tiny_scales_have_exact_gradients(strategy: ConvStrategy, tiny: float, rank: int) -> None:
    t = parts(GEOMETRY, rank=rank)
    t["r"][[0, 3]] = tiny
    t["s"][2] = tiny
    assert_conv_is_dense(GEOMETRY, t, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dead_rows_and_columns_of_the_base_have_exact_gradients(strategy: ConvStrategy) -> None:
    t = parts(GEOMETRY)
    t["weight"][1] = 0
    t["weight"][:, 3] *= 1e-9
    assert_conv_is_dense(GEOMETRY, t, strategy)


def test_tiny_scales_are_exact_to_float32_accuracy_with_a_large_bias() -> None:
    t = parts(GEOMETRY)
    t["r"][0], t["s"][1], t["bias"] = 0.02, 0.02, 1e3 * t["bias"]
    wanted = ("x", *LEARNED)
    expected = value_and_gradients(lambda leaves: dense_conv(GEOMETRY, leaves), t, wanted)
    single = {name: part.float() for name, part in t.items()}
    got = value_and_gradients(lambda leaves: adapted_conv(GEOMETRY, leaves, "analytic"), single, wanted)
    for name in wanted:
        # Rounding of a sum is near 1e-6 of its largest terms here, times the 50 by which the scale divides.
        torch.testing.assert_close(got[name].double(), expected[name], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_channels_last_input_gives_the_same_result(strategy: ConvStrategy, rank: int, view: str) -> None:
    t = parts(GEOMETRY, view, rank)
    t["x"] = t["x"].contiguous(memory_format=torch.channels_last)
    t["weight"] = t["weight"].contiguous(memory_format=torch.channels_last)
    assert_conv_is_dense(GEOMETRY, t, strategy)


@pytest.mark.parametrize("few", [0, 10**9])
@pytest.mark.parametrize("geometry", [g for g in GEOMETRIES if g[0] == 2 and g[-1] == 1])
def test_components_one_by_one_and_through_their_matrix_give_the_same(
    geometry: tuple[int, ...], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("halrp.model.kernels.conv"), "FEW_COMPONENTS", few)
    t = parts(geometry)
    t["x"] = t["x"].contiguous(memory_format=torch.channels_last)
    t["weight"] = t["weight"].contiguous(memory_format=torch.channels_last)
    assert_conv_is_dense(geometry, t, "analytic")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("images", [1, 3, 15, 16])
def test_pointwise_convolutions_of_few_images_equal_the_dense_one(strategy: ConvStrategy, images: int) -> None:
    geometry, wanted = (2, 1, 1, 0, 1, 1), ("x", *LEARNED)
    t = parts(geometry)
    t["x"] = t["x"].repeat(8, 1, 3, 1)[:images].contiguous(memory_format=torch.channels_last)
    expected = value_and_gradients(lambda leaves: dense_conv(geometry, leaves), t, wanted)
    single = {name: part.float() for name, part in t.items()}
    assert is_computed_by_rows(single["x"], single["weight"], pointwise(single["weight"])) is (images < 16)
    got = value_and_gradients(lambda leaves: adapted_conv(geometry, leaves, strategy), single, wanted)
    for name in ("y", *wanted):  # sums of up to 2,000 products round near 1e-5
        torch.testing.assert_close(got[name].double(), expected[name], rtol=1e-4, atol=1e-3)
    assert got["y"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_agree_with_finite_differences(view: str, strategy: ConvStrategy) -> None:
    t = parts((2, 2, 1, 1, 1, 1), view)
    names = ("x", *LEARNED)

    def function(*values: Tensor) -> Tensor:
        return adapted_conv((2, 2, 1, 1, 1, 1), {**t, **dict(zip(names, values, strict=True))}, strategy)

    torch.autograd.gradcheck(function, [t[name].requires_grad_() for name in names], fast_mode=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_output_may_be_overwritten_in_place(strategy: ConvStrategy) -> None:
    t = parts(GEOMETRY)
    got = value_and_gradients(lambda leaves: adapted_conv(GEOMETRY, leaves, strategy).relu_(), t, LEARNED)
    expected = value_and_gradients(lambda leaves: dense_conv(GEOMETRY, leaves).relu(), t, LEARNED)
    for name in LEARNED:
        assert_exact(got[name], expected[name], name)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_frozen_base_gets_no_gradient_and_is_not_written_to(strategy: ConvStrategy) -> None:
    t = parts(GEOMETRY)
    before = t["weight"].clone()
    value_and_gradients(lambda leaves: adapted_conv(GEOMETRY, leaves, strategy), t, ("x", *LEARNED))
    assert torch.equal(t["weight"], before)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("geometry", [(0, 1, 1, 0, 1, 1), *GEOMETRIES])
def test_merge_builds_the_weight_of_the_specification(geometry: tuple[int, ...], view: str) -> None:
    t = parts(geometry, view)
    arguments = t["weight"], t["r"], t["s"], t["p"], t["q"]
    assert_exact(kernels.merge(*arguments), dense_weight(*arguments))


def test_a_factor_of_unfit_width_is_refused_by_name() -> None:
    t = parts(GEOMETRY)
    with pytest.raises(SettingError, match=r"q has 5 columns.*needs 4 .*or 36"):
        kernels.merge(t["weight"], t["r"], t["s"], t["p"], torch.zeros(2, 5, dtype=torch.float64))


def test_analytic_is_refused_for_groups() -> None:
    geometry = (2, 3, 1, 1, 1, 2)
    with pytest.raises(SettingError, match="groups=1, not 2"):
        adapted_conv(geometry, parts(geometry), "analytic")


def test_analytic_keeps_channels_last_memory() -> None:
    t = parts(GEOMETRY)
    x = t["x"].contiguous(memory_format=torch.channels_last).requires_grad_()
    y = adapted_conv(GEOMETRY, {**t, "x": x, "r": t["r"].requires_grad_()}, "analytic")
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert dx.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "analytic"),
        ({"requires_grad": False}, "merged"),
        ({"x_requires_grad": False}, "merged"),
        ({"size": 1}, "merged"),
        ({"groups": 2}, "merged"),
        ({"view": "full-kernel"}, "analytic"),
        ({"view": "full-kernel", "rank": 17}, "merged"),
        ({"view": "full-kernel", "rows": 24, "rank": 8}, "analytic"),
        ({"view": "full-kernel", "rows": 24, "rank": 9}, "merged"),
    ],
)
def test_the_fastest_strategy_follows_the_documented_rule(change: dict[str, Any], expected: str) -> None:
    case = {"size": 3, "groups": 1, "view": "kernel-mean", "rank": 4, "rows": 96, **change}
    rows, columns, positions = case["rows"], 16, case["size"] ** 2 if case["view"] == "full-kernel" else 1
    x = torch.zeros(2, columns * case["groups"], 8, 8)
    q = torch.zeros(case["rank"], columns * positions)
    factors = Factors(torch.zeros(rows), torch.zeros(columns), torch.zeros(rows, case["rank"]), q)
    for part in factors.tensors():
        part.requires_grad_(case.get("requires_grad", True))
    x.requires_grad_(case.get("x_requires_grad", True))
    weight = torch.zeros(rows, columns, case["size"], case["size"])
    assert fastest(x, weight, factors, case["groups"]) == expected
    with torch.no_grad():
        assert fastest(x, weight, factors, case["groups"]) == "merged"


def test_an_exported_inference_graph_holds_plain_operators_only() -> None:
    t = parts(GEOMETRY)

    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, r: Tensor) -> Tensor:
            return adapted_conv(GEOMETRY, {**t, "x": x, "r": r})

    with torch.no_grad():
        exported = torch.export.export(Layer(), (t["x"], t["r"]))
    operators = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert "aten.conv2d.default" in operators
    assert all(operator.startswith("aten.") for operator in operators)
    assert_exact(exported.module()(t["x"], t["r"]), dense_conv(GEOMETRY, t))


def assert_near(got: Tensor, expected: Tensor, name: str) -> None:
    """Compare a result of bfloat16, which keeps eight bits: a sum is right to a few hundredths of the largest one."""
    most = 0.05 * expected.abs().max().item()
    torch.testing.assert_close(got.double(), expected, rtol=0.05, atol=most, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("strategy", [None, "merged"])
def test_autocast_gives_finite_gradients_near_the_dense_ones(view: str, strategy: ConvStrategy | None) -> None:
    t = parts(GEOMETRY, view)
    wanted = ("x", *LEARNED)
    expected = value_and_gradients(lambda leaves: dense_conv(GEOMETRY, leaves), t, wanted)
    single = {name: part.float() for name, part in t.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = value_and_gradients(lambda leaves: adapted_conv(GEOMETRY, leaves, strategy), single, wanted)
    for name, value in expected.items():
        assert_near(got[name], value, name)
