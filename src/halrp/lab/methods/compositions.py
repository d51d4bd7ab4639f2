"""Compositions of HALRP that are compared with the paper's: each changes one of its choices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from halrp import Halrp
from halrp.method.allocate import Flat
from halrp.method.decompose import Whitened
from halrp.model.codec import Precision

View = Literal["mean", "full", "validation"]


def lrp(rank: int = 100, growth: float = 0.2, l1: float = 1e-4, l2: float = 1e-4) -> Halrp:
    """The released code with the same rank in every layer instead of ranks by importance."""
    return replace(Halrp.official(growth=growth, l1=l1, l2=l2), allocate=Flat(rank))


def random_lrp(rate: float = 0.9, growth: float = 0.2, cap: int = 100, l1: float = 1e-4, l2: float = 1e-4) -> Halrp:
    """The released code with random factors instead of those of the SVD."""
    return replace(Halrp.official(rate, growth, cap, l1, l2), initial="random")


def budget(
    bytes_per_task: int | None = None,
    *,
    parameters_per_task: int | None = None,
    growth_per_task: float | None = None,
    bytes_total: int | None = None,
    tasks: int | None = None,
    precision: Precision | None = None,
    view: View = "validation",
    l1: float = 1e-4,
    l2: float = 1e-4,
    warm_up: int = 1,
) -> Halrp:
    """`Halrp.budget` with scales, norms and heads in float32."""
    bounds = {"parameters_per_task": parameters_per_task, "growth_per_task": growth_per_task}
    bounds |= {"bytes_total": bytes_total, "tasks": tasks}
    given: dict[str, Any] = {**bounds, "precision": precision, "view": view, "l1": l1, "l2": l2, "warm_up": warm_up}
    return Halrp.budget(bytes_per_task, rest="float32", **given)


def scales(l2: float = 1e-4) -> Halrp:
    """Scales, biases, norms and a head per task, and no components."""
    return Halrp(allocate=Flat(0), l2=l2, base_l2=l2)


def whitened(growth_per_task: float = 0.026, view: View = "validation", l1: float = 1e-4, l2: float = 1e-4) -> Halrp:
    """`Halrp.budget` with residuals decomposed in the metric of curvature."""
    plain = Halrp.budget(growth_per_task=growth_per_task, view=view, l1=l1, l2=l2, rest="float32")
    return replace(plain, decompose=Whitened())
