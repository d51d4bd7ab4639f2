"""Continual learning with one frozen base network and one tiny low-rank delta per task.

>>> learner = Learner(model, head="fc", method=Halrp.budget(bytes_per_task=200_000))
>>> learner.learn("birds", (x, y), val=(xv, yv))
>>> logits = learner.predict(x, task="birds")
"""

from halrp._version import __version__
from halrp.allocate import Flat, LossRate
from halrp.budget import Budget
from halrp.decompose import Plain, Whitened
from halrp.delta import Delta
from halrp.explain import Explanation, explain
from halrp.importance import GradientNorm, MeanSquare
from halrp.layers import Adapted, layer_rule
from halrp.learner import Learner
from halrp.method import Halrp
from halrp.plan import Plan
from halrp.prune import Keep, Prune
from halrp.scales import Exact, Legacy
from halrp.store import Store
from halrp.train import Progress, Recipe

__all__ = [
    "Adapted",
    "Budget",
    "Delta",
    "Exact",
    "Explanation",
    "Flat",
    "GradientNorm",
    "Halrp",
    "Keep",
    "Learner",
    "Legacy",
    "LossRate",
    "MeanSquare",
    "Plain",
    "Plan",
    "Progress",
    "Prune",
    "Recipe",
    "Store",
    "Whitened",
    "__version__",
    "explain",
    "layer_rule",
]
