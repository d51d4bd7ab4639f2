"""The guide's section on training works as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from halrp import Halrp, Learner
from tests.helpers import net, tiny_task

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide.md"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_section_on_training_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = re.search(
        r"## Control the training\n.*?```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert section is not None
    monkeypatch.chdir(tmp_path)
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), base="given", store="tasks")
    names: dict[str, Any] = {"learner": learner}
    exec(section.group(1), names)
    learner.recipe = names["recipe"].__class__(**{**vars(names["recipe"]), "epochs": 30, "lr": 0.05, "batch": 8})
    learner.learn("birds", tiny_task("mlp"), val=tiny_task("mlp"))
    shown = capsys.readouterr().err
    assert "birds: fine-tune" in shown
    assert "29/29" not in shown  # it was stopped
    assert any((tmp_path / "runs").iterdir())
    assert Learner.load("tasks", net("mlp")).recipe == learner.recipe
