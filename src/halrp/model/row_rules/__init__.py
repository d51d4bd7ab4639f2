"""Which operations keep the rows of a batch apart, and where they put them.

A rule says in which dimension of its result an operation puts the rows, given the dimension in which its inputs have
them, or raises `NotRowWise`. An operation without a rule is refused: what is not known to be right is not assumed.

Rows may share their dimension with others: attention folds its heads into it. `RowDim(dim, inner)` means that entry
`row · inner + j` of that dimension belongs to `row`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from halrp.model.row_rules import entries, layers, lookups, views
from halrp.model.row_rules.call import FIRST, Call, RowDim, Rule

__all__ = ["FIRST", "KEEPS_NUMBERS", "SHAPES", "Call", "RowDim", "Rule", "by_shape", "rule_of"]

_RULES: Sequence[tuple[Rule, str]] = (
    (entries.copied, "_to_copy clone alias detach lift_fresh lift_fresh_copy contiguous"),
    (entries.pointwise, "copy_ hardswish hardswish_ masked_fill_.Tensor _conj fill_.Scalar fill_.Tensor zero_"),
    (entries.pointwise, "native_dropout _prelu_kernel log_sigmoid_forward"),
    (entries.constant, "zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like"),
    (entries.constant, "empty.memory_format empty_like new_empty empty_strided new_empty_strided"),
    (entries.numbers, "arange arange.start arange.start_step"),
    (
        entries.reduction,
        "sum.dim_IntList mean.dim amax amin max.dim min.dim argmax argmin prod.dim_int any.dim all.dim any.dims "
        "all.dims logsumexp var.correction std.correction var_mean.correction std_mean.correction linalg_vector_norm "
        "norm.ScalarOpt_dim kthvalue median.dim nanmedian.dim mode nansum count_nonzero.dim_IntList",
    ),
    (
        entries.along,
        "_softmax _log_softmax _safe_softmax cumsum cumprod cummax cummin logcumsumexp sort sort.stable topk flip roll",
    ),
    (entries.along, "glu unfold _fft_c2c _fft_r2c _fft_c2r"),
    (entries.every_entry("self"), "bucketize.Tensor view_as_real"),
    (entries.last(1), "view_as_complex"),
    (entries.last(2), "tril triu"),
    (entries.last(3), "pixel_shuffle pixel_unshuffle channel_shuffle"),
    (entries.last(1), "avg_pool1d max_pool1d adaptive_avg_pool1d"),
    (entries.last(2), "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d"),
    (entries.last(3), "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d"),
    (entries.first("self", 4), "im2col"),
    (entries.first("self", 3), "col2im"),
    (entries.each_first("input", "grid"), "grid_sampler_2d grid_sampler_3d"),
    (entries.each_first("self", "indices"), "max_unpool2d max_unpool3d"),
    (views.view, "view _unsafe_view reshape view_copy"),
    (views.restrided, "as_strided_"),
    (views.permute, "permute"),
    (views.transpose, "transpose.int t transpose_ mT"),
    (views.unsqueeze, "unsqueeze"),
    (views.squeeze, "squeeze squeeze.dim squeeze.dims"),
    (views.expand, "expand"),
    (views.part, "slice.Tensor split.Tensor split_with_sizes unsafe_split.Tensor index_select narrow"),
    (views.select, "select.int unbind.int"),
    (views.diagonal, "diagonal"),
    (views.concatenate, "cat stack"),
    (views.pad, "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d pad"),
    (views.pad, "replication_pad1d replication_pad2d replication_pad3d"),
    (views.repeat, "repeat"),
    (lookups.gather, "gather"),
    (lookups.scatter, "scatter.src scatter_.src scatter.value scatter_.value scatter_add scatter_add_"),
    (lookups.index, "index.Tensor"),
    (lookups.masked_write, "index_put index_put_"),
    (lookups.embedding, "embedding"),
    (layers.product("self", "mat2"), "mm bmm"),
    (layers.product("mat1", "mat2", "self"), "addmm"),
    (layers.product("batch1", "batch2", "self"), "baddbmm"),
    (layers.matrix_times_vector, "mv"),
    (layers.distances, "_cdist_forward"),
    (layers.convolution, "convolution"),
    (layers.batch_norm, "native_batch_norm _native_batch_norm_legit_no_training cudnn_batch_norm"),
    (layers.batch_norm, "_native_batch_norm_legit _native_batch_norm_legit.no_stats"),
    (layers.group_norm, "native_group_norm"),
    (layers.layer_norm, "native_layer_norm _fused_rms_norm"),
    (layers.attention, "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math"),
    (layers.attention, "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"),
    (layers.attention, "_scaled_dot_product_cudnn_attention"),
)
_BY_NAME = {
    f"aten.{name}" if "." in name else f"aten.{name}.default": rule for rule, names in _RULES for name in names.split()
}
SHAPES = frozenset(
    {
        views.view,
        views.restrided,
        views.expand,
        views.repeat,
        views.part,
        entries.constant,
        entries.numbers,
        layers.group_norm,
    }
)
"""Rules of operations whose arguments may be sizes, and so the number of rows."""
KEEPS_NUMBERS = frozenset(
    {
        entries.copied,
        views.view,
        views.expand,
        views.part,
        views.unsqueeze,
        views.squeeze,
        views.permute,
        views.transpose,
    }
)
"""Rules of operations after which numbers of rows are still that."""
_BY_SHAPE = frozenset(
    {
        *("convolution", "constant_pad_nd", "channel_shuffle", "im2col", "col2im"),
        *("_fft_c2c", "_fft_r2c", "_fft_c2r", "addcmul", "addcdiv", "lerp"),
    }
)
"""Operations whose results' shapes torch computes from numbers, not from a symbol."""


def rule_of(operation: torch._ops.OpOverload) -> Rule | None:
    """The rule of an operation, or None if it is not known to keep rows apart."""
    rule = _BY_NAME.get(str(operation))
    if rule is None and (torch.Tag.pointwise in operation.tags or _writes_entries(operation)):
        return entries.pointwise
    return rule


def _writes_entries(operation: torch._ops.OpOverload) -> bool:
    """Whether an operation writes the result of one on single entries over its first argument."""
    name, _, overload = str(operation).removeprefix("aten.").partition(".")
    plain = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") and not name.endswith("__") else None
    if plain is None or overload not in plain.overloads():
        return False
    return torch.Tag.pointwise in getattr(plain, overload).tags


def by_shape(operation: torch._ops.OpOverload) -> bool:
    """Whether an operation must be known by the shapes that it gives for numbers of rows."""
    return str(operation).split(".")[1] in _BY_SHAPE
