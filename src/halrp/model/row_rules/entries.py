"""Operations on single entries, along dimensions, and on the last or first of them."""

from __future__ import annotations

from halrp.model.row_rules.call import FIRST, Call, RowDim, Rule, require


def pointwise(call: Call) -> RowDim | None:
    """Entries meet those at the same position after broadcasting: rows must be in the same dimension from behind."""
    rank, positions = call.result.dim(), set()
    for tensor in call.tensors():
        rows = call.row_dim(tensor)
        if rows is not None:
            positions.add(RowDim(rows.dim + rank - tensor.dim(), rows.inner))
    require(len(positions) == 1, "combines rows that are in different dimensions")
    return positions.pop()


def copied(call: Call) -> RowDim | None:
    """The same entries, perhaps of another type."""
    return pointwise(call)


def constant(call: Call) -> RowDim | None:
    """The same number everywhere, so rows are wherever the size is theirs."""
    sizes = [(dim, call.multiple(size)) for dim, size in enumerate(call.result.shape)]
    dims = [RowDim(dim, factor) for dim, factor in sizes if factor is not None]
    require(len(dims) <= 1, "makes a tensor with two dimensions of rows")
    return dims[0] if dims else None


def numbers(call: Call) -> RowDim | None:
    """The numbers 0, 1, … of all rows."""
    start, step = call.arguments.get("start", 0), call.arguments.get("step", 1)
    counts = (type(start), type(step)) == (int, int) and (start, step) == (0, 1)
    require(counts and call.multiple(call.result.shape[0]) == 1, "computes with the number of rows")
    return RowDim(0, 1, numbers=True)


def reduction(call: Call) -> RowDim:
    """Combines the entries along dimensions, which must not be that of the rows."""
    rows, rank = call.rows_of("self"), call.rank()
    dims = call.dims("dim", rank)
    require(rows.dim not in dims, "combines rows")
    removed = 0 if call.arguments.get("keepdim") else sum(dim < rows.dim for dim in dims)
    return RowDim(rows.dim - removed, rows.inner)


def along(call: Call) -> RowDim:
    """Combines the entries along dimensions, and keeps them."""
    rows = call.rows_of("self")
    name = next(name for name in ("dim", "dims", "dimension") if name in call.arguments)
    require(rows.dim not in call.dims(name, call.rank()), "combines rows")
    return rows


def last(count: int, name: str = "self") -> Rule:
    """Combines the last dimensions."""

    def rule(call: Call) -> RowDim:
        rows = call.rows_of(name)
        require(rows.dim < call.rank(name) - count, "combines rows")
        return rows

    return rule


def first(name: str, rank: int | None = None) -> Rule:
    """Treats the entries of the first dimension independently; of tensors with `rank` dimensions, if given."""

    def rule(call: Call) -> RowDim:
        rows = call.rows_of(name)
        require(rows.dim == 0, f"sees rows in dimension {rows.dim}")
        require(rank is None or call.rank(name) == rank, "sees inputs without a dimension of rows")
        return rows

    return rule


def each_first(*names: str) -> Rule:
    """Combines the entries of the first dimension of several tensors with each other, one by one."""

    def rule(call: Call) -> RowDim:
        require(all(call.rows(name) == FIRST for name in names), "does not see rows first in every input")
        return FIRST

    return rule


def every_entry(name: str) -> Rule:
    """Treats every entry of one argument independently, given the others."""

    def rule(call: Call) -> RowDim:
        return call.rows_of(name)

    return rule
