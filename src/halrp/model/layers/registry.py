"""Layer rules: all that the library knows about a layer type, registered with `@layer_rule`.

A `LayerRule` answers five questions about a layer type: what happens to its parameters (`plan`), how a task's layer
computes (`adapted`, a class with its `forward`), how one pass computes rows of different tasks (`mixed`), which rows
make the Kronecker factors of its weight (`input_rows`, `gradient_rows`), and how its weight becomes a matrix, which
decides what a component costs (`matrix_widths`). Each has a default, so a rule writes only what is special.

A user registers a class of one of two kinds:

- an adapted layer, which derives from `Adapted` (or from a family such as `LinearFamily`) and from the layer's type;
- a subclass of `LayerRule`, when there is more to say.

What a rule has neither written nor inherited it lacks: `lacks` lists it, and the library falls back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, cast

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from halrp.errors import SettingError
from halrp.model.factors import Factors, merge
from halrp.model.layers.stacks import LayerTasks

Kind = Literal["adapted", "owned", "shared"]
Role = Literal["weight", "bias", "norm", "head", "other", "buffer"]
Part = Literal["mixed", "moments"]


class Decision(NamedTuple):
    """What happens to one parameter, and why."""

    kind: Kind
    role: Role
    reason: str
    by_rule: bool = False
    """Adapted through the layer's adapted form rather than through the merged weight."""


class MomentSums(Protocol):
    """Where a rule adds the rows that make a weight's Kronecker factors."""

    def add_inputs(self, rows: Tensor) -> None:
        """Add input rows (N·L, I·K)."""

    def add_gradients(self, rows: Tensor) -> None:
        """Add output-gradient rows (N·L, J)."""


