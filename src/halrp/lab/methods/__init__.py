"""Methods by name: `make("halrp-budget", context, growth_per_task=0.026)`. A line each in `METHODS`.

A method of your own is a class that derives from `Method`. `METHODS["mine"] = Known(Mine, "what it does")` puts it
beside the others, and `check_method` tells whether it keeps the contract.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast

from halrp import Halrp
from halrp.errors import SettingError
from halrp.lab.methods.apd import Additive
from halrp.lab.methods.apdfix import FixedAdditive
from halrp.lab.methods.be import BatchEnsemble
from halrp.lab.methods.bmkp import BilevelMemory
from halrp.lab.methods.bn import TunedNorms
from halrp.lab.methods.clr import Reprogramming
from halrp.lab.methods.ewc import ElasticWeights
from halrp.lab.methods.finetune import FineTune
from halrp.lab.methods.gpm import GradientProjection
from halrp.lab.methods.halrp import HalrpMethod
from halrp.lab.methods.ibpwf import WeightFactors
from halrp.lab.methods.iru import RankUpdates
from halrp.lab.methods.l2 import Drift
from halrp.lab.methods.mtl import Joint
from halrp.lab.methods.prd import RelationDistillation
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.methods.stl import Separate
from halrp.lab.methods.wsn import WinningSubnetworks
from halrp.lab.names import nearest
from halrp.method.allocate import Flat
from halrp.method.decompose import Whitened

View = Literal["mean", "full", "validation"]

__all__ = ["METHODS", "Context", "Known", "Method", "Size", "State", "make", "settings_of"]


@dataclass(frozen=True)
class Known:
    """A method that can be asked for by name."""

    make: Callable[..., Method | Halrp]
    """A class that derives from `Method`, or a function that composes HALRP; its keyword arguments are the settings."""
    about: str

    def settings(self) -> dict[str, Any]:
        """The settings and their defaults."""
        return dict(_defaults(self.make))

    def build(self, context: Context, **settings: Any) -> Method:
        """Make the method for a run."""
        if not inspect.isclass(self.make):
            return HalrpMethod(context, cast(Halrp, self.make(**settings)))
        return cast(Callable[..., Method], self.make)(context, **settings)


@cache
def _defaults(make: Callable[..., object]) -> Mapping[str, Any]:
    return {n: p.default for n, p in inspect.signature(make).parameters.items() if n != "context"}


def _lrp(rank: int = 100, growth: float = 0.2, l1: float = 1e-4, l2: float = 1e-4) -> Halrp:
    return replace(Halrp.official(growth=growth, l1=l1, l2=l2), allocate=Flat(rank))


def _random_lrp(rate: float = 0.9, growth: float = 0.2, cap: int = 100, l1: float = 1e-4, l2: float = 1e-4) -> Halrp:
    return replace(Halrp.official(rate, growth, cap, l1, l2), initial="random")


def _scales(l2: float = 1e-4) -> Halrp:
    return Halrp(allocate=Flat(0), l2=l2, base_l2=l2)


def _whitened(growth_per_task: float = 0.026, view: View = "validation", l1: float = 1e-4, l2: float = 1e-4) -> Halrp:
    plain = Halrp.budget(growth_per_task=growth_per_task, view=view, l1=l1, l2=l2)
    return replace(plain, decompose=Whitened())


METHODS: dict[str, Known] = {
    "halrp-budget": Known(Halrp.budget, "HALRP, ranks chosen under a hard limit before fine-tuning (the default)"),
    "halrp-official": Known(Halrp.official, "HALRP as its authors released it, pruning of learned tasks included"),
    "halrp-paper": Known(Halrp.paper, "HALRP by the paper's equations"),
    "lrp": Known(_lrp, "ablation: the same rank in every layer, no importance"),
    "random-lrp": Known(_random_lrp, "ablation: HALRP's ranks, random factors instead of the SVD's"),
    "scales": Known(_scales, "ablation: scales, biases, norms and a head per task, no component at all"),
    "halrp-whitened": Known(_whitened, "ablation: halrp-budget with residuals taken apart in the metric of curvature"),
    "stl": Known(Separate, "single-task learning: a network of its own for every task"),
    "mtl": Known(Joint, "multi-task learning: all tasks at once, one body and a head per task"),
    "finetune": Known(FineTune, "one network trained on and on: the floor"),
    "l2": Known(Drift, "fine-tuning with a quadratic penalty on drift"),
    "ewc": Known(ElasticWeights, "elastic weight consolidation"),
    "bn": Known(TunedNorms, "batch norms and a head per task on a frozen network"),
    "be": Known(BatchEnsemble, "BatchEnsemble: two vectors per layer and task on shared weights"),
    "apd": Known(
        Additive, "additive parameter decomposition: shared weights, masks and sparse parts, old ones trained on"
    ),
    "apdfix": Known(FixedAdditive, "additive parameter decomposition, shared weights fixed after the first task"),
    "ibpwf": Known(WeightFactors, "factors shared by all tasks, chosen by an Indian buffet process, frozen once used"),
    "gpm": Known(GradientProjection, "gradient projection memory: layers move orthogonally to past tasks' inputs"),
    "wsn": Known(WinningSubnetworks, "winning subnetworks: a mask per task over shared weights, used weights frozen"),
    "bmkp": Known(BilevelMemory, "bilevel memory: tasks rebuilt from shared patterns of layers' outputs"),
    "clr": Known(Reprogramming, "3×3 filters per channel, norms and a head per task on a frozen network"),
    "prd": Known(RelationDistillation, "prototypes and relation distillation on one encoder"),
    "iru": Known(RankUpdates, "incremental rank updates: a few more ranks and a selector for each task"),
}


def settings_of(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings of a method, those given and the others' defaults; a setting it does not have is an error."""
    nearest("method", name, METHODS)
    known = METHODS[name].settings()
    for key in settings:
        nearest(f"setting of method {name!r}", key, known)
    required = [key for key, value in known.items() if value is inspect.Parameter.empty and key not in settings]
    if required:
        raise SettingError(f"method {name!r} needs a value for {', '.join(required)}")
    return known | settings


def make(name: str, context: Context, **settings: Any) -> Method:
    """Make the method `name` with its settings."""
    settings_of(name, settings)
    return METHODS[name].build(context, **settings)
