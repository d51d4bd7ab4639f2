"""Adapted linear layers against a materialised float64 weight, and products by either library."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from halrp.model import kernels
from halrp.model.factors import Factors
from halrp.model.kernels import products
from halrp.model.kernels.linear import WIDE, LinearStrategy, fastest
from tests.model.test_kernels import (
    LEARNED,
    Parts,
    assert_exact,
    assert_near,
    dense_weight,
    parts,
    value_and_gradients,
)

STRATEGIES: list[LinearStrategy] = ["merged", "analytic", "factored"]
SHAPE = (0, 1, 1, 0, 1, 1)


def linear_parts(shape: tuple[int, ...] = (5, 4), rank: int = 2) -> Parts:
    """Float64 tensors of an adapted layer with four inputs and six outputs."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return {**parts(SHAPE, rank=rank), "x": x}


def adapted(t: Parts, strategy: LinearStrategy | None = None) -> Tensor:
    return kernels.linear(t["x"], t["weight"], t.get("bias"), t["r"], t["s"], t["p"], t["q"], strategy)


def dense(t: Parts) -> Tensor:
    return functional.linear(t["x"], dense_weight(t["weight"], t["r"], t["s"], t["p"], t["q"]), t.get("bias"))


def assert_is_dense(t: Parts, strategy: LinearStrategy | None, wanted: tuple[str, ...] = ("x", *LEARNED)) -> None:
    """Compare values and gradients of an adapted layer with the dense one."""
    got = value_and_gradients(lambda leaves: adapted(leaves, strategy), t, wanted)
    expected = value_and_gradients(dense, t, wanted)
    for name in expected:
        assert_exact(got[name], expected[name], name)


@pytest.mark.parametrize("strategy", [None, *STRATEGIES])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (4,), (0, 4)])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("wanted", [("x", *LEARNED), LEARNED, ("x", "r", "s", "p", "q"), ("x",), ("r",), ("x", "q")])
def test_linear_equals_the_dense_layer(
    strategy: LinearStrategy | None, shape: tuple[int, ...], rank: int, wanted: tuple[str, ...]
) -> None:
    t = linear_parts(shape, rank)
    if "bias" not in wanted:
        del t["bias"]
    assert_is_dense(t, strategy, wanted)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("tiny", [0.0, 1e-300, -1e-12, 1e-3])
def test_zero_and_tiny_scales_have_exact_gradients(strategy: LinearStrategy, rank: int, tiny: float) -> None:
    t = linear_parts((7, 4), rank)
    t["r"][[0, 3]] = t["s"][2] = tiny
    assert_is_dense(t, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dead_rows_and_columns_of_the_base_have_exact_gradients(strategy: LinearStrategy) -> None:
    t = linear_parts()
    t["weight"][1] = 0
    t["weight"][:, 3] *= 1e-9
    assert_is_dense(t, strategy)


def test_a_large_bias_costs_no_digits() -> None:
    t = linear_parts((64, 4))
    t["bias"] = 1e4 * t["bias"]
    wanted = ("x", *LEARNED)
    expected = value_and_gradients(dense, t, wanted)
    single = {name: part.float() for name, part in t.items()}
    got = value_and_gradients(lambda leaves: adapted(leaves, "analytic"), single, wanted)
    for name in wanted:
        # Sums of 64 products of order one in float32; next to 1e4 a product would keep three digits.
        torch.testing.assert_close(got[name].double(), expected[name], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_inputs_that_are_not_contiguous_give_the_same_result(strategy: LinearStrategy) -> None:
    t = linear_parts()
    t["x"] = t["x"].t().contiguous().t()
    assert_is_dense(t, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_agree_with_finite_differences_once_and_twice(strategy: LinearStrategy) -> None:
    t, names = linear_parts(), ("x", *LEARNED)

    def function(*values: Tensor) -> Tensor:
        return adapted({**t, **dict(zip(names, values, strict=True))}, strategy)

    inputs = [t[name].requires_grad_() for name in names]
    torch.autograd.gradcheck(function, inputs, fast_mode=True)
    torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_output_may_be_overwritten_in_place(strategy: LinearStrategy) -> None:
    t = linear_parts()
    got = value_and_gradients(lambda leaves: adapted(leaves, strategy).relu_(), t, LEARNED)
    expected = value_and_gradients(lambda leaves: dense(leaves).relu(), t, LEARNED)
    for name in LEARNED:
        assert_exact(got[name], expected[name], name)


def test_autocast_gives_values_and_gradients_near_the_dense_ones() -> None:
    t, wanted = linear_parts(), ("x", *LEARNED)
    expected = value_and_gradients(dense, t, wanted)
    single = {name: part.float() for name, part in t.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = value_and_gradients(adapted, single, wanted)
    assert got["y"].dtype == torch.bfloat16  # as the plain layer
    for name, value in expected.items():
        assert_near(got[name], value, name)


@pytest.mark.parametrize(
    ("rows", "weight", "expected"), [(64, (64, 64), "analytic"), (63, (64, 64), "factored"), (32, (48, 24), "analytic")]
)
def test_the_smaller_of_weight_and_activations_decides(rows: int, weight: tuple[int, int], expected: str) -> None:
    outputs, inputs = weight
    factors = Factors(
        *(torch.ones(shape).requires_grad_() for shape in ((outputs,), (inputs,), (outputs, 1), (1, inputs)))
    )
    x = torch.ones(2, rows // 2, inputs) if rows % 2 == 0 else torch.ones(rows, inputs)
    assert fastest(x, torch.ones(weight), factors) == expected
    with torch.no_grad():
        assert fastest(x, torch.ones(weight), factors) == "factored"


@pytest.mark.parametrize("rows", [128, 129, 1024, 17])
@pytest.mark.parametrize("faster", [True, False])
def test_products_are_the_same_by_either_library(rows: int, faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_is_faster", lambda: faster)
    draw = torch.Generator().manual_seed(0)
    x, g = torch.randn(rows, 40, generator=draw), torch.randn(rows, 50, generator=draw)
    weight, bias = torch.randn(50, 40, generator=draw), torch.randn(50, generator=draw)
    # A sum of 50 products of order one in float32.
    torch.testing.assert_close(products.rows_times(x, weight), x @ weight.t(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(products.rows_times(x, weight, bias), x @ weight.t() + bias, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(products.rows_times_transposed(g, weight), g @ weight, rtol=1e-5, atol=1e-4)
    assert products.rows_times(x, weight).is_contiguous()
    assert products.rows_times_transposed(g, weight).is_contiguous()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("faster", [True, False])
def test_many_components_equal_the_dense_layer(bias: bool, faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_is_faster", lambda: faster)
    rank = WIDE + 1
    t = linear_parts((128, 4), rank)
    if not bias:
        del t["bias"]
    assert_is_dense(t, "factored", tuple(name for name in ("x", *LEARNED) if name in t))
    generator = torch.Generator().manual_seed(3)
    shapes = {"x": (128, 40), "weight": (48, 40), "r": (48,), "s": (40,), "p": (48, rank), "q": (rank, 40)}
    single = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    learned = ("x", "r", "s", "p", "q")
    got = value_and_gradients(lambda leaves: adapted(leaves, "factored"), single, learned)
    expected = value_and_gradients(dense, {name: part.double() for name, part in single.items()}, learned)
    for name in expected:  # sums of some thousand products of order one in float32
        torch.testing.assert_close(got[name].double(), expected[name], rtol=1e-4, atol=2e-2, msg=name)
