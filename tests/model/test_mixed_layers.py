"""Every kind of layer in a mixed batch, against each row alone in its task's own view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp.model.plan import plan as plan_of
from halrp.model.rows import Rows
from tests.helpers import net, tiny_task
from tests.model.mixing import around, assert_mixes, base_task, inputs, mixed_module, random_delta

LINEARS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows of vectors": (lambda: nn.Linear(10, 9), (10,)),
    "rows of sequences": (lambda: nn.Linear(10, 9), (4, 10)),
    "no bias": (lambda: nn.Linear(10, 9, bias=False), (2, 3, 10)),
}
CONVS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(8, 9, 3, padding=1), (8, 7)),
    "2d": (lambda: nn.Conv2d(8, 9, 3, padding=1), (8, 5, 6)),
    "3d": (lambda: nn.Conv3d(6, 9, (1, 2, 3), padding=1), (6, 3, 4, 4)),
    "no bias, stride and dilation": (lambda: nn.Conv2d(8, 9, 3, stride=2, dilation=2, bias=False), (8, 9, 9)),
    "same padding of an even kernel": (lambda: nn.Conv2d(8, 9, (2, 4), padding="same"), (8, 5, 6)),
    "no padding by name": (lambda: nn.Conv2d(8, 9, 3, padding="valid"), (8, 5, 6)),
    "circular padding": (lambda: nn.Conv2d(8, 9, 3, padding=1, padding_mode="circular"), (8, 5, 6)),
    "reflected padding": (lambda: nn.Conv1d(8, 9, 3, padding=2, padding_mode="reflect"), (8, 6)),
    "1×1": (lambda: nn.Conv2d(8, 9, 1), (8, 3, 3)),
    "groups": (lambda: nn.Conv2d(8, 12, 3, padding=1, groups=2), (8, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(8, 16, 3, padding=1, groups=8), (8, 5, 5)),
}
NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch norm of vectors": (lambda: nn.BatchNorm1d(6), (6,)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(6), (6, 5)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(6), (6, 3, 4)),
    "batch norm 3d": (lambda: nn.BatchNorm3d(6), (6, 2, 2, 3)),
    "batch norm without affine part": (lambda: nn.BatchNorm2d(6, affine=False), (6, 3, 4)),
    "layer norm": (lambda: nn.LayerNorm(6), (4, 6)),
    "layer norm over two dimensions": (lambda: nn.LayerNorm((4, 6)), (2, 4, 6)),
    "layer norm without bias": (lambda: nn.LayerNorm(6, bias=False), (6,)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (6, 3, 4)),
    "instance norm": (lambda: nn.InstanceNorm2d(6, affine=True), (6, 3, 4)),
    "instance norm with running statistics": (
        lambda: nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
        (6, 5),
    ),
    "root mean square norm": (lambda: nn.RMSNorm(6, eps=1e-6), (4, 6)),
}


class Attention(nn.Module):
    """Self-attention with a mask over keys for each row and one over positions for all."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        ignored = x[:, :, 0] > 1.5
        ignored[:, 0] = False
        y, weights = self.attend(x, x, value=x, key_padding_mask=ignored, attn_mask=causal)
        return cast(Tensor, y + weights.sum(-1, keepdim=True))


class Recurrent(nn.Module):
    """A recurrent layer that starts from a state for each row and gives its last one."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(8, 8, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, :4].transpose(0, 1).contiguous()
        y, last = self.cell(x, (state, state) if isinstance(self.cell, nn.LSTM) else state)
        last = last[1] if isinstance(last, tuple) else last
        return cast(Tensor, y[:, -1] + last.mean(0).repeat(1, 2))


class SequenceFirst(nn.Module):
    """Works on (length, rows, features) inside, as layers of torch do unless they are asked for something else."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        for layer in self.layers:
            if isinstance(layer, nn.MultiheadAttention):
                y, weights = layer(x, x, x, key_padding_mask=(x[:, :, 0] > 1.5).t())
                x = y + weights.sum((1, 2))[:, None]
            else:
                x = layer(x)[0] if isinstance(layer, nn.RNNBase) else layer(x)
        return x.transpose(0, 1)


