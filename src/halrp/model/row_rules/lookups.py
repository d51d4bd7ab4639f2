"""Operations that read or write entries at given indices."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from halrp.model.row_rules.call import FIRST, Call, RowDim, is_bool, require
from halrp.model.rows import NotRowWise


def embedding(call: Call) -> RowDim:
    """Rows of a table at given indices."""
    return call.rows_of("indices")


def gather(call: Call) -> RowDim:
    """Entries looked up along a dimension, each row in its own."""
    return _each_in_its_own(call, "self", "index")


def taken(call: Call) -> RowDim:
    """Entries looked up along a dimension, by indices that are broadcast in the others."""
    index = call.arguments.get("index", call.arguments.get("indices"))
    same_rank = isinstance(index, Tensor) and index.dim() == call.rank() and call.arguments.get("dim") is not None
    require(same_rank and call.row_dim(index) is not None, "looks up entries of other rows")
    return _each_in_its_own(call, "self")


def scatter(call: Call) -> RowDim:
    """Entries written along a dimension, each row into its own."""
    names = ("self", "index", "src") if isinstance(call.arguments.get("src"), Tensor) else ("self", "index")
    return _each_in_its_own(call, *names)


def _each_in_its_own(call: Call, *names: str) -> RowDim:
    """A row of an index that has fewer than there are would mean the first ones, so all tensors have rows."""
    positions = {call.rows(name) for name in names}
    rows = positions.pop() if len(positions) == 1 else None
    if rows is None or call.arguments["dim"] % call.rank() == rows.dim:
        raise NotRowWise("looks up entries of other rows")
    return rows


def index(call: Call) -> RowDim | None:
    """Entries looked up by indices for some dimensions, which are broadcast against each other."""
    given: Sequence[Tensor | None] = call.arguments["indices"]
    at = [dim for dim, each in enumerate(given) if each is not None]
    indices = [each for each in given if each is not None]
    rows = call.rows("self")
    if not any(call.row_dim(each) is not None for each in indices):
        require(rows is not None and all(dim > rows.dim for dim in at), "looks up rows")
        return rows
    require(not any(is_bool(each) for each in indices), "takes some of the rows")
    joint = _rows_of_indices(call, indices)
    if joint.numbers:
        naming = [dim for dim in at if (named := call.row_dim(given[dim])) is not None and named.numbers]
        require(rows == FIRST and naming == [0], "looks up entries by the position of a row")
        return RowDim(joint.dim)
    require(rows is None, "looks up rows")
    adjacent = at == list(range(at[0], at[-1] + 1))
    return RowDim(joint.dim + (at[0] if adjacent else 0), joint.inner)


def _rows_of_indices(call: Call, indices: Sequence[Tensor]) -> RowDim:
    """Where the rows are after indices have been broadcast; `numbers` if one of them names rows."""
    rank = max(each.dim() for each in indices)
    given = [(rows, each) for each in indices if (rows := call.row_dim(each)) is not None]
    positions = {RowDim(rows.dim + rank - each.dim(), rows.inner) for rows, each in given}
    require(len(positions) == 1, "combines rows that are in different dimensions")
    return positions.pop()._replace(numbers=any(rows.numbers for rows, _ in given))


def masked_write(call: Call) -> RowDim | None:
    """One number written where a mask of the same rows says so."""
    indices, values = call.arguments["indices"], call.arguments["values"]
    rows = call.rows("self")
    one_mask = len(indices) == 1 and indices[0] is not None and is_bool(indices[0])
    require(one_mask and call.row_dim(indices[0]) == rows, "writes entries of other rows")
    require(call.row_dim(values) is None and values.dim() == 0, "writes values in the order of the rows")
    return rows
