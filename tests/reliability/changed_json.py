"""Random changes of a JSON value: another value, a missing or an additional entry, two entries exchanged."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

_SCALARS: tuple[Any, ...] = (
    *(None, True, False, "", "x", "../x", "\x00", "\ud800", "NaN", 0, 1, -1, 2, 7, 255, 2**31, 2**63, -(2**64)),
    *(10**400, 0.0, 0.5, -1.5, 1e-300, 1e300, float("inf"), float("nan"), [], {}, [[]], {"": {}}, [None], "0" * 64),
)


def changed_json(value: Any, random: Random) -> Any:
    """A copy of a value with one change, somewhere inside it."""
    value = copy.deepcopy(value)
    inner = list(_containers(value))
    if not inner:
        return _other(value, random)
    container = random.choice(inner)
    keys: list[Any] = list(container) if isinstance(container, dict) else list(range(len(container)))
    kind = random.randrange(6)
    if kind == 0 or not keys:
        _add(container, random)
    elif kind == 1:
        del container[random.choice(keys)]
    elif kind == 2:
        first, second = random.choice(keys), random.choice(keys)
        container[first], container[second] = container[second], container[first]
    else:
        key = random.choice(keys)
        container[key] = _other(container[key], random)
    return value


def _containers(value: Any) -> Any:
    """Every list and mapping inside a value."""
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


def _add(container: Any, random: Random) -> None:
    if isinstance(container, dict):
        container[random.choice(("x", "", "name", "format", "sha256", "\ud800"))] = random.choice(_SCALARS)
    else:
        container.insert(random.randrange(len(container) + 1), random.choice([*container, *_SCALARS]))


def _other(value: Any, random: Random) -> Any:
    """A value near the one that is there, or any other."""
    kind = random.randrange(3)
    if kind == 0 and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return value + random.choice((-1, 1, 0.5))
    if kind == 0 and isinstance(value, str) and value:
        at = random.randrange(len(value))
        return value[:at] + random.choice(("", "0", "a", "f", "/", "\n", "é")) + value[at + 1 :]
    return copy.deepcopy(random.choice(_SCALARS))
