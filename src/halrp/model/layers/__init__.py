"""Layer families: one file each, with how its parameters are planned, its forward passes, its moments and its costs.

Importing the package registers every family. `registry` says what a rule is and finds the one of a layer.
"""

from halrp.model.layers import (
    attention,
    conv,
    embedding,
    groupwise,
    linear,
    merged,
    norm,
    recurrent,
    transposed_linear,
)

__all__ = [
    "attention",
    "conv",
    "embedding",
    "groupwise",
    "linear",
    "merged",
    "norm",
    "recurrent",
    "transposed_linear",
]
