"""Layers of text and vision nets: each learns, agrees in mixed batches, is stored, loaded and exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from halrp import Halrp, Learner, WarmUp
from tests.helpers import FAST, drawn
from tests.model.zoo import CLASSES

WIDTH = 12


class Net(nn.Module):
    """A layer of (N, 12, 12) between a linear layer and a head."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.body, self.layer, self.fc = nn.Linear(WIDTH, WIDTH), layer, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.layer(self.body(x)).mean(1)))


class Packed(nn.Module):
    """torch's attention, with one weight for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.attend(x, x, x, need_weights=False)[0])


class Separate(nn.Module):
    """Attention with a layer each for queries, keys and values, and a learned bias of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=bias) for bias in (True, False, True))
        self.bias = nn.Parameter(torch.zeros(2, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(2, (2, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, self.bias[None]).transpose(1, 2).flatten(2)


class HomeMadeNorm(nn.Module):
    """As in Llama and T5."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Held(nn.Module):
    """Positions, a token, a scale for each channel and one number, held by the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.1 * torch.randn(1, WIDTH + 1, WIDTH))
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, WIDTH))
        self.gamma = nn.Parameter(torch.ones(WIDTH))
        self.temperature = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return (x * self.gamma * self.temperature.exp()).softmax(1)


class Positions(nn.Module):
    """A table of positions whose ids are the same for every row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH)
        self.register_buffer("ids", torch.arange(WIDTH)[None])

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + self.table(self.ids))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "grouped convolution": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=3),
    "depthwise convolution": lambda: nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH),
    "depthwise convolution with several filters": lambda: nn.Conv1d(WIDTH, 2 * WIDTH, 5, padding=2, groups=WIDTH),
    "packed attention": Packed,
    "separate attention": Separate,
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "root mean square norm": lambda: nn.RMSNorm(WIDTH),
    "home-made norm": HomeMadeNorm,
    "group norm": lambda: nn.GroupNorm(3, WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "instance norm": lambda: nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "weight norm of a convolution": lambda: parametrizations.weight_norm(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "held parameters": Held,
    "positions": Positions,
    "learned slope": lambda: nn.PReLU(WIDTH),
    "transposed convolution": lambda: nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1),
}


def task(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(24) % CLASSES
    return torch.randn(CLASSES, 1, WIDTH, generator=generator)[y] + torch.randn(
        24, WIDTH, WIDTH, generator=generator
    ), y


@pytest.mark.parametrize("base", ["given", "first"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_goes_the_whole_way(kind: str, base: Any, tmp_path: Path) -> None:
    model = drawn(lambda: Net(KINDS[kind]()))
    method = replace(Halrp.budget(growth_per_task=0.8), start=WarmUp())  # every layer is changed
    learner = Learner(model, base=base, head="fc", method=method, recipe=FAST, progress=None)
    for number, name in enumerate("abc"):
        learner.learn(name, task(number))
    x = task(9)[0][:9]
    alone = {name: learner.predict(x, name) for name in "abc"}
    delta = learner.tasks["c"]
    changed = {name for name in (*delta.factors, *delta.owned) if name.startswith("layer.")}
    assert changed
    rows = ["abc"[n % 3] for n in range(9)]
    expected = torch.stack([alone[name][n] for n, name in enumerate(rows)])
    # The same sums in another order, a few roundings of float32.
    torch.testing.assert_close(learner.predict(x, rows), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert cast(Any, learner)._committed.predictor._mixed.one_pass
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, drawn(lambda: Net(KINDS[kind]())))
    assert all(torch.equal(loaded.predict(x, name), logits) for name, logits in alone.items())
    with torch.no_grad():
        exported = learner.export("c")(x)
    torch.testing.assert_close(exported, alone["c"], rtol=1e-5, atol=1e-5 * float(alone["c"].abs().max()))
