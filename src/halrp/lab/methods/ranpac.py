"""`ranpac`: ridge regression on a random projection of frozen features (McDonnell et al., 2023).

Features f become relu(f R / ‖f‖) with a random R (features, width) that a seed draws again, so that it is not stored.
Their paper has 10,000 values and one regression for the stream, which is `width=10_000, memory="stream"`.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.ridge import Memory, Ridge
from halrp.lab.methods.rounding import Form


class RandomProjection(Ridge):
    """Ridge regression on random features."""

    def __init__(self, context: Context, form: Form = "float32", memory: Memory = "task", width: int = 2000) -> None:
        """Take what `ridge` takes, and the number of random features."""
        if width < 1:
            raise SettingError(f"ranpac(width={width}) is out of range; give a whole number of at least 1")
        super().__init__(context, form, memory)
        self.random_width = width

    @cached_property
    def projection(self) -> Tensor:
        """R, a function of the run's seed and of its shape."""
        shape = self.base[1], self.random_width
        return torch.randn(shape, generator=seeding.generator("ranpac", self.context.seed, *shape)).to(self.device)

    def mapped(self, x: Tensor) -> Tensor:
        """relu(f R / ‖f‖)."""
        return (torch.nn.functional.normalize(self.features(x), dim=1) @ self.projection).relu()
