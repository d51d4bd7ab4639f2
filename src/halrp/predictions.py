"""What a learner predicts: outputs and answers of its tasks, and which task inputs are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from halrp.managed import Managed
from halrp.model.batch import Batch
from halrp.serve.answers import answers
from halrp.serve.checks import check_predict, naming_inputs
from halrp.serve.identify import AUTO, Asked, Identified, Together, answers_of, without_unknown


class Predictions(Managed):
    """The predictions of a learner. None of them changes anything."""

    def predict(self, x: Batch, task: str | Sequence[str | None] | None, batch: int = 512) -> Tensor:
        """Outputs (logits) of a task, in evaluation mode and without gradient; `None` is the base's own task.

        With a sequence of names, one per row, rows of different tasks go through the network together. The result is
        as wide as the widest task among them, and −inf where a row's task has no such output. A model that normalises
        by the statistics of the batch does so among the rows of one task, `batch` of them at a time. Forward passes
        have the precision in which each task was learned, whatever the recipe is by now.

        With "auto", unless a task is called so, each row has the task that `identify` finds for it; outputs of a row
        of no task are −inf.
        """
        x = self._committed.body.prepare_inputs(check_predict(x, task, batch))
        if task == AUTO and AUTO not in self.tasks:
            identified = self.identify(x, top=1, batch=batch)
            return without_unknown(self.predict(x, identified.best, batch), identified)
        with torch.no_grad(), naming_inputs(x):
            if task is None or isinstance(task, str):
                return self._committed.predictor.predict(x, task, batch)
            return self._committed.predictor.predict_mixed(x, task, batch)

    def answer(self, x: Batch, task: str | Sequence[str | None] | None, batch: int = 512) -> Any:
        """What a task answers, by its objective: labels and probabilities, values, masks.

        With a task per row, one answer for all rows if all tasks are classifications, and otherwise a list of answers,
        one for each row. With "auto", the label, or the answer, of a row of no task is None.
        """
        if task == AUTO and AUTO not in self.tasks:
            identified = self.identify(x, top=1, batch=batch)
            return answers_of(self.answer(x, identified.best, batch), identified)
        return answers(self._committed.predictor.delta, self.predict(x, task, batch), task)

    def identify(
        self,
        x: Batch,
        *,
        tasks: Sequence[str] | None = None,
        together: Together = False,
        top: int = 3,
        rerank: int = 0,
        batch: int = 512,
    ) -> Identified:
        """Which task each row is of, by the prototypes that tasks store (`Halrp.budget(..., prototypes=Prototypes())`).

        All tasks with prototypes are compared, or those that are named. With `together`, all rows are of one task; a
        value for each row says which rows are. `top` is the number of candidates that are listed. With `rerank`, that
        many candidates are compared by their outputs too, which takes as many more forward passes; all tasks must be
        classifications.
        """
        x = self._committed.body.prepare_inputs(check_predict(x, None, batch))
        return self._committed.predictor.identify(x, tasks, Asked(together, top, rerank), batch)
