"""The diagonal Fisher information against formulas and explicit loops, in float64."""

from __future__ import annotations

from typing import cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.errors import SettingError
from halrp.lab.methods.ewc import Labels, fisher_by_batch, fisher_by_example
from halrp.lab.methods.network import contents
from halrp.lab.methods.tiny import TinyNet, tiny_context, tiny_tasks

ROUNDING = 1e-12
"""Sums of some dozens of float64 terms in another order."""


def linear() -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    net = tiny_context().build(3, 0).head
    model = cast(nn.Linear, net).double()
    return model, torch.randn(37, 16, generator=generator).double(), torch.arange(37) % 3


def network() -> tuple[TinyNet, Tensor, Tensor]:
    task = tiny_tasks()[0]
    net = cast(TinyNet, tiny_context().build(3, 0)).double()
    net(task.train.x.double())  # running statistics of its own
    return net.eval(), task.train.x.double()[:21], task.train.y[:21]


def by_loops(net: nn.Module, x: Tensor, y: Tensor, labels: Labels) -> dict[str, Tensor]:
    named = dict(net.named_parameters())
    total = {n: torch.zeros_like(p) for n, p in named.items()}
    for row, truth in zip(x, y, strict=True):
        logits = net(row.unsqueeze(0))
        chances = logits.detach().softmax(1)[0]
        choices = {
            "true": [(int(truth), 1.0)],
            "predicted": [(int(chances.argmax()), 1.0)],
            "exact": [(c, float(chances[c])) for c in range(len(chances))],
        }[labels]
        for label, weight in choices:
            score = logits.log_softmax(1)[0, label]
            gradients = torch.autograd.grad(score, list(named.values()), retain_graph=True)
            for name, gradient in zip(named, gradients, strict=True):
                total[name] += weight * gradient.square() / len(x)
    return total


def close(result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert result.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(result[name], expected[name], rtol=1e-9, atol=ROUNDING, msg=name)


def test_of_a_linear_softmax_model_it_is_the_variance_of_the_labels_times_the_squared_input() -> None:
    model, x, y = linear()
    result = fisher_by_example(model, dict(model.named_parameters()), x, y, "exact")
    chances = model(x).softmax(1).detach()
    variance = chances * (1 - chances)
    close(result, {"weight": variance.T @ x.square() / len(x), "bias": variance.mean(0)})


@pytest.mark.parametrize("labels", ["predicted", "true", "exact"])
def test_by_example_it_is_the_mean_of_squared_gradients(labels: Labels) -> None:
    net, x, y = network()
    close(fisher_by_example(net, dict(net.named_parameters()), x, y, labels), by_loops(net, x, y, labels))


def test_label_choices_differ() -> None:
    net, x, y = network()
    result = [by_loops(net, x, y, labels)["head.weight"] for labels in ("predicted", "true", "exact")]
    assert not torch.allclose(result[0], result[1])
    assert not torch.allclose(result[0], result[2])


@pytest.mark.parametrize("labels", ["predicted", "true"])
def test_by_batch_it_is_the_mean_over_batches_of_size_times_squared_mean_gradient(labels: Labels) -> None:
    net, x, y = network()
    named = dict(net.named_parameters())
    expected = {n: torch.zeros_like(p) for n, p in named.items()}
    parts = [(x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:])]
    for rows, truth in parts:
        logits = net(rows)
        loss = F.cross_entropy(logits, truth if labels == "true" else logits.argmax(1))
        for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
            expected[name] += len(rows) * gradient.square() / 3
    close(fisher_by_batch(net, named, x, y, labels, batch=8), expected)


def test_by_batches_of_one_both_forms_agree() -> None:
    net, x, y = network()
    named = dict(net.named_parameters())
    close(fisher_by_batch(net, named, x, y, "true", batch=1), fisher_by_example(net, named, x, y, "true"))


def test_it_is_nowhere_negative_and_zero_for_a_dead_unit() -> None:
    net, x, y = network()
    with torch.no_grad():
        net.linear.bias[4] = -1e6
    named = dict(net.named_parameters())
    for result in (fisher_by_batch(net, named, x, y, "true", 8), fisher_by_example(net, named, x, y, "true")):
        assert all(bool((f >= 0).all()) for f in result.values())
        assert float(result["linear.weight"][4].abs().sum()) == 0
        assert float(result["linear.bias"][4]) == 0
        assert float(result["head.weight"][:, 4].abs().sum()) == 0
        assert float(result["linear.weight"].sum()) > 0


def test_it_leaves_the_network_as_it_was() -> None:
    net, x, y = network()
    net.conv1.requires_grad_(False)
    needs = [p.requires_grad for p in net.parameters()]
    before = {n: t.clone() for n, t in contents(net).items()}
    named = dict(net.named_parameters())
    with torch.no_grad():
        fisher_by_batch(net, named, x, y, "predicted", 8)
        fisher_by_example(net, named, x, y, "predicted")
    assert not any(module.training for module in net.modules())
    assert [p.requires_grad for p in net.parameters()] == needs
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(t, before[n]) for n, t in contents(net).items())


class ByBatch(nn.Module):
    """A network whose norm uses the statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.norm(x)))


def test_statistics_of_the_batch_need_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    net, x, y = ByBatch().eval(), torch.randn(9, 4, generator=generator), torch.arange(9) % 2
    named = dict(net.named_parameters())
    with pytest.raises(SettingError, match="per_example=False"):
        fisher_by_example(net, named, x, y, "true")
    result = fisher_by_batch(net, named, x, y, "true", batch=4)  # the ninth row joins the second batch
    assert float(result["head.weight"].sum()) > 0
    assert float(result["unused"].sum()) == 0
