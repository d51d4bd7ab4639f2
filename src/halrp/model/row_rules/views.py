"""Operations that give the same entries under other shapes, parts of them, or several tensors as one."""

from __future__ import annotations

import math

from halrp.model.row_rules.call import Call, RowDim, require, same_number
from halrp.model.row_rules.entries import constant
from halrp.model.rows import NotRowWise


def view(call: Call) -> RowDim:
    """The same entries in the same order under other sizes."""
    rows, before = call.rows_of("self"), call.arguments["self"].shape
    span = rows.inner * math.prod(before[rows.dim + 1 :])
    """Entries in succession that belong to one row."""
    after = call.result.shape
    for dim, size in enumerate(after):
        factor = call.multiple(size)
        if factor is not None:
            trailing = math.prod(after[dim + 1 :])
            same = factor * trailing == span and math.prod(after[:dim]) == math.prod(before[: rows.dim])
            require(same, "splits or joins rows in an order that is not theirs")
            return RowDim(dim, factor)
    raise NotRowWise("gives a shape without a dimension of rows")


def restrided(call: Call) -> RowDim:
    """The same entries in the same places; strides of dimensions with a single entry do not matter."""
    rows, tensor = call.rows_of("self"), call.arguments["self"]
    sizes, strides = call.before
    require(len(sizes) == tensor.dim() and not call.arguments["storage_offset"], "lays entries out in another way")
    for size, new_size, stride, new_stride in zip(sizes, tensor.shape, strides, tensor.stride(), strict=True):
        single = isinstance(size, int) and size == 1
        same = same_number(size, new_size) and (single or same_number(stride, new_stride))
        require(same, "lays entries out in another way")
    return rows


def permute(call: Call) -> RowDim:
    """Dimensions in another order."""
    rows, rank = call.rows_of("self"), call.rank()
    order = [dim % rank for dim in call.arguments["dims"]]
    return RowDim(order.index(rows.dim), rows.inner)


def transpose(call: Call) -> RowDim:
    """Two dimensions exchanged."""
    rows, rank = call.rows_of("self"), call.rank()
    dims = [call.arguments.get(name, default) % rank for name, default in (("dim0", -1), ("dim1", -2))] if rank else []
    swap = dict(zip(dims, reversed(dims), strict=True))
    return RowDim(swap.get(rows.dim, rows.dim), rows.inner)


def unsqueeze(call: Call) -> RowDim:
    """A new dimension of size one."""
    rows = call.rows_of("self")
    dim = call.arguments["dim"] % (call.rank() + 1)
    return RowDim(rows.dim + (dim <= rows.dim), rows.inner)


def squeeze(call: Call) -> RowDim:
    """Without some dimensions of size one."""
    rows, shape = call.rows_of("self"), call.arguments["self"].shape
    gone = [dim for dim in call.dims("dim", len(shape)) if isinstance(shape[dim], int) and shape[dim] == 1]
    return RowDim(rows.dim - sum(dim < rows.dim for dim in gone), rows.inner)


def expand(call: Call) -> RowDim | None:
    """Repeated along dimensions of size one; for a tensor without rows, perhaps once for each row."""
    rows = call.row_dim(call.arguments["self"])
    if rows is None:
        return constant(call)
    return RowDim(rows.dim + call.result.dim() - call.rank(), rows.inner)


def part(call: Call) -> RowDim:
    """Some of the entries along a dimension, which stays; rows may only be taken all together."""
    rows = call.rows_of("self")
    if rows.dim in call.dims("dim", call.rank()):
        same = call.multiple(call.result.shape[rows.dim]) == rows.inner
        require(same and call.arguments.get("step", 1) == 1, "takes some of the rows")
    return rows


def select(call: Call) -> RowDim:
    """One entry along a dimension, which is removed."""
    rows, rank = call.rows_of("self"), call.rank()
    dim = call.arguments["dim"] % rank
    require(dim != rows.dim, "takes a single row")
    return RowDim(rows.dim - (dim < rows.dim), rows.inner)


def diagonal(call: Call) -> RowDim:
    """The entries at equal positions of two dimensions, which are replaced by one at the end."""
    rows, rank = call.rows_of("self"), call.rank()
    dims = [call.arguments[name] % rank for name in ("dim1", "dim2")]
    require(rows.dim not in dims, "combines rows")
    return RowDim(rows.dim - sum(dim < rows.dim for dim in dims), rows.inner)


def concatenate(call: Call) -> RowDim:
    """Tensors one after the other along a dimension, all with rows in another one; empty vectors are left out."""
    given = call.arguments["tensors"]
    tensors = [each for each in given if each.dim() != 1 or call.row_dim(each) is not None or each.shape[0] != 0]
    positions = {call.row_dim(tensor) for tensor in tensors}
    rows = positions.pop() if len(positions) == 1 else None
    if rows is None:
        raise NotRowWise("joins tensors whose rows are in different dimensions, or that have none")
    dim = call.arguments.get("dim", 0) % call.result.dim()
    if call.result.dim() > tensors[0].dim():
        return RowDim(rows.dim + (dim <= rows.dim), rows.inner)
    require(dim != rows.dim, "joins rows")
    return rows


def pad(call: Call) -> RowDim:
    """Entries added at the ends of the last dimensions, given as pairs from behind."""
    rows, rank = call.rows_of("self"), call.rank()
    added = call.arguments["pad" if "pad" in call.arguments else "padding"]
    pair = 2 * (rank - 1 - rows.dim)
    require(not any(added[pair : pair + 2]), "adds rows")
    return rows


def repeat(call: Call) -> RowDim | None:
    """Repeated along dimensions, not that of the rows; a tensor without rows perhaps once for each row."""
    repeats = call.arguments["repeats"]
    if call.row_dim(call.arguments["self"]) is None:
        return constant(call)
    rows = call.rows_of("self")
    dim = rows.dim + len(repeats) - call.rank()
    require(repeats[dim] == 1, "repeats rows")
    return RowDim(dim, rows.inner)
