"""A task that is interrupted, in whichever stage of its training, ends as if it had not been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halrp.lab import methods, registry
from halrp.lab.backbones.operations import declare_image_operations
from halrp.lab.methods import Method, State, network
from halrp.lab.methods.comparison import deserialised, serialised
from halrp.lab.methods.tiny import tiny_context, tiny_tasks
from halrp.training.progress import Progress

FITTED = ("linear-probe", "ncm", "ridge", "ranpac")
"""Nothing is trained in epochs."""
ROOMY = {"growth_per_task": 0.5}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, ROOMY if name in ("halrp-budget", "halrp-whitened") else {})
        for name in methods.METHODS
        if name not in FITTED
    ),
    ("bmkp", {"mode": "official"}),
    ("gpm", {"mode": "official"}),
]
PEFT = ("lora", "dora", "ia3", "adalora", "loha", "lokr", "hira")
RESTARTED = {"gpm": "official"}
"""What its rate depends on is not in a checkpoint: the task is learned again."""
SHORT = frozenset(name for name, entry in registry.METHODS.items() if entry.needs_base)
"""Few epochs, on few examples: the task is learned again."""


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_a_task_that_was_interrupted_ends_as_if_it_had_not_been(
    name: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in PEFT:
        declare_image_operations()
        pytest.importorskip("peft")
    monkeypatch.setattr(network, "CHECKPOINT_EVERY", 0.0)
    first, second, _ = tiny_tasks()

    def begun(work: Path | None, reported: list[Progress], ends: tuple[str, int] | None = None) -> Method:
        """A method that knows the first task, tells of the epochs that it trains, and is killed after one of them.

        One that goes on gets its state in another order: that of a file is nothing to rely on.
        """

        def progress(event: Progress) -> None:
            if event.loss is not None:
                reported.append(event)
                if (event.stage, event.epoch) == ends:
                    raise KeyboardInterrupt

        method = methods.make(name, replace(tiny_context(2), work=work, progress=progress), **settings)
        if method.joint:  # it only waits for the last task, and a run that goes on gives it all of them again
            method.learn(first)
            return method
        before = methods.make(name, tiny_context(2), **settings)
        before.learn(first)
        state = deserialised(serialised(before.state()))
        state = State(dict(sorted(state.tensors.items(), reverse=ends is None)), state.values)
        method.restore(state)
        return method

    whole: list[Progress] = []
    expected = begun(None, whole)
    expected.learn(second)
    assert whole
    for stage in dict.fromkeys(event.stage for event in whole):
        reported: list[Progress] = []
        with pytest.raises(KeyboardInterrupt):
            begun(tmp_path / stage, reported, (stage, 1)).learn(second)
        again = begun(tmp_path / stage, reported)
        again.learn(second)
        assert serialised(again.state()) == serialised(expected.state()), stage
        if name not in SHORT and RESTARTED.get(name) != settings.get("mode", "paper"):
            assert [(p.stage, p.epoch) for p in reported] == [(p.stage, p.epoch) for p in whole], stage
