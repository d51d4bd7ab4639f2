"""`iru`: incremental rank updates (Hyder et al., 2022).

Every layer but the head has the weight W_t = V_tᵀ diag(s_t) U_t, with U_t = [U_{t−1}; dU_t] of R_t = r1 + t·r2 rows and
V_t likewise. Rows of earlier tasks are frozen. A task trains its r2 new rows, a selector s_t over all rows, biases,
norm layers and a head. The selector starts at zero for old rows and at one for new ones; new rows and the head start
orthonormal. A task is predicted with the rows that existed when it was learned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab.methods import network
from halrp.lab.methods.factored import Factored, LayerFactors, SharedFactors, TaskFactors, body, extent
from halrp.lab.methods.protocol import Context, State
from halrp.lab.methods.settings import MODES, Mode, check_choice, official_recipe
from halrp.lab.streams import Split, Task
from halrp.lab.streams.stream import Normal
from halrp.model.views import replace_module
from halrp.training.loop import Group, supervised_loss

OFFICIAL_EPOCHS = 500


class Updated(Factored):
    """A layer of frozen rows u (R, inputs), v (R, outputs) and new ones; the selector is over all of them."""

    def __init__(self, layer: nn.Module, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> None:
        """Take the frozen rows, which are not copied, and the initial new rows."""
        biased = layer.bias is not None
        super().__init__(layer)
        self.u, self.v = (nn.Buffer(t, persistent=False) for t in old)
        self.du, self.dv = (nn.Parameter(t) for t in new)
        self.s = nn.Parameter(torch.cat((old[0].new_zeros(len(old[0])), new[0].new_ones(len(new[0])))))
        self.bias = nn.Parameter(new[1].new_zeros(new[1].shape[1])) if biased else None

    def factors(self) -> LayerFactors:
        """Old rows and new ones."""
        return LayerFactors(torch.cat((self.u, self.du)), torch.cat((self.v, self.dv)), self.s, self.bias)


def orthonormal(shape: tuple[int, int], *seed_key: object) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer; float64."""
    return nn.init.orthogonal_(torch.empty(shape, dtype=torch.float64), generator=seeding.generator(*seed_key))


def squared_error(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean squared difference between the softmax of logits (batch, classes) and one-hot labels."""
    probabilities = net(x).softmax(1)
    return F.mse_loss(probabilities, F.one_hot(y, probabilities.shape[1]).to(probabilities.dtype))


def bytes_of(x: Tensor, normal: Normal) -> Tensor:
    """Pixels 0 … 255 of normalised images (batch, channels, …)."""
    mean, deviation = (x.new_tensor(values).view(-1, *[1] * (x.dim() - 2)) for values in normal)
    return 255 * (x * deviation + mean)


class RankUpdates(SharedFactors):
    """A few more ranks for each task."""

    def __init__(
        self,
        context: Context,
        r1: int = 11,
        r2: int = 1,
        mode: Mode = "paper",
        epochs: int | None = None,
        l2: float = 0.0,
    ) -> None:
        """Take the rank of the first task, and the rank that each later one adds.

        Mode "paper" trains by the run's recipe. Mode "official" is the authors' published run: squared error of the
        softmax, pixels 0 … 255, Adam at a constant 1e-4, batches of 128, 500 epochs. `epochs` replaces the mode's
        number. `l2` is a penalty λ/2·‖·‖² on new rows.
        """
        check_choice("iru", "mode", mode, MODES)
        for name, value, least in (("r1", r1, 1), ("r2", r2, 0), ("epochs", epochs, 1)):
            if value is not None and value < least:
                raise SettingError(f"iru({name}={value!r}) is too small; give a whole number of at least {least}")
        recipe = context.recipe
        if mode == "official":
            recipe = official_recipe(recipe, optimiser="adam", lr=1e-4, batch=128, epochs=OFFICIAL_EPOCHS)
        super().__init__(replace(context, recipe=replace(recipe, epochs=epochs or recipe.epochs)))
        self.r1, self.r2, self.mode, self.l2 = r1, r2, mode, l2
        self.normals: list[Normal] = []

    def learn(self, task: Task) -> None:
        """Train new rows, the selector, biases, norm layers and the head."""
        context, first = self.context, not self.tasks
        seed_key = network.first_seed_key(context, task) if first else network.later_seed_key(context, task)
        net = network.fresh(context, task)[0]
        head = net.get_submodule(network.HEAD)
        assert isinstance(head, nn.Linear)
        with torch.no_grad():
            head.weight.copy_(orthonormal((head.out_features, head.in_features), *seed_key, "output"))
            if head.bias is not None:
                head.bias.zero_()
        layers = self._update(net, seed_key)
        rows = [p for layer in layers.values() for p in (layer.du, layer.dv)]
        ids = {id(p) for p in rows}
        groups = [Group(rows, l2=self.l2), Group([p for p in net.parameters() if id(p) not in ids])]
        official = self.mode == "official"
        seen = replace(task, train=Split(bytes_of(task.train.x, task.normal), task.train.y)) if official else task
        loss = squared_error if official else supervised_loss
        network.fit(context, seen, net, groups, seed_key, "base" if first else "update", loss=loss)
        for path, layer in layers.items():
            factors = layer.factors()
            self.dictionary[path] = factors.u.detach(), factors.v.detach()
        gates = {path: layer.s.detach() for path, layer in layers.items()}
        self.tasks.append(TaskFactors(task.classes, gates, self.owned(net, task.classes)))
        self.normals.append(task.normal)

    def _update(self, net: nn.Module, seed_key: network.SeedKey) -> dict[str, Updated]:
        """Replace the layers of a new network by ones with frozen and new rows."""
        layers = {}
        for path, layer in body(net).items():
            weight = layer.weight
            assert isinstance(weight, Tensor)
            inputs, outputs = sizes = extent(layer)
            rank = self.r2 if self.tasks else self.r1
            new = tuple(
                orthonormal((rank, n), *seed_key, path, part).to(weight) for n, part in zip(sizes, "uv", strict=True)
            )
            old = self.dictionary.get(path, (weight.new_zeros(0, inputs), weight.new_zeros(0, outputs)))
            layers[path] = Updated(layer, old, (new[0], new[1]))
            replace_module(net, path, layers[path])
        return layers

    def factors(self, path: str, task: int) -> LayerFactors:
        """The first R_t rows with the task's selector."""
        gate = self.tasks[task].gates[path]
        u, v = self.dictionary[path]
        return LayerFactors(u[: len(gate)], v[: len(gate)], gate)

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's merged network."""
        return super().predict(bytes_of(x, self.normals[task]) if self.mode == "official" else x, task)

    def state(self) -> State:
        """Rows, tasks, and the normalisation of each task's pixels."""
        plain = super().state()
        return State(plain.tensors, plain.values | {"normals": [list(map(list, normal)) for normal in self.normals]})

    def restore(self, state: State) -> None:
        """Take rows, tasks and normalisations from a state."""
        super().restore(state)
        self.normals = [Normal(tuple(mean), tuple(deviation)) for mean, deviation in state.values["normals"]]

    def details(self) -> dict[str, Any]:
        """The rank R_t of the task just learned, the same in every layer."""
        return {"rank": self.r1 + self.r2 * (len(self.tasks) - 1)} if self.tasks else {}
