"""Fixtures of the model's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from halrp.model.layers import registry


@pytest.fixture
def rules_restored() -> Iterator[None]:
    """Forget the layer rules that a test registers."""
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)
