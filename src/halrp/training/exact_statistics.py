"""Batch-norm statistics over all training data, in place of a moving average of those of the last batches.

A moving average lags behind the parameters, most of all where these are averages themselves. Here one pass without
gradients gives every batch norm the mean and the unbiased variance of its inputs over all rows and positions. In that
pass norms normalise by their batch, as in training; all other layers are in evaluation mode.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from halrp.model.layers.norm import BATCH_NORMS
from halrp.training.batches import Data
from halrp.training.distributed import Processes
from halrp.training.recipe import Recipe, autocast
from halrp.training.shared_data import exactly
from halrp.training.stage import Loss


class Moments:
    """Count, mean and summed squared deviations of the values of each channel, in float64."""

    def __init__(self) -> None:
        """Begin without a value."""
        self.count = 0
        self.mean: Tensor = torch.zeros((), dtype=torch.float64)
        self.squares: Tensor = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Add values (N, C, *space)."""
        wide = x.detach().cpu().double() if x.device.type == "mps" else x.detach().double()
        variance, mean = torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)
        if not self.count:
            self.mean, self.squares = torch.zeros_like(mean), torch.zeros_like(mean)
        count = x.numel() // x.shape[1]
        total, shift = self.count + count, mean - self.mean
        self.squares = self.squares + variance * count + shift.square() * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.count = total

    def add_others(self, processes: Processes) -> None:
        """Add the values of the other processes."""
        counts = torch.full_like(self.mean, self.count)
        sums = torch.stack([counts, counts * self.mean])
        processes.add_flat(sums)
        mean = sums[1] / sums[0]
        squares = self.squares + counts * (self.mean - mean).square()
        processes.add_flat(squares)
        self.count, self.mean, self.squares = int(sums[0, 0]), mean, squares

    @property
    def variance(self) -> Tensor:
        """Unbiased."""
        return self.squares / (self.count - 1)


class ExactStatistics:
    """The statistics of a module's batch norms: those of training, and exact ones while it is evaluated."""

    def __init__(self, module: nn.Module, data: Data, loss: Loss, recipe: Recipe, task: str) -> None:
        """Take a module, the training data of a task and the loss that runs the module on a batch of them.

        Norms that have no running statistics are left alone.
        """
        self._module, self._data, self._loss, self._recipe, self._task = module, data, loss, recipe, task
        self._running: list[dict[str, Tensor]] | None = None
        """The statistics of training, while there are exact ones in their place."""

    def _norms(self) -> list[Any]:
        return [m for m in self._module.modules() if isinstance(m, BATCH_NORMS) and m.running_mean is not None]

    def _one_pass(self, processes: Processes | None) -> None:
        recipe = self._recipe
        batches = self._data.batches(recipe.batch, None)
        if processes is not None:
            batches = exactly(batches, self._data.steps(recipe.batch), self._task)
        for x, y in batches:
            with autocast(recipe.autocast, y.device):
                self._loss(self._module, x, y)

    def measure(self, processes: Processes | None = None) -> None:
        """Set exact statistics in the module, which is in evaluation mode; `processes` have a part of the data each."""
        self.restore()
        norms = self._norms()
        self._running = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
        moments = [Moments() for _ in norms]
        hooks = [
            norm.register_forward_pre_hook(partial(_add_input, of_norm))
            for norm, of_norm in zip(norms, moments, strict=True)
        ]
        running = self._running
        try:
            for norm in norms:
                norm.train()
            with torch.no_grad():
                if norms:
                    self._one_pass(processes)
        finally:
            for hook in hooks:
                hook.remove()
            for norm in norms:
                norm.eval()
            self.restore()
        self._running = running
        for norm, of_norm in zip(norms, moments, strict=True):
            if of_norm.count and processes is not None:
                of_norm.add_others(processes)
            if of_norm.count > 1:
                norm.running_mean.copy_(of_norm.mean)
                norm.running_var.copy_(of_norm.variance)

    @torch.no_grad()
    def restore(self) -> None:
        """Set the statistics of training again, if exact ones are in their place."""
        if self._running is not None:
            for norm, buffers in zip(self._norms(), self._running, strict=True):
                for name, buffer in norm.named_buffers():
                    buffer.copy_(buffers[name])
            self._running = None


def _add_input(moments: Moments, _: nn.Module, inputs: tuple[Any, ...]) -> None:
    moments.add(cast(Tensor, inputs[0]))
