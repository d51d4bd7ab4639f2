"""The laboratory's methods: separate networks, fine-tuning and HALRP on the same tiny stream."""

import pytest
import torch

from halrp import Recipe
from halrp.errors import SettingError
from halrp.lab import backbones, methods, streams
from halrp.lab.methods.contract import size_of

SETTINGS = {"halrp-budget": {"growth_per_task": 0.2}}
"""The default budget, 2 % of the base, is less than a head and its norm layers in so small a network."""


def context(epochs: int = 2) -> methods.Context:
    recipe = Recipe(epochs=epochs, batch=32, lr=2e-3)
    return methods.Context(lambda classes, seed: backbones.build("digits-net", classes=classes, seed=seed), recipe)


@pytest.fixture(scope="module")
def stream() -> streams.Stream:
    return streams.load("digits")[:3]


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_learns_each_task_better_than_chance_when_it_has_just_seen_it(
    name: str, stream: streams.Stream
) -> None:
    method = methods.make(name, context(epochs=4), **SETTINGS.get(name, {}))
    for position, task in enumerate(stream):
        method.learn(task)
        hits = method.predict(task.test.x, position).argmax(1) == task.test.y
        assert hits.float().mean() > 0.6, "chance is 0.2"


@pytest.mark.parametrize("name", ["stl", "halrp-budget"])
def test_methods_that_freeze_what_they_learned_keep_old_logits_to_the_bit(name: str, stream: streams.Stream) -> None:
    method = methods.make(name, context(), **SETTINGS.get(name, {}))
    tasks = list(stream)
    before: list[torch.Tensor] = []
    for position, task in enumerate(tasks):
        method.learn(task)
        for old, logits in enumerate(before):
            assert torch.equal(method.predict(tasks[old].test.x, old), logits)
        before.append(method.predict(task.test.x, position))


def test_fine_tuning_changes_old_logits_and_keeps_a_head_per_task(stream: streams.Stream) -> None:
    method = methods.make("finetune", context())
    first, second = stream[0], stream[1]
    method.learn(first)
    one = method.stored()
    before = method.predict(first.test.x, 0)
    method.learn(second)
    assert not torch.equal(method.predict(first.test.x, 0), before)
    head = backbones.build("digits-net", classes=5).get_submodule("head")
    assert method.stored().parameters - one.parameters == size_of(head).parameters


def test_separate_networks_store_one_network_per_task(stream: streams.Stream) -> None:
    method = methods.make("stl", context())
    for task in stream:
        method.learn(task)
    network = size_of(backbones.build("digits-net", classes=5))
    assert method.stored() == (3 * network.parameters, 3 * network.bytes)


def test_halrp_stores_the_base_and_its_deltas(stream: streams.Stream) -> None:
    method = methods.make("halrp-budget", context(), parameters_per_task=4000)
    for task in stream:
        method.learn(task)
    base = size_of(backbones.build("digits-net", classes=5)).parameters
    assert base < method.stored().parameters <= base + 2 * 4000


def test_unknown_methods_and_settings_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match="no method is called 'hlarp'"):
        methods.make("hlarp", context())
    with pytest.raises(SettingError, match="does not take"):
        methods.make("halrp-budget", context(), parameters=3)
