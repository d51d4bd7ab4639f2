"""HALRP as a method of the laboratory: a wrapper of the library's `Learner`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from halrp import Halrp, Learner
from halrp.lab.methods import network
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.methods.settings import check_choice
from halrp.lab.streams import Task
from halrp.model.codec import Precision
from halrp.store.store import Store
from halrp.training.recipe import AUTOMATIC, BEYOND_PAPER, Recipe

SHOWN = 40
"""The number of components of a weight whose scores a record holds."""


class HalrpMethod(Method):
    """A base, frozen after the first task, and a low-rank delta for each later one."""

    def __init__(self, context: Context, method: Halrp) -> None:
        """Take the composition of the method.

        Only pruning of committed tasks changes them. Any pruning depends on what all tasks so far have added.
        """
        super().__init__(context)
        self.method = method
        self.frozen = not method.compress.changes_committed
        self.first_decides = method.compress.independent
        self.learner: Learner | None = None
        self.rows = 0
        """Rows per batch in evaluation."""

    def learn(self, task: Task) -> None:
        """Learn the base, or a delta."""
        if self.learner is None:
            self.learner = self._learner(task.classes, {})
        self.learner.learn(task.name, task.train, task.val, objective=task.objective, augment=task.augment)

    def _learner(self, classes: int, files: Mapping[str, bytes]) -> Learner:
        """A learner that continues from the files of a store."""
        context = self.context
        model = context.build(classes, context.seed)
        self.rows = network.evaluation_batch(context, model)
        with ExitStack() as stack:
            scratch = context.work is None
            folder = (context.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))) / "store"
            for path in _content(folder):  # left by a run that was killed; checkpoints of its training stay
                path.unlink(missing_ok=True)
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            settings: dict[str, Any] = {
                "method": self.method,
                "recipe": context.recipe,
                "seed": context.seed,
                "progress": context.progress,
                "base": "given" if context.given else "first",
            }
            if scratch and files:
                settings.pop("base")  # the store knows
                return Learner.load(folder, model, attach=False, **settings)
            store = None if scratch else Store(folder, network.CHECKPOINT_EVERY)
            return Learner(model, head=network.HEAD, store=store, **settings)

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task at a position."""
        learner = self._ready()
        return learner.predict(x, list(learner.tasks)[task], batch=self.rows)

    def stored(self) -> Size:
        """The base with its buffers, and the file of every delta."""
        learner = self._ready()
        base, deltas = learner.base_size, learner.tasks.values()
        return Size(base[0] + sum(d.parameters for d in deltas), base[1] + sum(d.bytes for d in deltas))

    def counted(self) -> int:
        """The paper's count: the base's parameters, and non-zeros of every delta without biases and statistics."""
        learner = self._ready()
        return learner.base_parameters + sum(d.paper_count() for d in learner.tasks.values() if not d.is_base)

    def details(self) -> dict[str, Any]:
        """Of the newest delta: ranks, view, the importance of each weight, and the scores of its first components."""
        learner = self._ready()
        name, delta = list(learner.tasks.items())[-1]
        details: dict[str, Any] = {"ranks": delta.ranks, "view": delta.view}
        if name in learner.scores:
            details["importance"] = {n: float(f"{layer.importance:.4g}") for n, layer in delta.recovered.items()}
            details["scores"] = {
                n: [float(f"{score:.3g}") for score in scores[:SHOWN].tolist()]
                for n, scores in learner.scores[name].items()
            }
        return details

    def state(self) -> State:
        """The learner's store: the bytes of its files."""
        with tempfile.TemporaryDirectory() as folder:
            self._ready().save(folder)
            files = {str(path.relative_to(folder)): path.read_bytes() for path in _content(Path(folder))}
        return State({n: torch.frombuffer(bytearray(b), dtype=torch.uint8) for n, b in files.items()}, {})

    def restore(self, state: State) -> None:
        """Load the store; the model is built for its architecture, and the store knows the width of its head."""
        self.learner = self._learner(2, {n: content.cpu().numpy().tobytes() for n, content in state.tensors.items()})

    def _ready(self) -> Learner:
        assert self.learner is not None, "learn a task first"
        return self.learner


class DefaultHalrp(HalrpMethod):
    """The library's default method, trained by its default recipe with the run's epochs and rates."""

    def __init__(
        self,
        context: Context,
        bytes_per_task: int | None = None,
        precision: Precision | None = None,
        rest: Precision | None = None,
        view: Literal["mean", "full", "validation"] = "validation",
        l1: float = 1e-4,
        l2: float = 1e-4,
        warm_up: int = 1,
        recipe: Literal["default", "run"] = "default",
    ) -> None:
        """Take the bound on the bytes of a task's file, and what else `Halrp.budget` takes.

        `recipe` "default" lets the library choose for each task what the paper's recipe does not have (an average over
        the last steps, exact statistics and dropout) and the size of batches, each unless the run's recipe has it.
        "run" is the run's recipe as it is.
        """
        check_choice("halrp", "recipe", recipe, ("default", "run"))
        if recipe == "default":
            context = replace(context, recipe=default_recipe(context.recipe, context.given))
        super().__init__(
            context,
            Halrp.budget(bytes_per_task, precision=precision, rest=rest, view=view, l1=l1, l2=l2, warm_up=warm_up),
        )


def default_recipe(recipe: Recipe, given: bool = False) -> Recipe:
    """A recipe whose batches and settings beyond the paper's are chosen for each task, where it has none of its own.

    On a given base these are rates and schedule, too.
    """
    plain = Recipe()
    beyond = [name for name in AUTOMATIC if name not in ("epochs", "batch")] if given else BEYOND_PAPER
    unset = [name for name in ("batch", *beyond) if getattr(recipe, name) == getattr(plain, name)]
    return replace(recipe, automatic=tuple(dict.fromkeys((*recipe.automatic, *unset))))


def _content(folder: Path) -> list[Path]:
    """The files that a store has committed."""
    return (
        [folder / "manifest.json", *folder.glob("base-*"), *folder.glob("layout-*"), *folder.glob("tasks/*")]
        if folder.is_dir()
        else []
    )
