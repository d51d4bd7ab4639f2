"""Functions of torch in which rows meet tensors of each task, computed for all rows in one call.

Calling a function for one task after another is always right (`per_task`); these forms give the same and cost less
where there are many tasks: arithmetic and norms give each row its task's tensor, and layers with an adapted weight
share the product with the base's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from halrp.model.kernels import Geometry
from halrp.model.layers.conv import mixed_convolution
from halrp.model.layers.embedding import MixedEmbedding
from halrp.model.layers.linear import MixedLinear
from halrp.model.layers.stacks import TaskTensor, scale_and_shift
from halrp.model.per_task import ONE_CALL, Join, PerTask, flatten, name_of
from halrp.model.rows import rows_of

Form = Callable[[Join], Tensor | None]


def one_call(*functions: Callable[..., Any]) -> Callable[[Form], Form]:
    """Register what computes all rows of functions in one call."""

    def register(form: Form) -> Form:
        ONE_CALL.update(dict.fromkeys(functions, form))
        return form

    return register


_ARITHMETIC = ("add", "sub", "mul", "div", "true_divide")
_OPERATORS = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "iadd", "isub", "imul", "itruediv")


@one_call(
    *(getattr(torch, name) for name in _ARITHMETIC),
    *(getattr(Tensor, name + end) for name in _ARITHMETIC for end in ("", "_")),
    *(getattr(Tensor, f"__{name}__") for name in _OPERATORS),
    torch.where,
    Tensor.where,
    torch.addcmul,
    Tensor.addcmul,
)
def pointwise(join: Join) -> Tensor | None:
    """Entries meet those at the same position after broadcasting, and rows are first."""
    leaves, spec = flatten(join.args, join.kwargs)
    x = max((leaf for leaf in leaves if join.has_rows(leaf)), key=Tensor.dim)
    given = [_spread(join, leaf, x) if isinstance(leaf, PerTask) else leaf for leaf in leaves]
    if any(isinstance(leaf, PerTask) and value is None for leaf, value in zip(leaves, given, strict=True)):
        return None
    args, kwargs = torch.utils._pytree.tree_unflatten(given, spec)
    result: Tensor = join.function(*args, **kwargs)
    return result


def _spread(join: Join, tensor: PerTask, x: Tensor) -> Tensor | None:
    """Each row's tensor, to broadcast against x (N, ...), or None if it has more dimensions than a row."""
    missing = x.dim() - tensor.dim()
    if missing > 0:
        return join.current.per_row(tensor, x.shape[0], [1] * (missing - 1) + list(tensor.shape))
    return join.current.per_row(tensor, x.shape[0], tensor.shape[1:]) if not missing and tensor.shape[0] == 1 else None


def _last(join: Join, tensor: Tensor | None, x: Tensor) -> Tensor | None:
    """Scale or shift of the last dimensions, for each row where tasks have their own."""
    return _spread(join, tensor, x) if isinstance(tensor, PerTask) else tensor


def _channels(join: Join, tensor: Tensor | None, x: Tensor) -> Tensor | None:
    """Scale or shift of the channels of x (N, C, *space)."""
    if tensor is None:
        return None
    ones = [1] * (x.dim() - 2)
    if isinstance(tensor, PerTask):
        return join.current.per_row(tensor, x.shape[0], (-1, *ones))
    return tensor.view(-1, *ones)


