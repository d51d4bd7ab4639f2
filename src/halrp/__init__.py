"""Continual learning with one frozen base network and one tiny low-rank delta per task.

>>> learner = Learner(model, head="fc", method=Halrp.budget(bytes_per_task=200_000))
>>> learner.learn("birds", (x, y), val=(xv, yv))
>>> logits = learner.predict(x, task="birds")

Public names are imported when they are first used, so that a part that needs no torch does not load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from halrp._version import __version__

if TYPE_CHECKING:
    from halrp.learner import Learner
    from halrp.method import allocate, decompose, scales
    from halrp.method.allocate import Flat, LossRate
    from halrp.method.budget import Budget
    from halrp.method.decompose import Plain, Whitened
    from halrp.method.from_probe import FromProbe
    from halrp.method.importance import GradientNorm, MeanSquare
    from halrp.method.method import Halrp
    from halrp.method.prototypes import Prototypes
    from halrp.method.prune import Keep, Prune
    from halrp.method.scales import Exact, Legacy
    from halrp.method.warm_up import WarmUp
    from halrp.model.delta import Delta
    from halrp.model.layers.conv import ConvFamily
    from halrp.model.layers.linear import LinearFamily
    from halrp.model.layers.registry import Adapted, LayerRule, layer_rule
    from halrp.model.plan import Plan
    from halrp.objectives.causal_lm import CausalLM
    from halrp.objectives.classification import Answer, Classification
    from halrp.objectives.multi_label import MultiLabel
    from halrp.objectives.objective import Objective
    from halrp.objectives.ordinal import Ordinal
    from halrp.objectives.regression import Regression
    from halrp.objectives.segmentation import Segmentation
    from halrp.objectives.token_classification import TokenClassification
    from halrp.report import Report, TaskReport
    from halrp.serve.identify import Identified
    from halrp.serve.store_predictor import StorePredictor
    from halrp.store.store import Store
    from halrp.tools.explain import Explanation, explain
    from halrp.training.progress import Progress, StopTraining
    from halrp.training.recipe import Recipe

_HOME = {
    "halrp.learner": ("Learner",),
    "halrp.method": ("allocate", "decompose", "scales"),
    "halrp.method.allocate": ("Flat", "LossRate"),
    "halrp.method.budget": ("Budget",),
    "halrp.method.decompose": ("Plain", "Whitened"),
    "halrp.method.from_probe": ("FromProbe",),
    "halrp.method.importance": ("GradientNorm", "MeanSquare"),
    "halrp.method.method": ("Halrp",),
    "halrp.method.prototypes": ("Prototypes",),
    "halrp.method.prune": ("Keep", "Prune"),
    "halrp.method.scales": ("Exact", "Legacy"),
    "halrp.method.warm_up": ("WarmUp",),
    "halrp.model.delta": ("Delta",),
    "halrp.model.layers.conv": ("ConvFamily",),
    "halrp.model.layers.linear": ("LinearFamily",),
    "halrp.model.layers.registry": ("Adapted", "LayerRule", "layer_rule"),
    "halrp.model.plan": ("Plan",),
    "halrp.objectives.causal_lm": ("CausalLM",),
    "halrp.objectives.classification": ("Answer", "Classification"),
    "halrp.objectives.multi_label": ("MultiLabel",),
    "halrp.objectives.objective": ("Objective",),
    "halrp.objectives.ordinal": ("Ordinal",),
    "halrp.objectives.regression": ("Regression",),
    "halrp.objectives.segmentation": ("Segmentation",),
    "halrp.objectives.token_classification": ("TokenClassification",),
    "halrp.report": ("Report", "TaskReport"),
    "halrp.serve.identify": ("Identified",),
    "halrp.serve.store_predictor": ("StorePredictor",),
    "halrp.store.store": ("Store",),
    "halrp.tools.explain": ("Explanation", "explain"),
    "halrp.training.progress": ("Progress", "StopTraining"),
    "halrp.training.recipe": ("Recipe",),
}
"""The module of each public name."""
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Adapted",
    "Answer",
    "Budget",
    "CausalLM",
    "Classification",
    "ConvFamily",
    "Delta",
    "Exact",
    "Explanation",
    "Flat",
    "FromProbe",
    "GradientNorm",
    "Halrp",
    "Identified",
    "Keep",
    "LayerRule",
    "Learner",
    "Legacy",
    "LinearFamily",
    "LossRate",
    "MeanSquare",
    "MultiLabel",
    "Objective",
    "Ordinal",
    "Plain",
    "Plan",
    "Progress",
    "Prototypes",
    "Prune",
    "Recipe",
    "Regression",
    "Report",
    "Segmentation",
    "StopTraining",
    "Store",
    "StorePredictor",
    "TaskReport",
    "TokenClassification",
    "WarmUp",
    "Whitened",
    "__version__",
    "allocate",
    "decompose",
    "explain",
    "layer_rule",
    "scales",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'halrp' has no attribute {name!r}")
    module = import_module(_MODULE_OF[name])
    if not hasattr(module, name):  # a module of a package
        return import_module(f"{_MODULE_OF[name]}.{name}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
