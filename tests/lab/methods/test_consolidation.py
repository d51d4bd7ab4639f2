"""Consolidation of sparse parts: clusters, what groups share, and how far anything moves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from halrp import seeding
from halrp.lab.methods.consolidation import ALONE, Consolidated, consolidate, first_centroids, k_means, merge


def tensors(count: int, *shape: int, spread: float = 1.0, name: str = "points") -> list[Tensor]:
    generator = seeding.generator(name)
    return [spread * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


def sums(result: Consolidated) -> list[Tensor]:
    pairs = zip(result.private, result.groups, strict=True)
    return [private if group == ALONE else private + result.local[group] for private, group in pairs]


def two_kinds() -> list[Tensor]:
    """Five tensors around two far centres: 0, 2 and 4 around the one, 1 and 3 around the other."""
    centres = tensors(2, 3, 4, spread=10.0, name="centres")
    return [centres[i % 2] + 0.01 * noise for i, noise in enumerate(tensors(5, 3, 4))]


def test_k_means_finds_clusters_that_lie_apart() -> None:
    points = two_kinds()
    assignment, centroids = k_means(points, [points[0], points[1]])
    assert assignment == [0, 1, 0, 1, 0]
    torch.testing.assert_close(centroids[0], (points[0] + points[2] + points[4]) / 3)
    torch.testing.assert_close(centroids[1], (points[1] + points[3]) / 2)


def test_k_means_ends_where_no_point_is_nearer_to_another_centroid() -> None:
    points = tensors(30, 5)
    assignment, centroids = k_means(points, points[:6])
    distances = torch.cdist(torch.stack(points), torch.stack(centroids))
    assert distances.argmin(1).tolist() == assignment
    for cluster in set(assignment):
        members = torch.stack([p for p, a in zip(points, assignment, strict=True) if a == cluster])
        torch.testing.assert_close(centroids[cluster], members.mean(0))


def test_an_empty_cluster_keeps_its_centroid() -> None:
    points = tensors(4, 6)
    far = torch.full((6,), 1e6, dtype=torch.float64)
    assignment, centroids = k_means(points, [points[0], far])
    assert assignment == [0, 0, 0, 0]
    assert torch.equal(centroids[1], far)
    result = consolidate(points, 2, 0.1, [points[0], far])
    assert all(bool(t.isfinite().all()) for t in (*result.private, *result.local, *result.centroids))
    assert len(result.local) == 1


def test_no_steps_more_than_allowed_are_made() -> None:
    points = tensors(30, 5)
    assert not torch.equal(torch.stack(k_means(points, points[:6], 1)[1]), torch.stack(k_means(points, points[:6])[1]))


def test_previous_centroids_come_first_and_drawn_tasks_are_distinct() -> None:
    points, previous = tensors(10, 4), tensors(2, 4, name="previous")
    begin = first_centroids(points, 4, previous, seeding.generator("clusters"))
    assert begin[0] is previous[0]
    assert begin[1] is previous[1]
    taken = [next(i for i, p in enumerate(points) if p is c) for c in begin[2:]]
    assert len(set(taken)) == 2
    again = first_centroids(points, 4, previous, seeding.generator("clusters"))
    assert all(a is b for a, b in zip(begin, again, strict=True))
    others = {tuple(id(c) for c in first_centroids(points, 4, [], seeding.generator(i))) for i in range(5)}
    assert len(others) > 1


def test_there_are_no_more_clusters_than_tasks() -> None:
    points = tensors(3, 4)
    result = consolidate(points, 7, 0.1, generator=seeding.generator("clusters"))
    assert len(result.centroids) == 3
    assert result.groups == [ALONE] * 3
    assert not result.local


def test_merged_elements_are_the_middle_and_the_others_stay() -> None:
    a = torch.tensor([1.0, 2.0, -1.0, 0.0])
    b = torch.tensor([1.2, 5.0, -1.1, 0.0])
    common, (first, second) = merge([a, b], 0.25)
    torch.testing.assert_close(common, torch.tensor([1.1, 0.0, -1.05, 0.0]))
    assert first.tolist() == [0.0, 2.0, 0.0, 0.0]
    assert second.tolist() == [0.0, 5.0, 0.0, 0.0]


def test_the_range_counts_over_all_members() -> None:
    # Neighbours are within 0.2 of each other; the outermost are not.
    common, rest = merge([torch.tensor([x]) for x in (0.0, 0.15, 0.3)], 0.2)
    assert common.item() == 0
    assert [round(t.item(), 2) for t in rest] == [0.0, 0.15, 0.3]


@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.02, 0.5])
def test_no_sum_drifts_by_more_than_half_of_beta(beta: float) -> None:
    points = two_kinds()
    result = consolidate(points, 2, beta, [points[0], points[1]])
    assert result.groups == [0, 1, 0, 1, 0]
    drift = max(float((a - b).abs().max()) for a, b in zip(sums(result), points, strict=True))
    assert drift <= beta / 2 * (1 + 1e-12)
    if beta == 0.02:
        assert drift > 0
        assert any(bool((t == 0).any()) and bool((t != 0).any()) for t in result.private), "some merge"


def test_with_beta_zero_only_equal_elements_merge_and_no_bit_changes() -> None:
    points = [t.float() for t in tensors(3, 20)]
    for point in points:
        point[:5] = points[0][:5]
    result = consolidate(points, 1, 0.0)
    assert result.groups == [0, 0, 0]
    assert torch.equal(result.local[0][:5], points[0][:5])
    assert not result.local[0][5:].any()
    assert all(torch.equal(a, b) for a, b in zip(sums(result), points, strict=True))


def test_with_infinite_beta_members_have_nothing_of_their_own() -> None:
    points = two_kinds()
    result = consolidate(points, 2, math.inf, [points[0], points[1]])
    assert not any(bool(private.any()) for private in result.private)
    pair = torch.stack([points[1], points[3]])
    assert torch.equal(result.local[1], (pair.amax(0) + pair.amin(0)) / 2)


def test_a_task_alone_keeps_its_tensor_as_it_is() -> None:
    points = [*two_kinds()[:4], torch.full((3, 4), 99.0, dtype=torch.float64)]
    result = consolidate(points, 3, math.inf, [points[0], points[1], points[4]])
    assert result.groups == [0, 1, 0, 1, ALONE]
    assert result.private[4] is points[4]
    assert len(result.local) == 2


def test_inputs_are_left_as_they_are() -> None:
    points = two_kinds()
    before = [p.clone() for p in points]
    begin = [points[0].clone(), points[1].clone()]
    consolidate(points, 2, 0.02, begin)
    assert all(torch.equal(a, b) for a, b in zip(points, before, strict=True))
    assert torch.equal(begin[0], before[0])