class LayerRule:
    """What the library knows about one layer type. The defaults hold for any layer that reads its parameters."""

    adapted: type[Adapted] | None = None
    """The adapted form of the layer; None adapts its weights through torch's parametrization (`merged`)."""
    lacks: tuple[Part, ...] = ()
    """Parts to do without although they are inherited; after registration, all that the rule does not have."""
    kernel: ClassVar[bool] = False
    """Whether the dimensions of a weight after the second are positions of a convolution's kernel."""
    inputs_first: ClassVar[bool] = False
    """Whether a weight is (I, J), so that its rows meet the inputs and its columns make the outputs."""
    trained_buffers: ClassVar[tuple[str, ...]] = ()
    """Buffers that training the layer changes."""
    reads_children: ClassVar[bool] = False
    """Whether the layer reads the tensors of the layers inside it, so that it has one mixed form with them."""
    hides_tensors: ClassVar[bool] = True
    """Whether tensors that tasks change are removed from the layer in its mixed form: code that reads them instead of
    calling the layer would get the base's, and without them it fails and is noticed."""
    reads_few_rows: ClassVar[bool] = False
    """Whether a forward pass reads few rows of the weight, so that merging all of them never pays."""
    copied_by_torch: ClassVar[bool] = False
    """Whether torch copies the layer's tensors although it only reads them, so that sharing their memory saves none."""
    cudnn_eval_gradients: ClassVar[bool] = True
    """Whether cuDNN can differentiate the layer in evaluation mode."""

    def __init__(self, layer_type: type[nn.Module], adapted: type[Adapted] | None = None) -> None:
        """Make the rule of a layer type; `adapted` is its adapted form if the class names none."""
        self.layer_type = layer_type
        self.adapted = adapted or self.adapted
        written = {part for part, method in _METHODS.items() if getattr(type(self), method) is not _default(method)}
        declared = {*self.lacks, *getattr(adapted, "lacks", ())}
        unknown = declared - _METHODS.keys()
        if unknown:
            raise SettingError(
                f"the layer rule for {layer_type.__name__} lacks {', '.join(map(repr, sorted(unknown)))}, which is "
                f"no part of a rule; choose from {', '.join(map(repr, _METHODS))}"
            )
        self.lacks = tuple(part for part in _METHODS if part in declared or part not in written)

    def plan(self, layer: nn.Module, leaf: str, parameter: Tensor, tied: bool) -> Decision:
        """Decide what happens to a trainable parameter; `tied` says that other layers hold it too.

        A layer that is not of exactly the rule's type may compute something else, so its weight is merged.
        """
        if parameter.dim() < 2:
            return Decision("owned", _role_of_vector(layer, leaf), "fewer than two dimensions")
        rows, columns = parameter.shape[:2]
        component = rows + min(self.matrix_widths(parameter.shape).values())
        if rows + columns + component >= parameter.numel():
            return Decision("owned", "weight", "so small that a delta of rank 1 would cost as much")
        kind = type(layer).__name__
        if leaf == "weight" and adapted_form(layer) is not None and not tied:
            lacking = ", which has " + " and ".join(f"no {_TITLES[part]}" for part in self.lacks) if self.lacks else ""
            return Decision("adapted", "weight", f"rule for {kind}{lacking}", by_rule=True)
        return Decision("adapted", "weight", f"merged weight of {kind}")

    def matrix_widths(self, shape: Sequence[int]) -> dict[str, int]:
        """How many columns a weight of this shape has as a matrix, by view: "full", and "mean" over a kernel."""
        full = {"full": math.prod(shape[1:])}
        return {"mean": shape[1]} | full if self.kernel and len(shape) > 2 else full

    def prepare_mixed(self, path: str, layer: nn.Module) -> None:
        """Prepare any layer of this family for a pass over mixed rows, or raise `NotRowWise` if it mixes them."""

    def mixed(self, tasks: LayerTasks) -> Callable[..., Any]:
        """The layer's forward pass for rows of different tasks, which come first, or raise `NotRowWise`."""
        raise NotImplementedError

    def last_dims(self, layer: nn.Module) -> int | None:
        """How many of the last dimensions a layer combines, if rows may be in any of the others.

        Default: None, rows must come first.
        """
        return None

    def measures(self, layer: nn.Module) -> bool:
        """Whether the Kronecker factors of this layer's weight can be collected."""
        return "moments" not in self.lacks

    def input_rows(self, layer: nn.Module, x: Tensor) -> Tensor:
        """The inputs that meet the weight, one row per example and position: (N·L, I·K)."""
        raise NotImplementedError

    def gradient_rows(self, layer: nn.Module, gradient: Tensor) -> Tensor:
        """The gradient at W x + b, one row per example and position: (N·L, J). Default: channels come last."""
        return gradient.reshape(-1, gradient.shape[-1])

    def observed(self, layer: nn.Module, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """W x + b, whose gradient is wanted, and the layer's output as a function of it. Default: both are `output`."""
        return output, output

    def record(self, layer: nn.Module, sums: MomentSums) -> RemovableHandle:
        """Add the rows of every call of a layer, and its output gradients once they are known, until removed."""

        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor], output: Tensor) -> Any:
            if not output.requires_grad:  # the model itself keeps this call out of its gradient
                return None
            x = inputs[0] if inputs else next(iter(named.values()))
            sums.add_inputs(self.input_rows(layer, x.detach()))
            y, output = self.observed(layer, x, output)
            y.register_hook(lambda gradient: sums.add_gradients(self.gradient_rows(layer, gradient)))
            return output

        return layer.register_forward_hook(hook, with_kwargs=True)


def _role_of_vector(layer: nn.Module, leaf: str) -> Role:
    """What a vector is for, by its name and that of its layer: libraries have norms of their own."""
    if "norm" in type(layer).__name__.lower():
        return "norm"
    return "bias" if leaf.endswith("bias") or "bias_" in leaf else "other"


_METHODS: dict[Part, str] = {"mixed": "mixed", "moments": "input_rows"}
"""The method that a rule must write or inherit to have a part."""
_TITLES: dict[Part, str] = {"mixed": "mixed form", "moments": "moments"}
"""What reasons call the parts."""


def _default(method: str) -> Any:
    return getattr(LayerRule, method)


