"""Which layers a task on a given base may change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe
from halrp.errors import SettingError
from halrp.method.from_probe import FromProbe
from halrp.method.reach import LEAST, reached
from halrp.model.call import Call


class Deep(nn.Module):
    """Layers that are called in another order than they are built, the first one twice, and attention."""

    def __init__(self, layers: int = 14) -> None:
        super().__init__()
        self.late = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.blocks, self.blocks[0]):
            x = x + torch.relu(block(x))
        x = self.attention(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]
        logits: Tensor = self.head(self.late(x))
        return logits


ADAPTED = [f"blocks.{i}.weight" for i in range(14)] + [
    "late.weight",
    "attention.in_proj_weight",
    "attention.out_proj.weight",
]


def near(share: float) -> set[str]:
    net = Deep()
    paths = reached(net, Call(), torch.randn(3, 8), ADAPTED, share)
    return {name for name in ADAPTED if name.rpartition(".")[0] in paths}


def test_layers_are_counted_from_the_last_that_is_called() -> None:
    assert near(0.5) == {f"blocks.{i}.weight" for i in range(8, 14)} | {
        "late.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    }


def test_all_layers_are_reached_by_a_share_of_one_and_few_never_fewer_than_eight() -> None:
    assert near(1.0) == set(ADAPTED)
    assert len(near(1e-9)) == LEAST


def test_only_layers_within_reach_change() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 8)
    y = (x @ torch.randn(8, 5)).relu().matmul(torch.randn(5, 3)).argmax(1)
    stored = {}
    for share in (0.5, 1.0):
        learner = Learner(
            Deep(),
            base="given",
            head="head",
            progress=None,
            recipe=Recipe(epochs=1, batch=20),
            method=Halrp(allocate=Halrp.budget(20_000).allocate, start=FromProbe(reach=share, held_out=0)),
        )
        stored[share] = {key.partition("/")[2] for key in learner.learn("a", (x, y)).stored}
    early = {f"blocks.{i}.weight" for i in range(5)}
    assert not stored[0.5] & early
    assert stored[1.0] & early


@pytest.mark.parametrize("value", [0, -0.5, 1.5, "all", float("nan")])
def test_a_share_that_reaches_nothing_or_too_much_is_refused(value: float) -> None:
    with pytest.raises(SettingError, match="reach"):
        FromProbe(reach=value)
