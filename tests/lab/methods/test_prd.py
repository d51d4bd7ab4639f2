"""`prd`: its three losses and their gradients, the views, the teacher, and what is stored."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import DataError, SettingError
from halrp.lab.methods import network, prd
from halrp.lab.methods.check import ITEMS, check_method
from halrp.lab.methods.network import contents
from halrp.lab.methods.prd import PrototypeNetwork, RelationDistillation, TaskLoss
from halrp.lab.methods.prd_losses import View, attract, contrast, distil, grey, relations
from halrp.lab.methods.tiny import TinyNet, tiny_context, tiny_tasks
from halrp.lab.streams import Normal
from halrp.model.views import clone
from tests.lab.methods.small_nets import SMALL, small_context, small_tasks

QUICK: dict[str, Any] = {"prototype_rate": 30.0, "hidden": 32}
"""Twelve steps of a tiny run are few for prototypes."""


def noise(name: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeding.generator("prd", name))


@cache
def learned(tasks: int) -> RelationDistillation:
    method = RelationDistillation(tiny_context(), **QUICK)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


@pytest.mark.parametrize("settings", [{}, {"views": False}, {"axis": "samples"}])
def test_it_keeps_the_contract(settings: dict[str, Any]) -> None:
    report = check_method(lambda context: RelationDistillation(context, **QUICK, **settings))
    assert len(report.passed) == len(ITEMS)
    assert not RelationDistillation.frozen
    assert not RelationDistillation.first_decides


def test_the_contrast_of_four_points_is_that_by_hand() -> None:
    z, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.8, 0.6]]), torch.tensor([0, 1, 0, 1])
    total = 0.0
    for i, p in ((0, 2), (1, 3), (2, 0), (3, 1)):
        others = sum(math.exp(float(z[i] @ z[a]) / 0.5) for a in range(4) if a != i)
        total -= math.log(math.exp(float(z[i] @ z[p]) / 0.5) / others)
    assert float(contrast(z, y, 0.5)) == pytest.approx(0.5 / 0.07 * total / 4, rel=1e-5)


def test_several_examples_of_a_class_share_a_weight_of_one() -> None:
    z, y = F.normalize(noise("z", 6, 4), dim=1), torch.tensor([0, 0, 0, 0, 1, 1])
    total = 0.0
    for i in range(6):
        others = [a for a in range(6) if a != i]
        terms = torch.tensor([float(z[i] @ z[a]) / 0.1 for a in others]).log_softmax(0)
        total -= float(torch.stack([t for t, a in zip(terms, others, strict=True) if y[a] == y[i]]).mean())
    assert float(contrast(z, y)) == pytest.approx(0.1 / 0.07 * total / 6, rel=1e-4)


def test_contrast_falls_as_classes_part_and_bears_large_similarities() -> None:
    y = torch.tensor([0, 0, 1, 1])
    parted = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    mixed = parted[[0, 2, 1, 3]]
    assert contrast(parted, y) < 1e-3 < 1 < contrast(mixed, y)
    assert bool(contrast(mixed, y, 1e-3).isfinite())


def test_prototypes_are_attracted_and_features_are_not() -> None:
    h, w = noise("h", 6, 5).requires_grad_(), noise("w", 3, 5).requires_grad_()
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    loss = attract(h, y, w)
    loss.backward()
    assert h.grad is None
    assert w.grad is not None
    assert bool(w.grad.abs().sum(1).gt(0).all())
    h, w = h.detach(), w.detach()
    cosines = [float(h[i] @ w[y[i]] / h[i].norm() / w[y[i]].norm()) for i in range(6)]
    assert float(loss.detach()) == pytest.approx(1 - sum(cosines) / 6, rel=1e-5)


def test_relations_are_projections_on_prototypes_of_length_one() -> None:
    h, ws = noise("h", 6, 5), [noise("w0", 3, 5), noise("w1", 2, 5)]
    result = relations(h, ws)
    assert [tuple(a.shape) for a in result] == [(6, 3), (6, 2)]
    for a, w in zip(result, ws, strict=True):
        torch.testing.assert_close(a, h @ (w / w.norm(dim=1, keepdim=True)).T)
    torch.testing.assert_close(relations(3 * h, ws)[0], 3 * result[0])  # features are not normalised
    assert relations(h, []) == []


@pytest.mark.parametrize("axis", ["classes", "samples"])
def test_distillation_is_the_divergence_from_the_teacher_summed_over_tasks(axis: Any) -> None:
    old, new = [noise("o0", 6, 3), noise("o1", 6, 2)], [3 * noise("n0", 6, 3), 3 * noise("n1", 6, 2)]
    expected = 0.0
    for o, n in zip(old, new, strict=True):
        dim = 1 if axis == "classes" else 0
        p, q = o.softmax(dim), n.softmax(dim)
        expected += float((p * (p.log() - q.log())).sum(dim).mean())
    assert float(distil(old, new, axis)) == pytest.approx(expected, rel=1e-4)
    assert float(distil(new, old, axis)) != pytest.approx(expected, rel=1e-2), "the teacher is the target"


def test_a_student_like_its_teacher_has_nothing_to_learn_from_it() -> None:
    h, w = noise("h", 6, 5).requires_grad_(), noise("w", 3, 5).requires_grad_()
    old = [a.detach() for a in relations(h, [w])]
    loss = distil(old, relations(h, [w]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    for tensor in (h, w):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad, torch.zeros_like(tensor), rtol=0, atol=1e-6)


def objective(tasks: int, **weights: Any) -> TaskLoss:
    net = TinyNet(3)
    net.head = nn.Identity()  # type: ignore[assignment]
    parts = PrototypeNetwork(net, 16, 32)
    for i in range(tasks):
        parts.prototypes.append(nn.Parameter(noise(f"p{i}", 3, 16)))
    teacher = clone(net).requires_grad_(False).eval()
    old = [p.detach().clone() for p in list(parts.prototypes)[:-1]]
    return replace(TaskLoss(parts, teacher, old, None, 0.1, 2.0, 4.0, "classes"), **weights)


def test_contrast_gives_prototypes_no_gradient_and_attraction_the_encoder_none() -> None:
    x, y = noise("x", 6, 3, 8, 8), torch.arange(6) % 3
    for attraction, silent in ((0.0, "prototypes"), (1e6, "")):
        task_loss = objective(1, attraction=attraction)
        task_loss.loss(task_loss.parts, x, y).backward()
        moved = {n for n, p in task_loss.parts.named_parameters() if p.grad is not None and bool(p.grad.any())}
        assert {"encoder.conv1.weight", "projector.0.weight"} <= moved
        assert ("prototypes.0" in moved) == (silent == "")
    plain, drawn = objective(1, attraction=0.0), objective(1, attraction=1e6)
    drawn.parts.load_state_dict(plain.parts.state_dict())
    for task_loss in (plain, drawn):
        task_loss.loss(task_loss.parts, x, y).backward()
    for a, b in zip(plain.parts.encoder.parameters(), drawn.parts.encoder.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


def test_the_first_task_is_not_distilled_and_later_ones_move_old_prototypes() -> None:
    x, y = noise("x", 6, 3, 8, 8), torch.arange(6) % 3
    first = objective(1, distillation=0.0)
    plain = first.loss(first.parts, x, y)
    first.distillation = 100.0
    assert torch.equal(first.loss(first.parts, x, y), plain)
    later = objective(3)
    with torch.no_grad():
        later.parts.prototypes[0].add_(noise("moved", 3, 16))
    later.loss(later.parts, x, y).backward()
    gradients = [p.grad for p in later.parts.prototypes]
    assert all(g is not None and bool(g.any()) for g in gradients)
    assert all(p.grad is None for p in later.teacher.parameters())


def test_the_teacher_stays_to_the_bit_while_a_task_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    method = RelationDistillation(tiny_context(), **QUICK)
    tasks = tiny_tasks()
    method.learn(tasks[0])
    assert method.parts is not None
    before = {n: t.clone() for n, t in contents(method.parts).items()}
    held: list[TaskLoss] = []
    made = prd.TaskLoss

    def observed(*args: Any) -> TaskLoss:
        held.append(made(*args))
        return held[-1]

    monkeypatch.setattr(prd, "TaskLoss", observed)
    method.learn(tasks[1])
    teacher = {f"encoder.{n}": t for n, t in contents(held[0].teacher).items()}
    assert teacher
    assert all(torch.equal(t, before[n]) for n, t in teacher.items())
    assert torch.equal(held[0].remembered[0], before["prototypes.0"])
    assert not held[0].teacher.training, "no dropout, and the statistics of the batch"
    now = contents(method.parts)
    assert all(not torch.equal(now[n], t) for n, t in before.items() if n.startswith(("encoder.conv", "prototypes")))


def test_a_task_is_predicted_by_cosines_with_its_prototypes() -> None:
    method, x = learned(3), tiny_tasks()[1].test.x[:16]
    assert method.parts is not None
    with torch.no_grad():
        h, w = method.parts.encoder(x), method.parts.prototypes[1]
    torch.testing.assert_close(method.predict(x, 1), F.cosine_similarity(h.unsqueeze(1), w, dim=2))


def test_encoder_and_prototypes_are_stored_and_the_projector_is_told() -> None:
    method = learned(3)
    assert method.parts is not None
    encoder = (6 * 27 + 6 + 12) + (8 * 54 + 8 + 16) + (16 * 32 + 16)
    assert method.stored() == (encoder + 16 * (3 + 2 + 4), 4 * (encoder + 16 * 9))
    assert method.details() == {"projector": sum(p.numel() for p in method.parts.projector.parameters())}


@pytest.mark.parametrize(("features", "size"), [(500, 584_832), (1500, 1_096_832), (2048, 1_377_408), (256, 459_904)])
def test_the_projector_has_the_size_of_the_papers(features: int, size: int) -> None:
    with torch.device("meta"):
        parts = PrototypeNetwork(nn.Identity(), features, 512)
    assert sum(p.numel() for p in parts.projector.parameters()) == size


def test_the_official_recipe_is_its_own_and_the_papers_is_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tiny_context()
    assert RelationDistillation(plain).context.recipe == plain.recipe
    method = RelationDistillation(plain, mode="official")
    recipe = method.context.recipe
    assert (recipe.optimiser, recipe.lr, recipe.momentum, recipe.epochs) == ("sgd", 0.01, 0.9, 100)
    assert (recipe.batch, recipe.schedule) == (128, "constant")
    given: list[Any] = []
    monkeypatch.setattr(network, "fit", lambda context, task, net, groups, *rest, **hooks: given.extend(groups))
    method.learn(tiny_tasks()[0])
    encoder, prototypes = given
    assert (encoder.l2, prototypes.l2) == (1e-4, 0.0)
    assert prototypes.lr == pytest.approx(0.1)
    assert [tuple(p.shape) for p in prototypes.parameters] == [(3, 16)]


PIXELS = torch.rand(40, 3, 16, 16, generator=seeding.generator("pixels"))
NORMAL = Normal((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


def normalised(pixels: Tensor) -> Tensor:
    return (pixels - torch.tensor(NORMAL.mean).view(-1, 1, 1)) / torch.tensor(NORMAL.deviation).view(-1, 1, 1)


def test_colours_are_changed_in_pixels_and_stay_pixels() -> None:
    view = View(NORMAL, normalised(PIXELS))
    result = view.coloured(PIXELS, seeding.generator("view"))
    assert float(result.min()) >= 0
    assert float(result.max()) <= 1
    same = ((result - PIXELS).abs() < 1e-6).flatten(1).all(1).sum()
    is_grey = (result[:, 0] == result[:, 1]).flatten(1).all(1).sum()
    assert 0 < int(same) < 20, "one of five keeps its colours, unless it becomes grey"
    assert 2 <= int(is_grey) <= 16, "one of five"


def test_without_colours_and_crops_a_view_is_the_image_its_mirror_image_or_grey() -> None:
    x, dull = normalised(PIXELS), normalised(grey(PIXELS).expand_as(PIXELS))
    result = View(NORMAL, x, padding=0, colour=0.0)(x, seeding.generator("plain"))
    choices = torch.stack([x, x.flip(3), dull, dull.flip(3)])
    far = (choices - result).abs().flatten(2).amax(2)
    assert float(far.amin(0).max()) < 1e-5
    assert far.argmin(0).bincount(minlength=4).gt(0).all(), "each of the four comes up"


def test_brightness_and_contrast_are_those_of_the_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View(Normal((0.0,), (1.0,)), PIXELS[:, :1])
    draw = torch.rand
    values = iter([torch.tensor([0.75, 0.25, 0.5]).view(3, 1, 1, 1, 1), torch.tensor([0.0, 1.0]).view(2, 1, 1, 1, 1)])
    monkeypatch.setattr(torch, "rand", lambda *shape, **kw: next(values).expand(shape))
    pixels = 0.5 * PIXELS[:4, :1]
    result = view.coloured(pixels, seeding.generator("unused"))
    bright = pixels * 1.2
    mean = bright.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(result, mean + 0.8 * (bright - mean))
    monkeypatch.setattr(torch, "rand", draw)


def test_views_are_functions_of_the_generator_and_keep_shape_and_layout() -> None:
    x = normalised(PIXELS).contiguous(memory_format=torch.channels_last)
    view = View(NORMAL, x)
    a, b, c = (view(x, seeding.generator(name)) for name in ("a", "a", "c"))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert a.shape == x.shape
    assert a.is_contiguous(memory_format=torch.channels_last)


def test_both_views_of_a_batch_come_from_the_trainings_generator() -> None:
    x = normalised(PIXELS)
    task_loss = replace(objective(1), view=View(NORMAL, x))
    assert task_loss.attend(x, seeding.generator("batch")) is x
    two = task_loss.views(x)
    generator = seeding.generator("batch")
    assert torch.equal(two, torch.cat([View(NORMAL, x)(x, generator), View(NORMAL, x)(x, generator)]))
    assert not torch.equal(two[:40], two[40:])


def test_values_that_are_no_pixels_keep_their_range() -> None:
    x = noise("far", 10, 3, 8, 8) * 5
    view = View(Normal((0.0,), (1.0,)), x)
    assert (view.low, view.high) == (float(x.min()), float(x.max()))
    result = view.coloured(x, seeding.generator("far"))
    assert float(result.min()) < -1, "negative values are not cut off"


def test_crops_are_an_eighth_of_the_image_and_four_pixels_at_most() -> None:
    sizes = {side: View(NORMAL, torch.zeros(1, 3, side, side)).crop.padding for side in (8, 32, 64)}
    assert sizes == {8: 1, 32: 4, 64: 4}
    assert View(NORMAL, torch.zeros(1, 3, 8, 8), 3).crop.padding == 3


def test_what_is_no_image_has_no_views() -> None:
    with pytest.raises(DataError, match="views=False"):
        View(NORMAL, torch.zeros(4, 10))


@pytest.mark.parametrize(
    "settings", [{"mode": "quick"}, {"axis": "rows"}, {"temperature": 0.0}, {"hidden": 0}, {"prototype_rate": -1.0}]
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="prd"):
        RelationDistillation(tiny_context(), **settings)


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_with_every_backbone(name: str) -> None:
    method = RelationDistillation(small_context(name), hidden=16)
    for i, task in enumerate(small_tasks(name)):
        method.learn(task)
        assert method.predict(task.test.x, i).shape == (12, 2 + i)
