"""scikit-learn's own checks of estimators: all that apply pass, and the guide's table names the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from halrp import Learner
from halrp.sklearn import HalrpClassifier, HalrpRegressor, tabular_network

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide.md"
RELATIVES: dict[Any, tuple[Any, ...]] = {
    HalrpClassifier: (MLPClassifier, LogisticRegression, RandomForestClassifier),
    HalrpRegressor: (MLPRegressor, Ridge, RandomForestRegressor),
}
"""Estimators of scikit-learn that do the same, by ours."""
ROUNDED = dict.fromkeys(
    ("check_methods_subset_invariance", "check_methods_sample_order_invariance"),
    "the last digit of a float32 network depends on the batch, and these checks allow 1e-7",
)
"""Checks that pass or fail by rounding, on some processors and not on others."""


def checked(estimators: list[Any]) -> pytest.MarkDecorator:
    """Run a test for every check of some estimators."""
    decorator: pytest.MarkDecorator = parametrize_with_checks(estimators, expected_failed_checks=lambda _: ROUNDED)
    return decorator


@checked([kind() for kind in RELATIVES])
def test_scikit_learns_checks_pass(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def checks_of(estimator: Any) -> set[str]:
    """The names of the checks that scikit-learn has for an estimator."""
    return {getattr(check, "func", check).__name__ for _, check in estimator_checks_generator(estimator)}


@pytest.mark.parametrize("kind", RELATIVES)
def test_the_guide_names_the_checks_that_relatives_have_and_we_have_not(kind: Any) -> None:
    rows = re.findall(r"^ *\| ((?:`check_[\w*]+`(?:, )?)+) \| (\S.*) \|$", GUIDE.read_text("utf-8"), re.MULTILINE)
    named = [pattern for patterns, _ in rows for pattern in re.findall(r"`(.+?)`", patterns)]
    here = checks_of(kind())
    missing = set().union(*(checks_of(relative()) for relative in RELATIVES[kind])) - here | ROUNDED.keys()
    assert missing
    assert [name for name in sorted(missing) if not any(fnmatch(name, pattern) for pattern in named)] == []


def test_the_guides_section_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = re.search(r"## scikit-learn\n.*?```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert section is not None
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(section.group(1), names)
    assert float(capsys.readouterr().out.split()[0]) > 0.95  # measured: 0.962
    assert names["parity"].score(names["X"], names["y"] % 2) == 1
    assert set(Learner.load("tasks", tabular_network(64, 10)).tasks) == {"digits", "parity"}
