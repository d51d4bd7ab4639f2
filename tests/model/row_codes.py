"""Code between layers, each a function of x (N, 8): what keeps the rows of a batch apart, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Code = Callable[[Tensor], Tensor]


def self_attention(x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask, is_causal=causal)


def images(x: Tensor) -> Tensor:
    """(N, 2, 2, 2)"""
    return x.view(-1, 2, 2, 2)


def tokens(x: Tensor) -> Tensor:
    """(N, 2, 4)"""
    return x.view(-1, 2, 4)


def volumes(x: Tensor) -> Tensor:
    """(N, 1, 2, 2, 2)"""
    return x.view(-1, 1, 2, 2, 2)


def lengths(x: Tensor) -> Tensor:
    """Which of two tokens is the last of each row, (N,)."""
    return (x[:, :2] > 0).sum(1).clamp(max=1)


def present(x: Tensor) -> Tensor:
    """Which of four tokens each row has, (N, 4); the first always."""
    return (x[:, :4] > 0) | (torch.arange(4) == 0)


def twice(x: Tensor) -> Tensor:
    return x.flatten(1).repeat(1, 2)


def padded(mode: str) -> Code:
    def code(x: Tensor) -> Tensor:
        y = F.pad(images(x), (1, 1, 1, 1), mode=mode)
        return y[..., 1:3, 1:3].flatten(1) + y.amax((1, 2, 3))[:, None]

    return code


def resized(mode: str, antialias: bool = False) -> Code:
    def code(x: Tensor) -> Tensor:
        return F.avg_pool2d(F.interpolate(images(x), scale_factor=2, mode=mode, antialias=antialias), 2).flatten(1)

    return code


def eager_attention(x: Tensor) -> Tensor:
    states = x.view(-1, 2, 4, 1)
    mask = (1 - present(x)[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
    return (((states @ states.mT) / 2 + mask).softmax(-1) @ states).transpose(1, 2).reshape(-1, 8)


def mask_of_causes_and_rows(x: Tensor) -> Tensor:
    states = x.view(-1, 1, 4, 2)
    mask = torch.full((4, 4), -1e4, dtype=x.dtype).triu(1)[None, None].expand(x.shape[0], 1, -1, -1).clone()
    return self_attention(states, mask.masked_fill(~present(x)[:, None, None, :], -1e4)).flatten(1)


def mask_by_numbers_of_rows(x: Tensor) -> Tensor:
    rows, keys = torch.arange(x.shape[0])[:, None, None, None], torch.arange(4)[None, None, None, :]
    return self_attention(x.view(-1, 1, 4, 2), present(x)[rows, keys].expand(x.shape[0], -1, 4, 4)).flatten(1)


def grouped_queries(x: Tensor) -> Tensor:
    keys = images(x)[:, :1]
    return F.scaled_dot_product_attention(images(x), keys, keys, enable_gqa=True).flatten(1)


def windows(x: Tensor) -> Tensor:
    parts = x.view(-1, 1, 2, 2, 2, 1).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 1).softmax(1)
    return parts.view(-1, 1, 2, 2, 2, 1).permute(0, 1, 3, 2, 4, 5).reshape(-1, 8)


def filled(x: Tensor) -> Tensor:
    y = torch.empty(x.shape[0], 8, dtype=x.dtype)
    y[:, :4], y[:, 4:] = x[:, 4:], x[:, :4]
    return y


def without_large(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 1] = 0
    return y


APART: dict[str, Code] = {
    "nothing": lambda x: x,
    "softmax over features": lambda x: x.softmax(1),
    "attention inside a row": lambda x: self_attention(x.view(-1, 2, 1, 4)).reshape(-1, 8),
    "zeros for each row": lambda x: torch.cat([torch.zeros(x.shape[0], 4, dtype=x.dtype), x[:, :4]], 1),
    "a token for each row": lambda x: torch.cat([x.new_ones(1, 4).expand(x.shape[0], -1), x[:, :4]], 1),
    "parts as more rows": lambda x: x.reshape(-1, 4).relu().reshape(-1, 8),
    "length first": lambda x: x.view(-1, 2, 4).transpose(0, 1).softmax(0).transpose(0, 1).reshape(-1, 8),
    "normalised": F.normalize,
    "layer norm": lambda x: F.layer_norm(x, (8,)),
    "outer product of a row": lambda x: torch.einsum("bi,bj->bij", x, x).mean(2),
    "looked up features": lambda x: x[:, [1, 0, 2, 3, 4, 5, 6, 7]],
    "written in place": lambda x: x.mul_(2).add_(1),
    "parts exchanged": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "grouped": lambda x: F.group_norm(x, 2),
    "pooled": lambda x: F.avg_pool2d(x[:, None, None], (1, 3), 1, (0, 1))[:, 0, 0],
    "pooled in channels-last memory": lambda x: (
        F.adaptive_avg_pool2d(images(x).permute(0, 3, 1, 2), 1).flatten(1).repeat(1, 4)
    ),
    "maximum of neighbours": lambda x: F.max_pool2d(images(x), 3, 1, 1).flatten(1),
    "put back": lambda x: F.max_unpool2d(*F.max_pool2d(images(x), 2, return_indices=True), (2, 2)).flatten(1),
    "zeros around": padded("constant"),
    "mirrored around": padded("reflect"),
    "borders around": padded("replicate"),
    "circular": lambda x: F.pad(images(x), (1, 1, 1, 1), mode="circular")[..., 1:3, 1:3].flatten(1),
    "zeros added and removed": lambda x: F.pad(F.pad(x, (0, 2)), (0, -2)),
    "no zeros for rows": lambda x: F.pad(images(x), (0, 1, 0, 0, 0, 0, 0, 0))[..., :2].flatten(1),
    "nearest larger": resized("nearest"),
    "exact nearest larger": resized("nearest-exact"),
    "linear larger": resized("bilinear"),
    "smooth larger": resized("bicubic"),
    "filtered larger": resized("bilinear", antialias=True),
    "area": resized("area"),
    "resized to another": lambda x: F.interpolate(F.avg_pool2d(images(x), 2), images(x).shape[-2:]).flatten(1),
    "sequence resized": lambda x: F.avg_pool1d(F.interpolate(tokens(x), scale_factor=2, mode="linear"), 2).flatten(1),
    "volume resized": lambda x: F.avg_pool3d(F.interpolate(volumes(x), scale_factor=2, mode="trilinear"), 2).flatten(1),
    "patches": lambda x: F.fold(F.unfold(images(x), 1), (2, 2), 1).flatten(1),
    "sampled": lambda x: F.grid_sample(images(x), images(x).tanh(), align_corners=False).flatten(1),
    "windows": windows,
    "channels shuffled": lambda x: F.channel_shuffle(x.view(-1, 4, 1, 2), 2).flatten(1),
    "pixels shuffled": lambda x: F.pixel_shuffle(x.view(-1, 4, 1, 2), 2).flatten(1),
    "instance norm": lambda x: F.instance_norm(images(x)).flatten(1),
    "root mean square": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "heads as more rows": lambda x: images(x).flatten(0, 1).softmax(1).unflatten(0, (-1, 2)).flatten(1),
    "heads as more rows, in another order": lambda x: (
        images(x).permute(0, 3, 1, 2).reshape(-1, 4).softmax(1).view(-1, 2, 2, 2).permute(0, 2, 3, 1).flatten(1)
    ),
    "mean and repeat": lambda x: tokens(x).mean(2, keepdim=True).expand(-1, -1, 4).flatten(1),
    "unequal parts": lambda x: torch.cat(torch.tensor_split(x, 3, 1)[::-1], 1),
    "each row repeated": lambda x: x.repeat_interleave(2, 0).view(-1, 2, 8)[:, 0],
    "attention with a mask of the batch": lambda x: self_attention(
        x.view(-1, 1, 4, 2), present(x)[:, None, None, :]
    ).flatten(1),
    "causal attention": lambda x: self_attention(x.view(-1, 1, 4, 2), causal=True).flatten(1),
    "attention step by step": eager_attention,
    "a mask of causes and rows": mask_of_causes_and_rows,
    "a mask by numbers of rows": mask_by_numbers_of_rows,
    "few keys for many queries": grouped_queries,
    "positions among the present": lambda x: x * ((x > 0).int().cumsum(1) * (x > 0).int()),
    "mean of the present": lambda x: twice(
        (tokens(x) * (x[:, :2, None] > 0)).sum(1) / (x[:, :2, None] > 0).sum(1).clamp(min=1)
    ),
    "last token by number": lambda x: twice(tokens(x)[torch.arange(x.shape[0]), lengths(x)]),
    "last tokens by number": lambda x: tokens(x)[
        torch.arange(x.shape[0])[:, None], lengths(x)[:, None].repeat(1, 2)
    ].flatten(1),
    "last token gathered": lambda x: twice(tokens(x).gather(1, lengths(x)[:, None, None].expand(-1, 1, 4))),
    "last token taken": lambda x: twice(torch.take_along_dim(tokens(x), lengths(x)[:, None, None], 1)),
    "table looked up": lambda x: x + torch.linspace(0, 1, 16, dtype=x.dtype).view(2, 8)[lengths(x)],
    "two indices": lambda x: x + torch.linspace(0, 1, 8, dtype=x.dtype).view(2, 4)[lengths(x), lengths(x)][:, None],
    "one of several": lambda x: x + F.one_hot(lengths(x), 8).to(x.dtype),
    "sorted and put back": lambda x: torch.zeros_like(x).scatter(1, x.argsort(1), x),
    "counted": lambda x: torch.zeros_like(x).scatter_add_(1, (x > 0).long(), x),
    "without large entries": without_large,
    "filled by parts": filled,
    "empty and copied": lambda x: torch.empty_like(x).copy_(x),
    "joined to nothing": lambda x: torch.cat([torch.tensor([], dtype=x.dtype), tokens(x)], -2).flatten(1),
    "frequencies": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=8, dim=1),
    "frequencies in two dimensions": lambda x: torch.fft.fft2(tokens(x)).real.flatten(1),
    "distances inside a row": lambda x: x + torch.cdist(tokens(x), tokens(x)).sum((1, 2))[:, None],
    "diagonal of a row": lambda x: torch.diagonal(torch.einsum("bi,bj->bij", x, x), dim1=1, dim2=2),
    "windows of a row": lambda x: x.unfold(1, 2, 2).flatten(1),
    "a product with a vector": lambda x: (x @ torch.ones(8, dtype=x.dtype))[:, None] + x,
    "between two": lambda x: torch.lerp(x, x.relu(), torch.linspace(0, 1, 8, dtype=x.dtype)),
    "buckets": lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0], dtype=x.dtype)).to(x.dtype),
    "median": lambda x: x - x.median(1)[0][:, None],
    "running maximum": lambda x: x.cummax(1)[0],
}
"""Rows stay apart, and the result is (N, 8)."""

TOGETHER: dict[str, Code] = {
    "mean of the batch": lambda x: x - x.mean(0),
    "mean of the batch for some inputs": lambda x: torch.where(x.max() > 5, x - x.mean(0), x),
    "a branch on the numbers": lambda x: x - x.mean(0) if bool(x.max() > 5) else x,
    "a branch on the number of rows": lambda x: x - x.mean(0) if x.shape[0] > 100 else x,
    "a branch on one number of rows": lambda x: x + 1 if x.shape[0] == 5 else x,
    "divided by the number of rows": lambda x: x / x.shape[0],
    "a number from the numbers": lambda x: x * x.max().item(),
    "products of rows": lambda x: (x @ x.T) @ x,
    "softmax over rows": lambda x: x.softmax(0),
    "rows reversed": lambda x: x.flip(0),
    "rows shifted": lambda x: x.roll(1, 0),
    "rows in random order": lambda x: x[torch.randperm(x.shape[0])],
    "the position in the batch": lambda x: x + torch.arange(x.shape[0])[:, None],
    "the position in the batch, looked up": lambda x: (
        x + torch.linspace(0, 1, 80, dtype=x.dtype).view(10, 8)[torch.arange(x.shape[0])]
    ),
    "the position in the batch as a feature": lambda x: (
        x[torch.arange(x.shape[0]), torch.arange(x.shape[0])][:, None] + x
    ),
    "rows reversed by number": lambda x: x[torch.arange(x.shape[0]).flip(0)],
    "rows shifted by number": lambda x: x[(torch.arange(x.shape[0]) + 1) % x.shape[0]],
    "rows from the second on": lambda x: x + x[torch.arange(1, x.shape[0] + 1) - 1],
    "rows of a constant": lambda x: x + torch.ones(9, 8, dtype=x.dtype)[: x.shape[0]],
    "features as rows": lambda x: x.t().reshape(-1, 8),
    "heads before rows": lambda x: tokens(x).transpose(0, 1).reshape(-1, 4).view(-1, 8),
    "rows as features": lambda x: x.reshape(8, -1).softmax(1).reshape(-1, 8),
    "rows as channels that are shuffled": lambda x: F.channel_shuffle(x.t()[:, :, None], 1)[..., 0].t(),
    "attention between rows": lambda x: self_attention(x[None])[0],
    "attention with the mask of other rows": lambda x: self_attention(
        x.view(-1, 1, 4, 2), present(x).flip(0)[:, None, None, :]
    ).flatten(1),
    "statistics of the batch": lambda x: F.batch_norm(x, None, None, training=True),
    "random numbers": lambda x: F.dropout(x),
    "half of the rows": lambda x: x[: x.shape[0] // 2].repeat(2, 1),
    "a single row": lambda x: x + x[0],
    "rows one by one": lambda x: torch.stack(list(x)),
    "some rows": lambda x: x[x[:, 0] > 0],
    "some entries": lambda x: x + x[x > 0].mean(),
    "rows chosen by numbers": lambda x: x[lengths(x)],
    "the number of rows as a number": lambda x: torch.full((x.shape[0], 8), x.shape[0]) + x,
    "all rows": lambda x: x * (x > 0).any(),
    "a sum over rows written elsewhere": lambda x: x + torch.zeros(8, dtype=x.dtype).add_(x.sum(0)),
    "entries of other rows gathered": lambda x: x.gather(0, (x > 0).long()),
    "entries of other rows taken": lambda x: torch.take_along_dim(x, (x > 0).long(), 0),
    "one row for all taken": lambda x: torch.take_along_dim(x, torch.zeros(1, 8, dtype=torch.long), 1),
    "written into other rows": lambda x: torch.zeros_like(x).scatter(0, (x > 0).long(), x),
    "written into the first row": lambda x: x.scatter(1, torch.zeros(1, 1, dtype=torch.long), 1.0),
    "written in the order of rows": lambda x: x.index_put((x > 0,), x.flatten()[x.flatten() > 0]),
    "a row of zeros added": lambda x: F.pad(x, (0, 0, 0, 1))[1:],
    "rows resized": lambda x: F.interpolate(x.t()[None], scale_factor=2)[0, :, ::2].t(),
    "rows as channels resized": lambda x: F.interpolate(x[None], scale_factor=2)[0, :, ::2],
    "patches of rows": lambda x: F.unfold(x[None, None], (2, 1), padding=(1, 0))[0, 0].view(-1, 8)[1:],
    "frequencies of rows": lambda x: torch.fft.fft(x, dim=0).real,
    "distances of rows": lambda x: x + torch.cdist(x, x).sum(1, keepdim=True),
    "diagonal of products": lambda x: x + torch.diagonal(x @ x.T)[:, None],
    "windows of rows": lambda x: x + x.unfold(0, 2, 1).mean(),
    "rows laid out otherwise": lambda x: x.clone().as_strided_((x.shape[0], 8), (1, x.shape[0])),
    "median of rows": lambda x: x - x.median(0)[0],
    "rows sampled by the grid of one": lambda x: (
        F.grid_sample(images(x).transpose(0, 1), images(x)[:2].tanh(), align_corners=False).transpose(0, 1).flatten(1)
    ),
}
"""Rows interact, perhaps for some inputs only, or depend on their position in the batch."""