@one_call(F.layer_norm)
def layer_norm(join: Join) -> Tensor | None:
    """Normalise all rows, then scale and shift each by its task."""

    def form(input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if not join.has_rows(input):
            return None
        y = F.layer_norm(input, normalized_shape, eps=eps)
        return scale_and_shift(y, _last(join, weight, y), _last(join, bias, y))

    return form(*join.args, **join.kwargs)  # type: ignore[no-any-return]


@one_call(F.rms_norm)
def rms_norm(join: Join) -> Tensor | None:
    """The same for root-mean-square norms."""

    def form(input: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        if not join.has_rows(input):
            return None
        y = F.rms_norm(input, normalized_shape, eps=eps)
        return scale_and_shift(y, _last(join, weight, y), None)

    return form(*join.args, **join.kwargs)  # type: ignore[no-any-return]


@one_call(F.group_norm)
def group_norm(join: Join) -> Tensor | None:
    """The same for group norms."""

    def form(input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if not join.has_rows(input):
            return None
        y = F.group_norm(input, num_groups, eps=eps)
        return scale_and_shift(y, _channels(join, weight, y), _channels(join, bias, y))

    return form(*join.args, **join.kwargs)  # type: ignore[no-any-return]


@one_call(torch.batch_norm)
def batch_norm_operation(join: Join) -> Tensor | None:
    """Batch norms as older versions of torch call them."""
    x, weight, bias, mean, variance, training, _, eps, _ = join.args
    return _batch_norm(join, x, mean, variance, weight, bias, training, eps)


@one_call(F.batch_norm)
def batch_norm(join: Join) -> Tensor | None:
    """Running statistics are part of scale and shift."""

    def form(
        input: Tensor,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        return _batch_norm(join, input, running_mean, running_var, weight, bias, training, eps)

    return form(*join.args, **join.kwargs)  # type: ignore[no-any-return]


def _batch_norm(
    join: Join, x: Tensor, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, eps: float
) -> Tensor | None:
    if training or mean is None or not join.has_rows(x):
        return None
    means, variances = (cast(Tensor, _channels(join, each, x)) for each in (mean, variance))
    weights, biases = _channels(join, weight, x), _channels(join, bias, x)
    scale = (variances + eps).rsqrt()
    scale = scale if weights is None else scale * weights
    shift = -means * scale if biases is None else biases - means * scale
    return scale_and_shift(x, scale, shift, overwrite=False)


def _adapted(join: Join, weight: object) -> TaskTensor | None:
    """A tensor of the model for which some task that is present has factors."""
    source = weight.source if isinstance(weight, PerTask) else None
    present = join.current.rows.groups
    factored = isinstance(source, TaskTensor) and any(source.factors[task] is not None for task, _ in present)
    return source if isinstance(source, TaskTensor) and factored else None


@one_call(F.linear)
def linear(join: Join) -> Tensor | None:
    """One product with the base's weight for all rows."""

    def form(input: Tensor, weight: Any, bias: Any = None) -> Any:
        adapted = _adapted(join, weight)
        if adapted is None or not join.has_rows(input) or input.dim() < 2:
            return None
        y = MixedLinear(name_of(join.function), adapted.stack, None)(input)
        return scale_and_shift(y, None, _last(join, bias, y))

    return form(*join.args, **join.kwargs)  # type: ignore[no-any-return]


@one_call(torch.matmul, Tensor.matmul, Tensor.__matmul__)
def product(join: Join) -> Tensor | None:
    """One product with the base's matrix for all rows, x W for W (I, J)."""
    x, weight = join.args if len(join.args) == 2 else (None, None)
    adapted = _adapted(join, weight)
    if adapted is None or not isinstance(x, Tensor) or not join.has_rows(x):
        return None
    if adapted.shared.dim() != 2 or x.dim() < 2:
        return None
    return MixedLinear(name_of(join.function), adapted.transposed, None)(x)


@one_call(F.conv1d, F.conv2d, F.conv3d)
def convolution(join: Join) -> Tensor | None:
    """One convolution with the base's weight for all rows."""

    def form(
        input: Tensor,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        adapted, space = _adapted(join, weight), weight.dim() - 2
        if adapted is None or not join.has_rows(input) or isinstance(padding, str):
            return None
        rows = rows_of(input, name_of(join.function), weight.dim())
        window = Geometry(_for_each(stride, space), _for_each(padding, space), _for_each(dilation, space), groups)
        y = mixed_convolution(input, rows, adapted.stack, None, window)
        return scale_and_shift(y, None, _channels(join, bias, y))

    return form(*join.args, **join.kwargs)  # type: ignore[no-any-return]


def _for_each(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


@one_call(F.embedding)
def embedding(join: Join) -> Tensor | None:
    """The rows of the tokens at hand, each from its task's table."""

    def form(input: Tensor, weight: Any, padding_idx: Any = None, max_norm: Any = None, *_: Any, **__: Any) -> Any:
        adapted = _adapted(join, weight)
        if adapted is None or max_norm is not None or not join.has_rows(input):
            return None
        return MixedEmbedding(name_of(join.function), adapted.stack)(input)

    return form(*join.args, **join.kwargs)  # type: ignore[no-any-return]
