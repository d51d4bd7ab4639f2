"""HALRP as a composition of five choices.

Each field of `Halrp` is one step of Algorithm 1, and each is a small value from a module of its own. A new idea is a
new value for one field, from this package or from yours (`protocols`); the paper's ablations are loops over fields.
The presets are the paper's equations, the authors' released code, and ours.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from types import NoneType
from typing import Literal, Protocol

from halrp.errors import SettingError
from halrp.method.allocate import LossRate
from halrp.method.budget import Budget
from halrp.method.decompose import Plain
from halrp.method.importance import GradientNorm, MeanSquare
from halrp.method.protocols import (
    Allocator,
    Compression,
    Decomposition,
    Importance,
    Scales,
    check_choice,
)
from halrp.method.prototypes import Prototypes
from halrp.method.prune import Keep, Prune
from halrp.method.scales import Exact, Legacy
from halrp.method.start import Least, Starts, least_whole
from halrp.method.task_costs import Costs
from halrp.model.base import Base
from halrp.model.codec import PRECISIONS, Precision
from halrp.model.commit_check import CommitCheck
from halrp.training.recipe import LATER
from halrp.training.run import TaskRun


@dataclass(frozen=True)
class Halrp:
    """How a task becomes a delta. Compose one, or start from `paper`, `official` or `budget`."""

    allocate: Allocator
    """Spectra and importance → ranks."""
    view: Literal["mean", "full", "validation"] = "mean"
    """How a convolution's residual becomes a matrix: averaged over the kernel, with its whole kernel, or chosen by
    validation: both are fine-tuned for `trial` of the epochs and the one with the lower validation loss is continued.
    Without validation data that is "mean", the more cautious one."""
    trial: float = 0.25
    """Share of the fine-tuning epochs after which views are compared."""
    scales: Scales = Exact()
    """r and s."""
    decompose: Decomposition = Plain()
    """Residual → components: in the Frobenius norm, or in the metric of the layer's curvature."""
    importance: Importance = MeanSquare()
    """What a unit of squared error in a layer costs."""
    initial: Literal["components", "random components", "random"] = "components"
    """Where fine-tuning starts: at the leading components, or one of two Random LRP ablations: at components chosen
    at random, or at random factors of the residual's size with r = s = 1."""
    compress: Compression = Keep()
    """What happens to the factors after fine-tuning."""
    precision: Precision = "float32"
    """How factors and dense weights are stored: as they are, in bfloat16, or in int8 with a scale per component. A
    budget in bytes has room for more components in a lower precision."""
    warm_up: int = 1
    """Epochs before the start of fine-tuning: of the whole network, or of what the task owns (`start`)."""
    l1: float = 0.0
    """λ₀: penalty λ₀·(|p|₁ + |q|₁) while fine-tuning."""
    l2: float = 0.0
    """λ₁: penalty λ₁/2·(‖r‖² + ‖s‖² + ‖p‖² + ‖q‖²) while fine-tuning."""
    base_l2: float = 0.0
    """Penalty λ/2·‖W‖² on the adaptable weights while the base is trained."""
    rest: Precision = field(default="float32", metadata=LATER)
    """How all else is stored by a task that a warm-up starts: scales, norms, biases and head, in less than float32 as
    differences to the base's, and statistics in bfloat16. A start at the probe has a precision of its own."""
    start: StartRule | None = field(default=None, metadata=LATER)
    """Where fine-tuning starts: `WarmUp()` trains a copy of the whole network and decomposes where it went,
    `FromProbe()` fits the head and stores what the gradients there promise most for, with the memory of a delta. None
    is `FromProbe()` on a given base for a method that has no other choice for a decomposition, else `WarmUp()`."""
    prototypes: Prototypes | None = field(default=None, metadata=LATER)
    """What a task stores of its inputs, so that `identify` can tell which task an input is of; None is nothing. A
    budget in bytes pays for it."""

    def __post_init__(self) -> None:
        """Refuse values that Algorithm 1 cannot use."""
        for name, protocol in CHOICES.items():
            if name != "start" or self.start is not None:
                check_choice(name, getattr(self, name), protocol)
        if self.view not in ("mean", "full", "validation"):
            raise SettingError(f"Halrp(view={self.view!r}) is unknown; choose 'mean', 'full' or 'validation'")
        if self.initial not in ("components", "random components", "random"):
            raise SettingError(
                f"Halrp(initial={self.initial!r}) is unknown; choose 'components', 'random components' or 'random'"
            )
        for name in ("precision", "rest"):
            if getattr(self, name) not in PRECISIONS:
                known = ", ".join(map(repr, PRECISIONS))
                raise SettingError(f"Halrp({name}={getattr(self, name)!r}) is unknown; choose one of {known}")
        if not (isinstance(self.warm_up, int) and self.warm_up >= 1):
            raise SettingError(
                f"Halrp(warm_up={self.warm_up}) must be a whole number of at least 1: without it there is no residual"
            )
        if not 0 < self.trial <= 1:
            raise SettingError(f"Halrp(trial={self.trial}) must lie in (0, 1]")
        for name in ("l1", "l2", "base_l2"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"Halrp({name}={getattr(self, name)}) must be finite and not negative")
        if not isinstance(self.prototypes, (Prototypes, NoneType)):
            raise SettingError(f"Halrp(prototypes={self.prototypes!r}) must be a value of Prototypes, or None")
        if self.start is not None:
            self.start.check(self)

    def views(self, kernels: bool, validation: bool) -> tuple[str, ...]:
        """The views of convolutions to try: both only if there are kernels to choose for and data to choose by."""
        if self.view != "validation":
            return (self.view,)
        return ("mean", "full") if kernels and validation else ("mean",)

    @staticmethod
    def paper(rate: float = 0.9, growth: float = 0.2, l1: float = 1e-4, l2: float = 1e-4, *, warm_up: int = 1) -> Halrp:
        """The paper's equations to the letter: Eqs. 3–13, summed squared gradients, no bounds on ranks.

        Its pruning pools all tasks and changes committed ones, so it forgets; see `Prune.committed`.
        """
        return Halrp(
            allocate=LossRate(rate),
            importance=GradientNorm(),
            compress=Prune(scope="all", growth=growth, bound=False, wait=True, committed=True),
            warm_up=warm_up,
            l1=l1,
            l2=2 * l2,
        )

    @staticmethod
    def official(
        rate: float = 0.9, growth: float = 0.2, cap: int = 100, l1: float = 1e-4, l2: float = 1e-4, *, warm_up: int = 1
    ) -> Halrp:
        """The authors' released code, its slip in s and its pruning of committed tasks included.

        Use with `Recipe(gradient_scale=10, shuffle=False, decay_examples=...)` to repeat its published runs.
        """
        return Halrp(
            allocate=LossRate(rate, strict=True, floor=1, cap=cap),
            scales=Legacy(),
            compress=Prune(growth=growth, committed=True),
            warm_up=warm_up,
            l1=l1,
            l2=l2,
            base_l2=l2,
        )

    @staticmethod
    def budget(
        bytes_per_task: int | None = None,
        *,
        parameters_per_task: int | None = None,
        growth_per_task: float | None = None,
        bytes_total: int | None = None,
        tasks: int | None = None,
        precision: Precision | None = None,
        rest: Precision | None = None,
        view: Literal["mean", "full", "validation"] = "validation",
        l1: float = 1e-4,
        l2: float = 1e-4,
        warm_up: int = 1,
        prototypes: Prototypes | None = None,
    ) -> Halrp:
        """Ranks chosen before fine-tuning so that a task fits a hard bound; the default method.

        The bound is one of: bytes of a task's file, `bytes_total` for the files of a known number of `tasks`, numbers
        of a task, or those as a share of the base's parameters. Without one, a file has 2 % of the base's bytes, or
        more if the task needs it (`Budget`).
        Factors and all else are stored in int8 where bytes are bounded, which gives the most accuracy per byte
        (`docs/results.md`), and as they are where numbers are. With `prototypes`, tasks can be recognised (`identify`).
        """
        if (bytes_total is None) != (tasks is None):
            raise SettingError(f"bytes_total={bytes_total} and tasks={tasks} go together; give both or neither")
        if bytes_total is not None and tasks is not None:
            if bytes_per_task is not None:
                raise SettingError("give bytes_per_task, or bytes_total and tasks, not all of them")
            if tasks < 1:
                raise SettingError(f"tasks={tasks} must be at least 1")
            bytes_per_task = bytes_total // tasks
        bound = Budget(bytes_per_task, parameters_per_task, growth_per_task)
        return Halrp(
            allocate=bound,
            view=view,
            precision=precision or ("int8" if bound.in_bytes else "float32"),
            rest=rest or ("int8" if bound.in_bytes else "float32"),
            warm_up=warm_up,
            l1=l1,
            l2=l2,
            base_l2=l2,
            prototypes=prototypes,
        )


