"""`apdfix`: additive parameter decomposition whose shared part is fixed after the first task (Li et al., 2024).

Every layer's weight is θ_t = σ ⊗ M_t + τ_t, M_t = sigmoid(v_t), as in `apd`. The first task trains σ. A later one
trains its own v, τ, biases, norm layers and head, with

    CE(θ_t) + λ1 ‖τ_t‖₁ + ω/2 (‖τ_t‖² + ‖v_t‖²),

and nothing of the tasks before it, so none is forgotten. With `mask_only` there is no τ: a later task adapts σ with one
number per output of each layer.
"""

from __future__ import annotations

from halrp.lab.methods.apd import Decomposed
from halrp.lab.methods.protocol import Context
from halrp.lab.streams import Task


class FixedAdditive(Decomposed):
    """σ of the first task; a mask and a sparse τ for each task."""

    method = "apdfix"
    frozen = True
    first_decides = True

    def __init__(
        self,
        context: Context,
        l1: float = 4e-4,
        l2: float = 1e-4,
        mask_only: bool = False,
        start: str = "sigma",
        threshold: float | None = None,
    ) -> None:
        """Take λ1 and ω (`l2`).

        `mask_only` omits τ, also for the first task. τ starts as a copy of "sigma" or as "zeros"; predictions treat its
        elements of magnitude at most `threshold` as zero, and None means λ1.
        """
        super().__init__(context, l1, l2, start, threshold)
        self.mask_only = mask_only

    def learn(self, task: Task) -> None:
        """Train what the task owns, and σ with the first task."""
        net, part = self.begin(task, sparse=not self.mask_only)
        self.train(task, net, part, sigma_l2=None if self.tasks else self.l2)
