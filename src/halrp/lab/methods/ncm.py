"""`ncm`: the nearest class mean of frozen features (Mensink et al., 2013; Rebuffi et al., 2017).

A task is the means of its classes. Where the task is not known, it is the one that has the nearest mean of all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from halrp.lab.methods import rounding
from halrp.lab.methods.on_base import OnBase, Predictor
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form, check_form
from halrp.lab.streams import Task


class NearestMean(OnBase):
    """A mean for each class."""

    def __init__(self, context: Context, form: Form = "float32", normalise: bool = True) -> None:
        """Take the precision of files; with `normalise`, features and means have length one."""
        super().__init__(context)
        check_form("ncm", form)
        self.form, self.normalise = form, normalise

    def fit(self, task: Task) -> bytes:
        """Average the features of each class."""
        x, y = self.featured(task.train)
        x = self.scaled(x)
        means = torch.stack([x[y == label].mean(0) for label in range(task.classes)])
        return rounding.encode({"means": self.scaled(means)}, self.form)

    def opened(self, content: bytes, classes: int) -> Predictor:
        """Logits −‖f − μ‖² of the means that the file holds."""
        means = rounding.decode(content)["means"].to(self.device)
        return lambda x: -torch.cdist(self.scaled(self.features(x)), means).square()

    def scaled(self, x: Tensor) -> Tensor:
        """Features of length one, or as they are."""
        return torch.nn.functional.normalize(x, dim=1) if self.normalise else x

    def identify(self, x: Tensor) -> Tensor:
        """The task with the nearest mean."""
        nearest = [self.predict(x, task).amax(1) for task in range(len(self.files))]
        return torch.stack(nearest, 1).argmax(1)
