"""Consolidation of `apd`: tasks whose tensors nearly agree share the elements that agree.

The input is one tensor per task, all of one shape, for one layer. K-means puts tasks into groups. Within a group,
elements whose range over the members is at most β are stored once, as the middle of that range, and become zero in
every member. No element of any task's sum moves by more than β/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

STEPS = 100
ALONE = -1
"""The group of a task that shares nothing."""


class Consolidated(NamedTuple):
    """A layer's tensors after consolidation: task i has private[i], plus local[groups[i]] unless it is alone."""

    private: list[Tensor]
    local: list[Tensor]
    groups: list[int]
    centroids: list[Tensor]
    """Of all clusters; the next consolidation starts from them."""


def consolidate(
    tensors: Sequence[Tensor],
    clusters: int,
    beta: float,
    previous: Sequence[Tensor] = (),
    generator: torch.Generator | None = None,
) -> Consolidated:
    """Group one tensor per task, all of the same shape; each group of two or more shares the elements that agree."""
    assignment, centroids = k_means(tensors, first_centroids(tensors, clusters, previous, generator))
    private, local, groups = list(tensors), list[Tensor](), [ALONE] * len(tensors)
    for cluster in range(len(centroids)):
        members = [i for i, assigned in enumerate(assignment) if assigned == cluster]
        if len(members) < 2:
            continue
        common, rest = merge([tensors[i] for i in members], beta)
        for i, tensor in zip(members, rest, strict=True):
            private[i], groups[i] = tensor, len(local)
        local.append(common)
    return Consolidated(private, local, groups, centroids)


def first_centroids(
    tensors: Sequence[Tensor], clusters: int, previous: Sequence[Tensor] = (), generator: torch.Generator | None = None
) -> list[Tensor]:
    """The initial centroids of k-means: those of the previous round, then tensors of distinct random tasks.

    There are at most as many clusters as tensors.
    """
    clusters = min(clusters, len(tensors))
    chosen = torch.randperm(len(tensors), generator=generator).tolist()[:clusters]
    return [*previous[:clusters], *(tensors[i] for i in chosen[len(previous) :])]


def k_means(
    points: Sequence[Tensor], centroids: Sequence[Tensor], steps: int = STEPS
) -> tuple[list[int], list[Tensor]]:
    """The cluster of every point and the clusters' centroids, by Lloyd's steps; all tensors have one shape.

    Distances are Euclidean over all elements. A cluster that loses all its points keeps its centroid.
    """
    centroids, assignment = list(centroids), list[int]()
    for _ in range(steps):
        updated = [nearest(point, centroids) for point in points]
        if updated == assignment:
            break
        assignment = updated
        for cluster in set(assignment):
            members = [p for p, a in zip(points, assignment, strict=True) if a == cluster]
            centroids[cluster] = reduce(torch.add, members) / len(members)
    return assignment, centroids


def nearest(point: Tensor, centroids: Sequence[Tensor]) -> int:
    """The index of the centroid nearest to a point; the first of equals."""
    return int(torch.stack([(point - centroid).square().sum() for centroid in centroids]).argmin())


def merge(members: Sequence[Tensor], beta: float) -> tuple[Tensor, list[Tensor]]:
    """The tensor that a group shares, and the rest of each member; all of one shape.

    Where max − min ≤ β the group has (max + min) / 2 and the members 0; elsewhere the group has 0 and the members
    keep their values.
    """
    high, low = reduce(torch.maximum, members), reduce(torch.minimum, members)
    agree = high - low <= beta
    common = torch.where(agree, (high + low) / 2, 0)
    return common, [torch.where(agree, 0, member) for member in members]