class Adapted(nn.Module):
    """An adapted layer: the frozen base weight and the factors; subclasses define `forward` with them.

    An adapted weight is W_t = r ∘ W ∘ s + p q, where W (J, I, *kernel) is the frozen base. A layer is turned in place
    into its adapted form: same attributes, same hooks, still an instance of its class, but `forward` uses the factors
    and never asks for the gradient of W. Its `weight` is the merged weight, so code that reads `layer.weight` instead
    of calling the layer stays right.
    """

    _rule: ClassVar[type[LayerRule]] = LayerRule
    base_weight: Tensor
    r: Tensor
    s: Tensor
    p: Tensor
    q: Tensor

    @property
    def weight(self) -> Tensor:
        """The merged weight W_t, computed at each access."""
        return merge(self.base_weight, self.r, self.s, self.p, self.q)

    def extra_repr(self) -> str:
        """Add the rank to the layer's own description."""
        return f"{super().extra_repr()}, rank={self.p.shape[1]}"


_RULES: dict[type[nn.Module], LayerRule] = {}
_BY_NAME: dict[str, type[LayerRule] | type[Adapted]] = {}
"""What was registered for layer types of other libraries, by their full names, until one of them is met."""
_UNKNOWN = LayerRule(nn.Module)
Registered = TypeVar("Registered", bound=type[LayerRule] | type[Adapted])


def layer_rule(*layer_types: type[nn.Module] | str) -> Callable[[Registered], Registered]:
    """Register what the library knows about layer types: an adapted layer or a `LayerRule`.

    A rule holds for exactly these types. A subclass may compute something else: its parameters are planned in the
    same way, its weight is merged, it has no moments, and in mixed batches it runs its own code (`per_task`).

    A type of a library that need not be installed is given by its full name. Its adapted form is then a family, which
    is joined with the type when the first layer of it is met.
    """

    def register(rule: Registered) -> Registered:
        for layer_type in layer_types:
            if isinstance(layer_type, str):
                _BY_NAME[layer_type] = rule
            elif not issubclass(rule, Adapted):
                _RULES[layer_type] = rule(layer_type)
            elif issubclass(rule, layer_type):
                _RULES[layer_type] = rule._rule(layer_type, rule)
            else:
                raise SettingError(
                    f"{rule.__name__} cannot be the adapted form of {layer_type.__name__}: derive it from "
                    f"{layer_type.__name__} as well"
                )
        return rule

    return register


def _registered(kind: type) -> LayerRule | None:
    """The rule of exactly a type, or None; a type that was registered by its name is from now on known itself."""
    if kind not in _RULES:
        rule = _BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
        if rule is None:
            return None
        if issubclass(rule, Adapted):
            body = {"__module__": rule.__module__, "__doc__": rule.__doc__}
            rule = cast(type[Adapted], type(f"Adapted{kind.__name__}", (rule, kind), body))
        layer_rule(kind)(rule)
    return _RULES[kind]


def rule_for(layer: nn.Module) -> LayerRule | None:
    """The rule that was registered for exactly the type of a layer, or None."""
    return _registered(type(layer))


def family_for(layer: nn.Module) -> LayerRule:
    """The rule of the nearest registered type that a layer derives from; for an unknown layer one of defaults only."""
    rules = (_registered(kind) for kind in type(layer).__mro__)
    return next((rule for rule in rules if rule is not None), _UNKNOWN)


def adapted_form(layer: nn.Module) -> type[Adapted] | None:
    """The adapted form of exactly the type of a layer, or None."""
    rule = rule_for(layer)
    return None if rule is None else rule.adapted


def moments_rule(layer: nn.Module, weight: Tensor) -> LayerRule | None:
    """The rule that collects the Kronecker factors of a weight in one of its layers, or None."""
    rule = rule_for(layer)
    known = rule is not None and rule.measures(layer) and getattr(layer, "weight", None) is weight
    return rule if known else None


def adapt(layer: nn.Module, factors: Factors) -> None:
    """Turn a layer in place into its adapted form. The factors' tensors are used as they are."""
    form = adapted_form(layer)
    if form is None:
        raise SettingError(f"{type(layer).__name__} has no adapted form; register one with @layer_rule")
    weight = cast(Tensor, layer._parameters.pop("weight"))
    layer.__class__ = form
    layer.register_buffer("base_weight", weight.detach(), persistent=False)
    hold(layer, factors)


def hold(module: nn.Module, factors: Factors) -> None:
    """Register factors in a module: those that train as parameters, the others as buffers."""
    for name, tensor in zip("rspq", factors.tensors(), strict=True):
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)
