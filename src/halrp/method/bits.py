"""How many bits the components of a weight have: what rounding loses, against what further components would bring.

A component p qᵀ whose factors are rounded is off by a share e of its squared norm. At the best p the predicted loss is
flat, so the rounded component keeps 1 − e of its predicted decrease. In eight bits e is nothing worth counting. In four
bits, with a scale for every 32 entries, each factor of gaussian entries is off by 1 % of its square, so e is 2 %, at a
little more than half the bytes. A file has one precision for both factors of a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from halrp.method.protocols import Allocation, LayerOptions
from halrp.model.codec import Precision

Bits: TypeAlias = Literal["int8", "int4", "mixed"]
"""How components are stored: all in one precision, or each weight's in that which is worth more."""
BITS: tuple[Bits, ...] = ("int8", "int4", "mixed")
LOST: Mapping[Precision, float] = {"int4": 0.02}
"""The share e of a component's predicted decrease that its rounding loses, where it counts."""


class Choice(NamedTuple):
    """What is stored of all weights if their matrices have some precisions."""

    allocation: Allocation
    options: Mapping[str, LayerOptions]
    """What could be chosen, small parts included."""
    precisions: Mapping[str, Precision]
    """Of each weight's matrices."""

    @property
    def worth(self) -> float:
        """The predicted decrease of the loss by all that is stored."""
        ranks = self.allocation.ranks
        return sum(float(o.scores[: ranks.get(name, len(o.scores))].sum()) for name, o in self.options.items())


def choose(
    bits: Bits | None, precision: Precision, weights: Iterable[str], tried: Callable[[Mapping[str, Precision]], Choice]
) -> Choice:
    """The choice with the most worth that `bits` allow, None being the `precision`; `tried` allocates for precisions.

    "mixed" compares all weights in four bits, all in eight, and those in eight that lose more by four than the last
    components that were stored bring for as many bytes.
    """
    names = list(weights)
    if bits != "mixed":
        return tried(dict.fromkeys(names, precision if bits is None else bits))
    four, eight = (tried(dict.fromkeys(names, each)) for each in ("int4", "int8"))
    promoted = _promoted(four, eight)
    between = [tried({**four.precisions, **dict.fromkeys(promoted, "int8")})] if 0 < len(promoted) < len(names) else []
    return max((four, eight, *between), key=lambda choice: choice.worth)


def _promoted(four: Choice, eight: Choice) -> list[str]:
    """The weights that four bits cost more than their bytes are worth at the end of the allocation."""
    last, ranks = math.inf, four.allocation.ranks
    for name, rank in ranks.items():
        if rank:
            option = four.options[name]
            last = min(last, float(option.scores[rank - 1]) / max(1, option.component))
    promoted = []
    for name in four.precisions:
        rank = ranks.get(name, 0)
        more = rank * (eight.options[name].component - four.options[name].component)
        lost = float((eight.options[name].scores[:rank] - four.options[name].scores[:rank]).sum())
        if rank and lost > last * more:
            promoted.append(name)
    return promoted
