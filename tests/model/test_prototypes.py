"""Prototypes: the density that they stand for, their tensors in a file, and what is refused there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from halrp.errors import DamagedError
from halrp.method.prototypes import Sums
from halrp.model import prototypes
from halrp.model.file_size import TensorEntry
from halrp.model.layout import dtype_name
from halrp.model.prototypes import Shape, TaskPrototypes, projected, projection


def examples(count: int = 90, width: int = 6, groups: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(count) % groups
    centres = torch.randn(groups, width, generator=generator)
    stretched = torch.randn(count, width, generator=generator) * torch.linspace(1.0, 0.2, width)
    return centres[group] + stretched, group


SMALL = Shape(3, 2, 6)


def model(shape: Shape = SMALL) -> TaskPrototypes:
    z, group = examples(width=shape.width, groups=shape.prototypes)
    sums = Sums(shape)
    sums.add(z[:40], group[:40])
    sums.add(z[40:], group[40:])
    return sums.model()


def test_a_score_is_the_logarithm_of_the_density_of_a_mixture_of_gaussians() -> None:
    made = model()
    z, _ = examples()
    v = made.directions.double()
    covariance = torch.linalg.inv(torch.eye(6, dtype=torch.float64) - v.mT @ v) / made.precision
    mixture = MixtureSameFamily(
        Categorical(torch.full((3,), 1 / 3, dtype=torch.float64)),
        MultivariateNormal(made.prototypes.double(), covariance.expand(3, 6, 6)),
    )
    expected = mixture.log_prob(z.double()) + 3 * torch.log(torch.tensor(2 * torch.pi))
    assert torch.allclose(made.scores(z).double(), expected, atol=1e-4)


def test_prototypes_are_the_means_and_directions_those_of_the_largest_variance() -> None:
    made, (z, group) = model(), examples()
    means = torch.stack([z[group == number].mean(0) for number in range(3)])
    assert torch.allclose(made.prototypes, means, atol=0.2)  # four bits
    residuals = z - means[group]
    _, vectors = torch.linalg.eigh(residuals.mT @ residuals)
    assert (made.directions @ vectors[:, -2:]).norm() > 0.95 * made.directions.norm()


@pytest.mark.parametrize("shape", [Shape(3, 2, 6), Shape(1, 0, 2), Shape(2, 8, 66)])
def test_prototypes_are_written_as_planned_and_read_as_the_same_bits(shape: Shape) -> None:
    made = replace(model(shape), least=-7.5, temperature=2.0)
    stored = made.stored()
    entries = {f"statistics/{n}": TensorEntry(dtype_name(t.dtype), tuple(t.shape)) for n, t in stored.items()}
    assert entries == shape.entries
    prototypes.refuse_misfits(stored)
    again = prototypes.read(stored)
    assert again is not None
    z, _ = examples(width=shape.width)
    assert torch.equal(again.scores(z), made.scores(z))
    assert (again.least, again.temperature) == (-7.5, 2.0)


def test_no_direction_makes_a_variance_infinite() -> None:
    sums = Sums(Shape(1, 3, 8))
    z = torch.zeros(50, 8)
    z[:, :3] = 1e3 * torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    sums.add(z, torch.zeros(50, dtype=torch.int64))
    made = sums.model()
    assert torch.linalg.eigvalsh(made.directions @ made.directions.mT).max() < 1
    assert made.scores(z).isfinite().all()


def test_the_projection_is_orthonormal_and_a_function_of_the_base_alone() -> None:
    p = projection("base", 20, 6)
    assert torch.allclose(p.mT @ p, torch.eye(6), atol=1e-6)
    projection.cache_clear()
    assert torch.equal(projection("base", 20, 6), p)
    assert not torch.equal(projection("other", 20, 6), p)


def test_features_of_any_length_and_odd_width_are_projected() -> None:
    x = torch.tensor([[4.0, 0.0, -9.0], [0.0, 0.0, 0.0]])
    z = projected(x, "base", 4)
    assert torch.allclose(z[0], torch.tensor([2.0, 0.0, -3.0, 0.0]) / 13**0.5)
    assert torch.allclose(projected(1e6 * x, "base", 4), z)
    assert projected(x, "base", 2).shape == (2, 2)


def with_number(index: int, value: float) -> Callable[[dict[str, Tensor]], None]:
    def change(stored: dict[str, Tensor]) -> None:
        stored["numbers"][index] = value

    return change


def with_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def change_tensor(stored: dict[str, Tensor]) -> None:
        stored[name] = change(stored[name])

    return change_tensor


WRONG = {
    "precision": with_number(-3, 0.0),
    "huge precision": with_number(-3, 1e30),
    "temperature": with_number(-1, -1.0),
    "huge offset": with_number(0, -1e30),
    "type": with_tensor("prototypes", lambda t: t.to(torch.int32)),
    "type of scales": with_tensor("scales", lambda t: t.float()),
    "rows": with_tensor("scales", lambda t: t[:-1]),
    "groups": with_tensor("scales", lambda t: torch.cat([t, t], 1)),
    "no offsets": with_tensor("numbers", lambda t: t[-3:]),
    "too many offsets": with_tensor("numbers", lambda t: torch.cat([t, t])),
    "dimensions": with_tensor("prototypes", lambda t: t.flatten()),
    "no columns": with_tensor("prototypes", lambda t: t[:, :0]),
    "negative scale": with_tensor("scales", lambda t: -t),
    "huge scale": with_tensor("scales", lambda t: t * 1e30),
    "eights": with_tensor("prototypes", lambda t: torch.full_like(t, 0x88)),
}


@pytest.mark.parametrize("name", WRONG)
def test_prototypes_that_no_task_has_are_refused(name: str) -> None:
    stored = model().stored()
    WRONG[name](stored)
    with pytest.raises(DamagedError, match="prototypes"):
        prototypes.refuse_misfits(stored)


def test_other_statistics_are_no_prototypes() -> None:
    prototypes.refuse_misfits({"means": torch.zeros(3)})
    assert prototypes.read({"means": torch.zeros(3)}) is None