class StartRule(Protocol):
    """Finds where the fine-tuning of a task starts: the first half of Algorithm 1."""

    @property
    def reports(self) -> bool:
        """Whether fine-tuning starts at a solution of its own, so that a task is compared with it."""
        return False

    def rehearsal(self, run: TaskRun, /) -> TaskRun | None:
        """A task that is trained before the given one to see whether training makes it better than its start.

        None: there is nothing to see, or no need.
        """
        return None

    def check(self, method: Halrp, /) -> None:
        """Raise `SettingError` if the method has choices that this start cannot follow."""
        return

    def least(self, base: Base, costs: Costs, classes: int, view: str, /) -> Least:
        """What a task costs at least, before it is learned: by default the scales of every weight, and all it owns."""
        return least_whole(base, costs, classes, view)

    @abstractmethod
    def __call__(
        self,
        base: Base,
        method: Halrp,
        run: TaskRun,
        check: CommitCheck,
        costs: Costs,
        /,
    ) -> Starts:
        """Return a start for each view that is tried, and what the task owns in any case.

        `costs(owned, view)` are those of the task, or `costs.parts`; `check.gradients` refuses weights that none
        reaches.
        """


CHOICES: dict[str, type] = {
    "scales": Scales,
    "decompose": Decomposition,
    "importance": Importance,
    "allocate": Allocator,
    "start": StartRule,
    "compress": Compression,
}
"""The protocol of each choice of `Halrp`; `start` may also be None."""
