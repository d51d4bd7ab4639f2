"""Sketches of sums of matrices against the dense singular value decomposition, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from halrp.method.sketch import OVERSAMPLING, Sketch, Spectrum

PARTS = 5


def parts(rows: int, columns: int, decay: float, rank: int | None = None) -> list[Tensor]:
    """Matrices whose sum has singular values that fall by a factor `decay`."""
    generator = torch.Generator().manual_seed(3)
    count = min(rows, columns) if rank is None else rank
    u = torch.linalg.qr(torch.randn(rows, count, generator=generator, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(columns, count, generator=generator, dtype=torch.float64)).Q
    total = u * decay ** torch.arange(count) @ v.T
    noise = [torch.randn(rows, columns, generator=generator, dtype=torch.float64) for _ in range(PARTS - 1)]
    return [*noise, total - sum(noise)]


def sketched(matrices: list[Tensor], components: int) -> tuple[Sketch, Spectrum]:
    rows, columns = matrices[0].shape
    generator = torch.Generator().manual_seed(7)
    sketch = Sketch(rows, columns, components, torch.zeros((), dtype=torch.float64), generator)
    for turn in (True, False):
        for part in matrices:
            sketch.add(part)
        if turn:
            sketch.turn()
    return sketch, sketch.spectrum()


@pytest.mark.parametrize("shape", [(300, 200), (200, 300)])
@pytest.mark.parametrize("decay", [0.5, 0.8])
def test_leading_values_and_right_vectors_are_those_of_the_dense_decomposition(
    shape: tuple[int, int], decay: float
) -> None:
    matrices = parts(*shape, decay)
    sketch, (sigma, v, _) = sketched(matrices, 6)
    assert not sketch.whole
    _, exact, vt = torch.linalg.svd(sum(matrices), full_matrices=False)
    torch.testing.assert_close(sigma, exact[:6], rtol=5e-3, atol=0)
    aligned = (v * vt[:6].T).sum(0).abs()
    assert float(aligned.min()) > 0.99
    torch.testing.assert_close(v.T @ v, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_matrix_of_low_rank_is_decomposed_exactly() -> None:
    matrices = parts(300, 200, 0.9, rank=12)
    sketch, (sigma, v, energy) = sketched(matrices, 12)
    assert not sketch.whole
    _, exact, _ = torch.linalg.svd(sum(matrices), full_matrices=False)
    torch.testing.assert_close(sigma, exact[:12], rtol=1e-9, atol=0)
    total = torch.as_tensor(sum(matrices))
    torch.testing.assert_close(total @ v @ v.T, total, rtol=0, atol=1e-9)
    assert float(energy) == pytest.approx(float(total.square().sum()), rel=0.5)


def test_a_flat_spectrum_keeps_to_the_stated_bound() -> None:
    matrices, components = parts(240, 200, 0.99), 10
    _, (sigma, _, _) = sketched(matrices, components)
    exact = torch.linalg.svdvals(torch.as_tensor(sum(matrices)))
    assert bool((sigma <= exact[:components] * (1 + 1e-9)).all())
    generator = torch.Generator().manual_seed(7)
    wide = Sketch(240, 200, components, torch.zeros((), dtype=torch.float64), generator)
    wide.components = wide.width
    for turn in (True, False):
        for part in matrices:
            wide.add(part)
        if turn:
            wide.turn()
    left = exact.square().sum() - wide.spectrum().sigma.square().sum()
    best = exact[components:].square().sum()
    assert float(left) <= (1 + components / (OVERSAMPLING - 1)) * float(best)


def test_a_small_matrix_is_summed_itself_in_one_pass() -> None:
    matrices = parts(12, 9, 0.7)
    sketch, (sigma, v, energy) = sketched(matrices, 5)
    assert sketch.whole
    total = torch.as_tensor(sum(matrices))
    torch.testing.assert_close(sigma, torch.linalg.svdvals(total)[:5])
    torch.testing.assert_close((total @ v).norm(dim=0), sigma)
    torch.testing.assert_close(energy, total.square().sum())


def test_a_sketch_holds_less_than_its_matrix() -> None:
    sketch, _ = sketched(parts(300, 200, 0.5), 6)
    held = [value for value in vars(sketch).values() if isinstance(value, Tensor)]
    assert sum(tensor.numel() for tensor in held) < 300 * 200 / 4
