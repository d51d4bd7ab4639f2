"""`linear-probe`: logistic regression on frozen features, fitted by L-BFGS.

The penalty is the one with the lowest loss on the task's validation data, of eleven from 1e-5 to 1.
"""

from __future__ import annotations

from halrp.lab.methods import rounding
from halrp.lab.methods.logistic import fitted_head
from halrp.lab.methods.on_base import OnBase, Predictor
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form, check_form
from halrp.lab.streams import Task


class LinearProbe(OnBase):
    """The head alone."""

    def __init__(self, context: Context, form: Form = "float32") -> None:
        """Take the precision of files: float32, bfloat16, or int8 with a scale for each class."""
        super().__init__(context)
        check_form("linear-probe", form)
        self.form = form

    def fit(self, task: Task) -> bytes:
        """Fit the head for every penalty, and keep the best."""
        head = fitted_head(self.featured(task.train), self.featured(task.val), task.classes)
        return rounding.encode(head.state_dict(), self.form)

    def opened(self, content: bytes, classes: int) -> Predictor:
        """The head that the file holds."""
        return self.linear(rounding.decode(content))
