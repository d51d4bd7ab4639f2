"""The methods that are compared, by name, and what each of them must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from benchmarks.pretrained.domain import Domain, Task
from halrp.model.batch import Batch

Setting = Mapping[str, Any]
"""What distinguishes two fits of one method on one task, such as the learning rate; plain values of JSON."""


class Stored(NamedTuple):
    """What a method leaves of a task: the bytes of a file in some form, and predictions from that file."""

    form: str
    bytes: int
    predict: Callable[[Batch], Tensor]
    """Inputs → logits, until the next form is asked for."""


class Method(Protocol):
    """A way to learn a task on a pretrained network."""

    def grid(self, domain: Domain, shots: int) -> tuple[Setting, ...]:
        """The settings among which validation data of the dev tasks choose."""
        ...

    def fit(self, domain: Domain, task: Task, setting: Setting) -> Iterator[Stored]:
        """Learn the task, then give its forms one after the other; all learning is before the first."""
        ...


def methods(variant: str = "default") -> dict[str, Method]:
    """Every method, by name; `variant` marks the records of halrp, whose defaults change between versions."""
    from benchmarks.pretrained.delta import Delta
    from benchmarks.pretrained.finetune import FineTune
    from benchmarks.pretrained.lora import Lora
    from benchmarks.pretrained.probe import Probe

    lora = {f"lora-r{rank}": Lora(rank) for rank in (4, 8)}
    lora |= {f"lora-r{rank}-norms": Lora(rank, norms=True) for rank in (4, 8)}
    lora |= {f"lora-r{rank}-probe": Lora(rank, fitted_head=True) for rank in (4, 8)}
    sizes = (15, 25, 50, 60, 100, 150, 400, 1000)
    deltas = {f"halrp-{size}": Delta(size * 1000, variant) for size in sizes}
    others: dict[str, Setting] = {
        "int4": {"bits": "int4"},
        "mixed": {"bits": "mixed"},
        "along": {"folds": 0},
        "all": {"reach": 1.0},
    }
    deltas |= {
        f"halrp-{size}-{name}": Delta(size * 1000, variant, other) for size in sizes for name, other in others.items()
    }
    return {"probe": Probe(), **lora, "finetune": FineTune(), **deltas}
