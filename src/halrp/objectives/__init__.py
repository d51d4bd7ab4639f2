"""What a task's outputs mean, one file per kind of task: loss, score, check of targets and answers.

`Learner.learn(..., objective=...)` takes one; classification is the default. A kind of your own is a frozen dataclass
that is derived from `Objective`, and registered so that a loaded task can be answered: `@register`.
"""

from halrp.objectives.causal_lm import CausalLM, NextTokens
from halrp.objectives.classification import Answer, Classification
from halrp.objectives.multi_label import LabelSets, MultiLabel
from halrp.objectives.objective import Objective, described, is_registered, register, restored
from halrp.objectives.ordinal import Ordinal
from halrp.objectives.regression import Regression, Values
from halrp.objectives.segmentation import Masks, Segmentation
from halrp.objectives.token_classification import TokenClassification, TokenLabels

__all__ = [
    "Answer",
    "CausalLM",
    "Classification",
    "LabelSets",
    "Masks",
    "MultiLabel",
    "NextTokens",
    "Objective",
    "Ordinal",
    "Regression",
    "Segmentation",
    "TokenClassification",
    "TokenLabels",
    "Values",
    "described",
    "is_registered",
    "register",
    "restored",
]
