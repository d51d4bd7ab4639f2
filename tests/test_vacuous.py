"""No test of the suite has a form that cannot fail, and each such form is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vacuous import findings


def test_every_test_can_fail() -> None:
    assert findings() == []


FORMS = {
    "def test_a(): f()": "test_a asserts nothing",
    "def g(): f()\ndef test_a(): g()": "test_a asserts nothing",
    "assert x == x": "a thing is compared with itself",
    "assert torch.equal(a.b, a.b)": "a thing is compared with itself",
    "assert (x, 'message')": "a tuple is always true",
    "assert 'text'": "what is asserted is a constant",
    "with pytest.raises(Exception): f()": "any error is expected, Exception",
    "with suppress(Exception): f()": "any error is swallowed",
    "try: f()\nexcept Exception: pass": "any error is swallowed",
    "try: f()\nexcept: pass": "any error is swallowed",
    "@pytest.mark.parametrize('a', [])\ndef test_a(a): assert a": "there is no case",
    "for x in []: assert x": "a loop over nothing",
    "x == y": "a comparison without an assertion",
}


@pytest.mark.parametrize("code", FORMS)
def test_a_form_that_cannot_fail_is_noticed(code: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(code)
    assert [finding.problem for finding in findings(tmp_path)] == [FORMS[code]]


@pytest.mark.parametrize(
    "code",
    [
        "def test_a(): assert f() == f()",
        "def g(): assert x\ndef test_a(): g()",
        "def g(): assert x\ndef h(): g()\ndef test_a(): run(h)",
        "def test_a():\n    with pytest.raises(ValueError): f()",
        "def test_a(): torch.testing.assert_close(a, b)",
        "assert x == y",
    ],
)
def test_a_form_that_can_fail_is_accepted(code: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(code)
    assert findings(tmp_path) == []