class TokensFirst(nn.Module):
    """Embeds tokens (length, rows)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.table((x.abs() * 4).long().clamp(max=10).t()).transpose(0, 1))


SECOND: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: SequenceFirst(nn.Linear(8, 9)), (5, 8)),
    "layer norm": (lambda: SequenceFirst(nn.LayerNorm(8)), (5, 8)),
    "recurrent": (lambda: SequenceFirst(nn.GRU(8, 8, bidirectional=True)), (5, 8)),
    "attention": (lambda: SequenceFirst(nn.MultiheadAttention(8, 2)), (5, 8)),
    "transformer": (lambda: SequenceFirst(nn.TransformerEncoderLayer(8, 2, 16)), (5, 8)),
    "tokens": (TokensFirst, (5,)),
}

ROW_WISE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transposed convolution": (lambda: nn.ConvTranspose2d(8, 9, 3, stride=2), (8, 3, 3)),
    "learned slope": (lambda: nn.PReLU(6), (6, 3)),
    "attention": (Attention, (5, 8)),
    "recurrent": (lambda: Recurrent(nn.GRU), (5, 8)),
    "long short-term memory": (lambda: Recurrent(nn.LSTM), (5, 8)),
}


@pytest.mark.parametrize("kind", LINEARS)
def test_a_linear_layer_gives_each_row_its_own_task(kind: str) -> None:
    build, shape = LINEARS[kind]
    model, plan = around(build, *shape)
    assert plan.parameters["layer.weight"].by_rule
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(6))]
    assert_mixes(model, plan, deltas, inputs(23, *shape))


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch says what its own layer does
@pytest.mark.parametrize("view", ["mean", "full merged", "full filters", "both"])
@pytest.mark.parametrize("kind", CONVS)
def test_a_convolution_gives_each_row_its_own_task(kind: str, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if view.startswith("full"):
        monkeypatch.setattr("halrp.model.layers.conv.MERGE_FROM", 0 if view == "full merged" else torch.inf)
    build, shape = CONVS[kind]
    model, plan = around(build, *shape)
    assert plan.parameters["layer.weight"].by_rule
    names = ["mean", "full"] if view == "both" else [view.split()[0]]
    deltas = [
        base_task(model, plan),
        *(random_delta(model, plan, seed, view=names[seed % len(names)]) for seed in range(6)),
    ]
    assert_mixes(model, plan, deltas, inputs(17, *shape))


def test_channels_last_inputs_stay_so_and_agree() -> None:
    model, plan = around(lambda: nn.Conv2d(8, 9, 3, padding=1), 8, 5, 6)
    cast(Any, model).to(memory_format=torch.channels_last)
    deltas = [random_delta(model, plan, seed) for seed in range(4)]
    x = inputs(12, 8, 5, 6).contiguous(memory_format=torch.channels_last)
    seen: list[Tensor] = []
    mixed = mixed_module(model, plan, deltas)
    cast(Any, mixed._net).layer.register_forward_hook(lambda _, args, y: seen.extend((args[0], y)))
    mixed(x, torch.arange(12) % 4)
    assert mixed.one_pass
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in seen)
    assert_mixes(model, plan, deltas, x)


@pytest.mark.parametrize(("build", "shape"), [LINEARS["rows of sequences"], CONVS["2d"], CONVS["groups"]])
def test_dense_weights_mix_with_factors_and_with_the_base(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    model, plan = around(build, *shape)
    dense_weights = [("layer.weight",), (), ("layer.weight", "body.weight"), ("squeeze.weight",)]
    deltas = [
        *(random_delta(model, plan, seed, dense=dense_weights[seed]) for seed in range(4)),
        base_task(model, plan),
    ]
    assert_mixes(model, plan, deltas, inputs(19, *shape))
    everyone = [random_delta(model, plan, seed, dense=("layer.weight",)) for seed in range(3)]
    assert_mixes(model, plan, everyone, inputs(11, *shape))


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_layer_gives_each_row_its_own_task(kind: str) -> None:
    build, shape = NORMS[kind]
    model, plan = around(build, *shape)
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(5))]
    assert any(name.startswith("layer.") for name in deltas[1].owned)
    assert_mixes(model, plan, deltas, 2 + 3 * inputs(16, *shape))


@pytest.mark.parametrize("kind", ROW_WISE)
def test_other_row_wise_layers_are_applied_group_by_group(kind: str) -> None:
    build, shape = ROW_WISE[kind]
    model, plan = around(build, *shape)
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(4))]
    assert_mixes(model, plan, deltas, inputs(13, *shape))


@pytest.mark.parametrize("kind", SECOND)
@pytest.mark.parametrize("count", [5, 13])  # 5 is also the length
def test_rows_may_be_second_where_a_layer_allows_it(kind: str, count: int) -> None:
    build, shape = SECOND[kind]
    model, plan = around(build, *shape)
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(3))]
    assert_mixes(model, plan, deltas, inputs(count, *shape))


def test_tokens_are_embedded_by_their_own_task() -> None:
    model = net("gru").double().eval()
    plan = plan_of(model)
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(4))]
    x, _ = tiny_task("gru", examples=18)
    assert_mixes(model, plan, deltas, x)


class Tokens(nn.Module):
    """An embedding of token ids that rows hold as numbers, or of the first one alone."""

    def __init__(self, single: bool, padding: int | None) -> None:
        super().__init__()
        self.single = single
        self.table = nn.Embedding(11, 8, padding_idx=padding)

    def forward(self, x: Tensor) -> Tensor:
        ids = (x.abs() * 4).long().clamp(max=10)
        return cast(Tensor, self.table(ids[:, 0] if self.single else ids))


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("padding", [None, 0])
def test_an_embedding_gives_each_row_its_own_task(single: bool, padding: int | None) -> None:
    model, plan = around(lambda: Tokens(single, padding), 5)
    assert plan.parameters["layer.table.weight"].by_rule
    dense = [(), (), ("layer.table.weight",), ()]
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed, dense=dense[seed]) for seed in range(4))]
    assert_mixes(model, plan, deltas, inputs(19, 5))
    assert_mixes(model, plan, [random_delta(model, plan, seed, rank=0) for seed in range(2)], inputs(9, 5))


def test_ranks_of_zero_everywhere_need_no_branch() -> None:
    model, plan = around(lambda: nn.Conv2d(8, 9, 3), 8, 5, 5)
    deltas = [random_delta(model, plan, seed, rank=0) for seed in range(3)]
    assert_mixes(model, plan, deltas, inputs(9, 8, 5, 5))


@pytest.mark.parametrize("counts", [(3, 3, 3), (40, 1, 1, 1), (1,) * 9, (5,), (1, 30, 2)])
def test_products_of_rows_waste_little_however_uneven_the_tasks(counts: tuple[int, ...]) -> None:
    tasks = [task for task, count in enumerate(counts) for _ in range(count)]
    rows = Rows(tasks, torch.device("cpu"))
    x, matrices = inputs(len(tasks), 2, 5), inputs(len(counts), 4, 5, seed=1)
    expected = torch.stack([x[n] @ matrices[task].T for n, task in enumerate(tasks)])
    torch.testing.assert_close(rows.times(x, matrices), expected, rtol=0, atol=1e-12)
    chunks, slots, _ = rows._chunks
    assert len(chunks) <= 2 * len(counts)
    assert len(slots) <= 4 * len(tasks)
