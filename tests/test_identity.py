"""What tells functions and settings apart in another process: their content, where they have one."""

from __future__ import annotations

import functools
import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from halrp.identity import UnidentifiedError, identity

STRENGTH = 0.5


def noise(x: Tensor, generator: torch.Generator, size: Any = 1.0) -> Any:
    return x + size * torch.randn(x.shape, generator=generator)


def strong(x: Tensor, generator: torch.Generator) -> Any:
    return noise(x, generator, STRENGTH)


def closing_over(value: Any) -> Any:
    return lambda x, generator: x * value


class Scaled:
    """An augmentation with a state."""

    def __init__(self, size: Any) -> None:
        self.size = size

    def __call__(self, x: Tensor, generator: torch.Generator) -> Any:
        return self.helper(x)

    def helper(self, x: Tensor) -> Any:
        return x * self.size

    def method(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x


@dataclass(frozen=True)
class Settings:
    """A dataclass of settings."""

    size: float


def circular() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def different() -> dict[str, Any]:
    """Values of which no two are the same."""
    values: dict[str, Any] = {
        "none": None,
        "zero": 0,
        "false": False,
        "zero as a float": 0.0,
        "text": "0",
        "list": [1, 2],
        "tuple": (1, 2),
        "nested": [(1, 2)],
        "dictionary": {"a": 1},
        "set": {"a", "b", "c"},
        "circular": circular(),
        "function": noise,
        "function of a global": strong,
        "partial": functools.partial(noise, size=0.5),
        "partial of another size": functools.partial(noise, size=0.6),
        "partial of another function": functools.partial(closing_over, 0.5),
        "partial with a tensor": functools.partial(noise, size=torch.tensor(0.5)),
        "closure over 2": closing_over(2),
        "closure over 3": closing_over(3),
        "closure over a tensor": closing_over(torch.ones(2)),
        "closure over another tensor": closing_over(torch.zeros(2)),
        "lambda": lambda x, generator: x + 1,
        "another lambda": lambda x, generator: x + 2,
        "another default": lambda x, generator, by=3: x + by,
        "lambda in a lambda": lambda x, generator: (lambda y: y + 1)(x),
        "another one in it": lambda x, generator: (lambda y: y + 2)(x),
        "instance": Scaled(1),
        "instance of another state": Scaled(2),
        "instance with an array": Scaled(np.ones(3)),
        "instance with another array": Scaled(np.zeros(3)),
        "bound method": Scaled(1).method,
        "method bound to another": Scaled(2).method,
        "dataclass": Settings(1.0),
        "another dataclass": Settings(2.0),
        "module": nn.Dropout(0.1),
        "another module": nn.Dropout(0.2),
        "builtin": torch.relu,
        "another builtin": torch.sigmoid,
        "class": Scaled,
        "seeded": torch.Generator().manual_seed(1),
        "seeded otherwise": torch.Generator().manual_seed(2),
    }
    return values


def test_different_values_have_different_identities() -> None:
    identities = {name: identity(value) for name, value in different().items()}
    for first, other in itertools.combinations(identities, 2):
        assert identities[first] != identities[other], (first, other)


class Made(Mapping[int, list[int]]):
    """A mapping that makes its values when they are asked for, so that they soon have the address of another."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __getitem__(self, key: int) -> list[int]:
        return [self.numbers[key]]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.numbers)))

    def __len__(self) -> int:
        return len(self.numbers)


def test_values_that_have_lived_at_the_same_address_have_different_identities() -> None:
    assert identity(Made(*range(20))) != identity(Made(*range(19), 99))


def test_equal_values_have_equal_identities_in_another_process() -> None:
    script = "from tests.test_identity import *; print({n: identity(v) for n, v in different().items()})"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.strip() == str({name: identity(value) for name, value in different().items()})


def test_a_global_that_a_function_names_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(strong)
    monkeypatch.setattr(sys.modules[__name__], "STRENGTH", 0.6)
    assert identity(strong) != before


def test_changed_code_of_a_function_that_is_called_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    function, instance = identity(strong), identity(Scaled(1))
    monkeypatch.setattr(noise, "__code__", (lambda x, generator, size=1.0: x).__code__)
    monkeypatch.setattr(Scaled, "helper", lambda self, x: x)
    assert identity(strong) != function
    assert identity(Scaled(1)) != instance


class Slotted:
    """What it holds is no attribute in a dictionary."""

    __slots__ = ("size",)


@pytest.mark.parametrize(
    "value", [random.Random(0), np.random.default_rng(0), threading.Lock(), sys.stderr, Slotted(), object()], ids=type
)
def test_what_hides_its_state_cannot_be_identified(value: Any) -> None:
    for holder in (value, Scaled(value), closing_over(value), functools.partial(noise, size=value)):
        with pytest.raises(UnidentifiedError, match="a value of type"):
            identity(holder)
