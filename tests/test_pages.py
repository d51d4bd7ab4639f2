"""The pages of the guide work as written: their code runs from top to bottom, and does what the text promises."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.networks import declare_image_operations
from halrp import Learner, explain

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
PAGES = ("guide.md", "identify.md", "serving.md", "tasks.md", "training.md", "transformers.md", "vision.md")


@pytest.fixture(scope="module", autouse=True)
def heads_are_fitted_quickly() -> None:
    """They are not: the pages run as a reader runs them."""


def run(
    page: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None = None,
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all Python of a page, or of a part of its text, in one namespace, in a folder, and return its names."""
    blocks = BLOCK.findall((DOCS / page).read_text("utf-8") if text is None else text)
    assert blocks
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": f"page {page}"} if earlier is None else earlier
    with torch.random.fork_rng([]):
        for number, block in enumerate(blocks):
            exec(compile(block, f"{page}, block {number + 1}", "exec", dont_inherit=True), names)
    return names


def test_the_page_on_finding_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run("identify.md", tmp_path, monkeypatch)
    assert all(len(delta.statistics) == 3 for delta in names["learner"].tasks.values())
    assert names["result"].left_out == ()


def test_the_page_on_kinds_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run("tasks.md", tmp_path, monkeypatch)
    learner, x, test = names["learner"], names["images"], names["test"]
    assert set(learner.tasks) == {"digits", "eights", "questions", "measures", "sizes", "ink"}
    digits = names["digits"][test]
    right = {
        "digits": learner.answer(x[test], "digits").indices == digits,
        "eights": learner.answer(x[test], "eights").indices == (digits == 8),
        "questions": learner.answer(x[test], "questions").present == names["labels"][test],
        "sizes": learner.answer(x[test], "sizes").indices == names["size"][test],
    }
    shares = {name: float(rows.float().mean()) for name, rows in right.items()}
    assert min(shares.values()) > 0.8, shares


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_on_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run("training.md", tmp_path, monkeypatch)
    learner = names["learner"]
    shown = capsys.readouterr().err
    assert "parity, stopped when good: fine-tune" in shown
    assert "29/29" not in shown  # it was stopped
    assert any((tmp_path / "runs").iterdir())
    assert all(delta.bytes <= 20_000 for delta in learner.tasks.values())
    assert learner.tasks["parity in bfloat16"].autocast == "bfloat16"
    assert Learner.load("tasks", names["model"]).recipe == names["recipe"]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch copies its own tree specifications
def test_the_page_on_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tritonclient")
    text = (DOCS / "serving.md").read_text("utf-8")
    before, after = text.split("## Over HTTP")
    after, registry = after.split("## In MLflow")
    names = run("serving.md", tmp_path, monkeypatch, before)
    [model] = [block for block in BLOCK.findall(after) if block.startswith("# my_models.py")]
    (tmp_path / "my_models.py").write_text(model)
    [command] = re.findall(r"^halrp (serve store --model my_models:build --input .+)$", after, re.MULTILINE)
    arguments = [sys.executable, "-m", "halrp", *command.split(), "--port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1].removeprefix("http://")
            run("serving.md", tmp_path, monkeypatch, after.replace("127.0.0.1:8000", address), names)
        finally:
            server.terminate()
    printed = capsys.readouterr().out
    _run_with_mlflow(registry, tmp_path, monkeypatch, capsys, names)
    assert len(re.findall(r"'(?:low|high)'", printed.splitlines()[0])) == 4
    assert "Changes(added=(), removed=(), replaced=('west',))" in printed
    assert set(names["predictor"].resident) == {"north", "south", "east", "west"}
    expected = names["learner"].predict(names["x"], ["north", "south", "east"] * 32)
    torch.testing.assert_close(names["mixed"], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(names["result"], names["learner"].predict(names["x"], "south"))


def _run_with_mlflow(
    text: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    names: dict[str, Any],
) -> None:
    if importlib.util.find_spec("mlflow") is None:
        return
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        names = run("serving.md", folder, monkeypatch, text, dict(names))
        assert names["answer"]["label"].tolist() == list(names["learner"].answer(names["x"][:4], "south").labels)
        assert "has the fingerprint" in capsys.readouterr().out
    finally:
        names["mlflow"].set_tracking_uri(None)


@pytest.fixture
def image_operations() -> None:
    declare_image_operations()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("image_operations")
def test_the_page_on_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    names = run("transformers.md", tmp_path, monkeypatch)
    printed = capsys.readouterr().out
    assert "('billing', 'technical')" in printed
    assert set(Learner.load("tasks", names["encoder"]).tasks) == {"tickets"}
    assert "the app is slow" in printed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("image_operations")
def test_the_page_on_vision_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("timm")
    names = run("vision.md", tmp_path, monkeypatch)
    printed = capsys.readouterr().out
    assert "('dark', 'light', 'dark', 'light')" in printed
    assert names["learner"].tasks["shade"].bytes <= 150_000


@pytest.mark.usefixtures("image_operations")
def test_the_heads_of_torchvisions_models_are_those_of_the_table() -> None:
    models = pytest.importorskip("torchvision.models")
    rows = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \| `\"([\w.]+)\"`", (DOCS / "vision.md").read_text("utf-8"), re.MULTILINE
    )
    heads = {name: head for names, head in rows for name in re.findall(r"`(\w+)`", names)}
    assert len(heads) > 10
    for name, head in heads.items():
        settings = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        with torch.device("meta"):
            explained = explain(models.get_model(name, weights=None, **settings), head=head)
        assert explained.refused == (), name
        assert explained.head == head


@pytest.mark.usefixtures("image_operations")
def test_the_guide_shows_what_budgets_pay_for_for_a_residual_network() -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        shown = str(explain(models.resnet18(weights=None), classes=10))
    table = shown[shown.index("What a budget pays for") :]
    assert f"```text\n{table}\n```" in (DOCS / "guide.md").read_text("utf-8"), f"docs/guide.md is stale:\n{table}"


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    links = LINK.findall((DOCS / page).read_text("utf-8"))
    assert links
    for path, anchor in links:
        target = (DOCS / path).resolve() if path else DOCS / page
        assert target.exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {title.lower().replace(" ", "-").replace(",", "") for title in titles}, anchor


@pytest.mark.parametrize("page", [page for page in PAGES if page != "guide.md"])
def test_the_guide_and_the_readme_lead_to_every_page(page: str) -> None:
    assert f"]({page})" in (DOCS / "guide.md").read_text("utf-8")
    assert f"](docs/{page})" in (DOCS.parent / "README.md").read_text("utf-8")
