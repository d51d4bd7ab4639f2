"""The `halrp` command: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, Halrp, Learner, Store, cli, explain
from halrp import __version__ as version
from halrp.cli.app import app
from halrp.errors import ModelError
from halrp.store import task_file
from halrp.tools import export
from tests.commands import invoke
from tests.helpers import FAST, drawn, net, tiny_task
from tests.test_batches_of_tensors import TwoInputs

MODEL = "tests.cli.test_cli:build"
SHAPE = "1,3,8,8"


def build() -> nn.Module:
    return net("conv")


def build_other() -> nn.Module:
    return net("grouped")


def build_tokens() -> nn.Module:
    return net("gru")


def build_two_inputs() -> nn.Module:
    return drawn(TwoInputs)


def build_nothing() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3))


def build_placeholder() -> nn.Module:
    model = net("mlp")
    model.register_buffer("placeholder", torch.full((2,), torch.nan))
    return model


def build_text() -> str:
    return "not a model"


ran = partial(invoke, app)


@pytest.fixture(scope="module")
def learner() -> Learner:
    made = Learner(net("conv"), recipe=FAST, method=Halrp.budget(8_000, precision="int8"))
    made.learn("first", tiny_task("conv", 0), class_names=["red", "green", "blue"])
    made.learn("second task", tiny_task("conv", 1, classes=4))
    made.learn("third", tiny_task("conv", 2))
    return made


@pytest.fixture(scope="module")
def saved(learner: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "store"
    learner.save(folder)
    return folder


@pytest.fixture
def store(saved: Path, tmp_path: Path) -> Path:
    """A store of one's own to damage."""
    return Path(shutil.copytree(saved, tmp_path / "store"))


@pytest.fixture(autouse=True)
def _restored_path() -> Iterator[None]:
    """The command puts the current folder on the path; take it off again."""
    before = list(sys.path)
    yield
    sys.path[:] = before


def test_help_says_what_a_model_and_a_store_are_and_names_every_command() -> None:
    text = ran("--help").out
    for word in ("package.module:callable", "learner.save", "explain", "inspect", "verify", "export", "Exit codes"):
        assert word in text
    for command in ("explain", "inspect", "verify", "export"):
        assert f"Example: halrp {command}" in ran(command, "--help").out


def test_version() -> None:
    assert ran("--version").out == f"{version}\n"


# ---- explain ----------------------------------------------------------------------------------------------------


def test_explain_prints_the_table_or_json() -> None:
    result = ran("explain", MODEL)
    assert result.code == 0
    assert "Smallest budget of a task" in result.out
    assert "What a budget pays for" in result.out
    facts = json.loads(ran("explain", MODEL, "--json", "--head", "hidden", "--precision", "float32").out)
    assert (facts["head"], facts["precision"], facts["base"]) == ("hidden", "float32", "given")
    assert json.loads(ran("explain", MODEL, "--json").out)["precision"] == Halrp.budget().precision


def test_explain_counts_the_given_classes_on_the_given_base() -> None:
    for base in ("given", "first"):
        facts = json.loads(ran("explain", MODEL, "--json", "--classes", "7", "--base", base).out)
        assert facts == json.loads(json.dumps(explain(build(), classes=7, base=base).to_json()))
        assert bool(facts["budgets"]) is (base == "given")
    result = ran("explain", MODEL, "--classes", "0")
    assert (result.code, result.error.count("at least 1")) == (2, 1)


def test_explain_exits_with_one_for_a_refused_model() -> None:
    result = ran("explain", "tests.cli.test_cli:build_nothing")
    assert result.code == 1
    assert "no adaptable layer" in result.out


def test_a_model_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from torch import nn\nclass Nets:\n    tiny = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 3))\n"
    (tmp_path / "models_of_this_folder.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert ran("explain", "models_of_this_folder:Nets.tiny").code == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tests.cli.test_cli", "not of the form package.module:attribute"),
        ("tests.no_such:build", "no module named 'tests.no_such'"),
        ("tests.cli.test_cli:no_such", "tests.cli.test_cli has no 'no_such'"),
        ("tests.cli.test_cli:build_text", "gives a str; it must return an nn.Module"),
    ],
)
def test_a_model_that_cannot_be_built_is_one_line_and_exit_code_two(model: str, message: str) -> None:
    result = ran("explain", model)
    assert (result.code, result.out) == (2, "")
    assert message in result.error
    assert result.error.count("\n") == 1


def test_a_model_whose_own_imports_fail_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_something.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        ran("explain", "needs_something:build")


# ---- inspect ----------------------------------------------------------------------------------------------------


def test_inspect_json_tells_of_every_task_in_order(learner: Learner, saved: Path) -> None:
    facts = json.loads(ran("inspect", saved, "--json").out)
    assert [task["name"] for task in facts["tasks"]] == list(learner.tasks)
    assert facts["fingerprint"] == learner.tasks["third"].base
    assert facts["version"] == version
    for task, delta in zip(facts["tasks"], learner.tasks.values(), strict=True):
        assert task["ranks"] == delta.ranks
        assert (task["classes"], task["view"]) == (delta.classes, delta.view)
        assert task["precision"] == ("per part" if delta.has_parts else delta.precision)
        assert task["bytes"] == (saved / task["file"]).stat().st_size
        recovered = sum(layer.predicted * layer.share for layer in delta.recovered.values())
        assert task["recovered_loss"] == pytest.approx(recovered)
    assert facts["tasks"][0]["class_names"] == ["red", "green", "blue"]
    files = [*saved.rglob("*.safetensors"), *saved.glob("layout-*.json")]
    assert facts["bytes"] == sum(path.stat().st_size for path in files)
    assert facts["separate_bytes"] == 3 * facts["base_bytes"]


def test_inspect_prints_a_line_for_every_task(learner: Learner, saved: Path) -> None:
    result = ran("inspect", saved)
    assert result.code == 0
    delta = learner.tasks["second task"]
    line = next(line for line in result.out.splitlines() if line.startswith("second task"))
    for word in ("4", delta.view, "per part", f"{delta.bytes:,}", *(f"{n} {rank}" for n, rank in delta.ranks.items())):
        assert word in line
    assert "the base itself" in result.out
    assert delta.base in result.out


def test_inspect_lists_a_large_store_without_reading_its_tasks(
    store: Path, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halrp.cli.store.MANY", 2)
    files = files_of(store)
    files["third"].write_bytes(b"not a task")
    lines = ran("inspect", store).out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines[1:4]] == list(learner.tasks)
    assert f"{learner.tasks['second task'].bytes:,}" in lines[2]
    assert any("Details of a task: halrp inspect" in line for line in lines)
    named = ran("inspect", store, "second task")
    assert named.code == 0
    assert "linear" in named.out or "weight" in named.out
    assert "third" not in named.out
    assert [task["name"] for task in json.loads(ran("inspect", store, "second task", "--json").out)["tasks"]] == [
        "second task"
    ]
    missing = ran("inspect", store, "fourth")
    assert (missing.code, "no task 'fourth'" in missing.error) == (2, True)


# ---- verify -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--model", MODEL)])
def test_verify_reads_every_file_of_a_good_store(saved: Path, arguments: tuple[str, ...]) -> None:
    result = ran("verify", saved, *arguments)
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == ["good"] * 6 + ["all"]
    assert result.out.count("fits the model") == (4 if arguments else 0)


def files_of(store: Path) -> dict[str, Path]:
    manifest = Store(store).manifest()
    named = {name: store / entry.file for name, entry in manifest.tasks.items()}
    return {"manifest": store / "manifest.json", "base": store / manifest.base.file, **named}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("victim", ["base", "first", "second task", "third"])
def test_verify_names_the_damaged_file_and_reads_the_others(store: Path, victim: str) -> None:
    path = files_of(store)[victim]
    flip(path)
    result = ran("verify", store)
    assert result.code == 1
    bad = [line for line in result.out.splitlines() if line.startswith("bad")]
    assert len(bad) == 1
    assert path.name in bad[0]
    assert "changed or cut" in bad[0]
    assert sum(line.startswith("good") for line in result.out.splitlines()) == 5


def test_verify_finds_all_of_several_problems(store: Path) -> None:
    paths = files_of(store)
    flip(paths["base"])
    paths["first"].unlink()
    paths["third"].write_bytes(b"")
    result = ran("verify", store, "--model", MODEL)
    assert result.code == 1
    for name in ("base", "first", "third"):
        assert f"bad         {paths[name].relative_to(store).as_posix()}" in result.out
    assert f"good        {paths['second task'].relative_to(store).as_posix()}" in result.out
    assert "the base cannot be used" in result.out
    assert "3 of 6 files are bad" in result.out


@pytest.mark.parametrize("way", ["cut", "missing"])
def test_verify_checks_files_by_their_names_when_the_manifest_is_lost(store: Path, way: str) -> None:
    paths = files_of(store)
    flip(paths["second task"])
    if way == "cut":
        paths["manifest"].write_bytes(paths["manifest"].read_bytes()[:-20])
    else:
        paths["manifest"].unlink()
    result = ran("verify", store)
    assert result.code == 1
    assert "bad         manifest.json" in result.out
    assert f"bad         {paths['second task'].relative_to(store).as_posix()}" in result.out
    assert sum(line.startswith("good") for line in result.out.splitlines()) == 4


def recommit(store: Path, name: str, content: bytes, layout: bytes | None = None) -> None:
    """Put a file into a store under a task's name, with all checksums right; perhaps with a layout."""
    manifest = Store(store).manifest()
    entry = Store(store)._folder.put("tasks/forged", content)
    tasks = {**manifest.tasks, name: entry}
    (store / manifest.tasks[name].file).unlink()
    layouts = dict(manifest.layouts)
    if layout is not None:
        added = Store(store)._folder.put("layout", layout, ".json")
        layouts[added.sha256[:16]] = added
    new = dataclasses.replace(manifest, tasks=tasks, layouts=layouts)
    (store / "manifest.json").write_bytes(new.content)


def whole(delta: Delta, **owned: Tensor) -> Delta:
    """The same task in the format that holds every tensor as it is, some of them others."""
    return Delta.pack(delta, delta.layout, delta.factors, {**delta.owned, **owned}, delta.recovered)


def test_verify_finds_numbers_that_are_not_finite(learner: Learner, store: Path) -> None:
    bias = learner.tasks["second task"].owned["fc.bias"].clone()
    bias[1] = torch.nan
    recommit(store, "second task", task_file.write(whole(learner.tasks["second task"], **{"fc.bias": bias})))
    for arguments in ((), ("--model", MODEL)):
        result = ran("verify", store, *arguments)
        assert result.code == 1
        assert "NaN or infinity in fc.bias" in result.out


def test_verify_asks_for_the_model_to_tell_a_placeholder_from_a_broken_weight(tmp_path: Path) -> None:
    Learner(build_placeholder(), base="given").save(tmp_path)
    assert ran("verify", tmp_path).code == 0
    layout = next(tmp_path.glob("layout-*.json"))
    content = layout.read_bytes()
    layout.unlink()
    result = ran("verify", tmp_path)
    assert result.code == 1
    assert "NaN in placeholder; if it is a buffer and meant to, give the model" in result.out
    layout.write_bytes(content)
    assert ran("verify", tmp_path, "--model", "tests.cli.test_cli:build_placeholder").code == 0


def test_verify_finds_shapes_that_do_not_fit_only_with_a_model(learner: Learner, store: Path) -> None:
    delta = whole(learner.tasks["second task"])
    slots = [s._replace(shape=(9,)) if s.name == "hidden.bias" else s for s in delta.layout.slots]
    layout = dataclasses.replace(delta.layout, slots=tuple(slots))
    forged = dataclasses.replace(delta, layout=layout, plain={**delta.plain, "hidden.bias": torch.zeros(9)})
    recommit(store, "second task", task_file.write(forged), layout.content)
    assert ran("verify", store).code == 0
    result = ran("verify", store, "--model", MODEL)
    assert result.code == 1
    assert "hidden.bias has shape (9,), expected (12,)" in result.out


def test_verify_finds_a_task_of_another_base_and_a_task_under_another_name(learner: Learner, store: Path) -> None:
    other = Learner(net("conv", 1), base="given", recipe=FAST, method=Halrp.budget(8_000))
    recommit(store, "second task", task_file.write(other.learn("second task", tiny_task("conv", 1))))
    recommit(store, "third", task_file.write(learner.tasks["first"]))
    result = ran("verify", store)
    assert result.code == 1
    assert "it belongs to a base" in result.out
    assert "it holds the task 'first', not 'third'" in result.out


def test_verify_finds_a_model_that_does_not_fit(saved: Path) -> None:
    result = ran("verify", saved, "--model", "tests.cli.test_cli:build_other")
    assert result.code == 1
    assert "does not fit the model" in result.out


def test_verify_lists_what_no_commit_names_without_calling_it_a_problem(store: Path) -> None:
    (store / "tasks" / ".half-written.part").write_bytes(b"half")
    (store / "work" / "birds-00").mkdir(parents=True)
    (store / "work" / "birds-00" / "warm-up.safetensors").write_bytes(b"state")
    (store / "lock").touch()
    result = ran("verify", store)
    assert result.code == 0
    assert "orphan      tasks/.half-written.part" in result.out
    assert "unfinished  work/birds-00/warm-up.safetensors" in result.out


def test_verify_changes_nothing(store: Path) -> None:
    def state() -> dict[str, tuple[bytes, int]]:
        return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()}

    before = state()
    ran("verify", store, "--model", MODEL)
    assert state() == before


# ---- export -----------------------------------------------------------------------------------------------------


def example(rows: int) -> Tensor:
    return torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(rows))


def test_export_to_onnx_takes_any_number_of_rows(learner: Learner, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "second.onnx"
    result = ran("export", saved, "second task", "-o", path, "--model", MODEL, "--input", SHAPE)
    assert result.code == 0
    assert "largest difference from predict" in result.out
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    x = example(5)
    logits = session.run(["logits"], {session.get_inputs()[0].name: x.numpy()})[0]
    # Single precision through four layers whose values are of order one.
    torch.testing.assert_close(torch.from_numpy(logits), learner.predict(x, "second task"), rtol=1e-5, atol=1e-5)
    assert os.listdir(tmp_path) == ["second.onnx"]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_export_of_every_task_as_a_family(learner: Learner, saved: Path, tmp_path: Path) -> None:
    arguments = ("export", saved, "-o", tmp_path / "edge", "--model", MODEL, "--input", SHAPE)
    for wrong in (ran(*arguments), ran("export", saved, "first", "--family", *arguments[2:])):
        assert wrong.code == 2
        assert "name one task, or pass --family" in wrong.error
    result = ran(*arguments, "--family")
    assert result.code == 0
    assert "largest difference from predict" in result.out
    assert {"family.onnx", "second-task.onnx_adapter"} <= {*os.listdir(tmp_path / "edge")}
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(tmp_path / "edge" / "second-task.onnx_adapter"))
    options.add_active_adapter(adapter)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session, x = onnxruntime.InferenceSession(str(tmp_path / "edge" / "family.onnx"), settings), example(5)
    logits = session.run(["logits"], {session.get_inputs()[0].name: x.numpy()}, options)[0]
    torch.testing.assert_close(torch.from_numpy(logits), learner.predict(x, "second task"), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_export_to_pt2_with_a_fixed_batch_and_no_overwriting(learner: Learner, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "first.pt2"
    arguments = ("export", saved, "first", "-o", path, "--model", MODEL, "--input", "4,3,8,8", "--batch", "fixed")
    path.write_bytes(b"precious")
    refused = ran(*arguments)
    assert refused.code == 2
    assert "exists" in refused.error
    assert "--force" in refused.error
    assert path.read_bytes() == b"precious"
    assert ran(*arguments, "--force").code == 0
    module = torch.export.load(io.BytesIO(path.read_bytes())).module()
    x = example(4)
    torch.testing.assert_close(module(x), learner.predict(x, "first"), rtol=1e-5, atol=1e-5)
    with pytest.raises((AssertionError, RuntimeError)):
        module(example(3))


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_export_of_a_model_that_reads_tokens(tmp_path: Path) -> None:
    tokens = Learner(net("gru"), recipe=FAST)
    tokens.learn("a", tiny_task("gru"))
    tokens.save(tmp_path / "store")
    arguments = (
        "export",
        tmp_path / "store",
        "a",
        "-o",
        tmp_path / "a.pt2",
        "--model",
        "tests.cli.test_cli:build_tokens",
    )
    refused = ran(*arguments, "--input", "1,6")
    assert refused.code == 2
    assert "--tokens" in refused.error
    assert ran(*arguments, "--input", "1,6", "--tokens", "20").code == 0


def test_export_of_a_model_with_inputs_by_name(tmp_path: Path) -> None:
    two = Learner(build_two_inputs(), head="fc", base="given", method=Halrp.budget(bytes_per_task=6_000), recipe=FAST)
    two.learn("a", ({"left": torch.ones(8, 6), "right": torch.ones(8, 4)}, torch.arange(8) % 2))
    two.save(tmp_path / "store")
    output = tmp_path / "a.onnx"
    options = ("-o", output, "--model", "tests.cli.test_cli:build_two_inputs")
    result = ran("export", tmp_path / "store", "a", *options, "--input", "left=2,6", "--input", "right=2,4")
    assert result.code == 0, result.error
    session = onnxruntime.InferenceSession(output.read_bytes(), providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["left", "right"]
    shown = ran("inspect", tmp_path / "store")
    assert "classification" in shown.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--input", "left=2,6", "--input", "right=3,4"), "same number of rows"),
        (("--input", "left=2,6", "--input", "left=2,4"), "another name for each"),
        (("--input", "2,6", "--input", "right=2,4"), "another name for each"),
        (("--input", "left=2,6", "--tokens", "middle=9"), "no --input has this name; there are left"),
        (("--input", "left=2,6", "--tokens", "left=0"), "--tokens 0 must be at least 1"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(saved: Path, options: tuple[str, ...], message: str) -> None:
    result = ran("export", saved, "third", "-o", "model.pt2", "--model", MODEL, *options)
    assert result.code == 2
    assert message in result.error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"-o": "model.pb"}, "must end in .onnx or .pt2"),
        ({"--input": "1,three,8"}, "is not a shape"),
        ({"--input": "0,3,8,8"}, "is not a shape"),
        ({"--input": "1,4,8,8"}, "the model fails on inputs of shape"),
        ({"--model": "tests.cli.test_cli:build_other"}, "no module named|does not fit the model"),
        ({"task": "nothing"}, "no task named 'nothing'"),
        ({"store": "nowhere"}, "nowhere is not a store"),
    ],
)
def test_export_refuses_with_one_line_and_writes_nothing(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"store": str(saved), "task": "third", "-o": "model.pt2", "--model": MODEL, "--input": SHAPE} | arguments
    options = [text for name in ("-o", "--model", "--input") for text in (name, given[name])]
    result = ran("export", given["store"], given["task"], *options)
    assert result.code == 2
    assert any(part in result.error for part in message.split("|"))
    assert result.error.startswith("halrp: ")
    assert result.error.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path) -> None:
    module = net("mlp").eval()
    with pytest.raises(ModelError, match=r"was not written.*differ from predict by"):
        export.write(module, lambda x: module(x) + 0.01, torch.ones(2, 10), tmp_path / "m.pt2")
    assert os.listdir(tmp_path) == []


def test_onnx_without_its_libraries_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_NEEDED", ("onnx", "no_such_library"))
    result = ran("export", "store", "a", "-o", tmp_path / "m.onnx", "--model", MODEL, "--input", "1,2")
    assert result.code == 2
    assert "ONNX needs no_such_library; run: pip install 'halrp[onnx]'" in result.error


# ---- the command itself -----------------------------------------------------------------------------------------


def test_an_interrupt_exits_with_130(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("halrp.tools.verify.verify", interrupted)
    assert ran("verify", saved).code == 130


def test_without_typer_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "halrp.cli.app")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "halrp: this command needs typer; run: pip install 'halrp[cli]'\n"


HEAVY = ["torch", "numpy", "pandas", "altair", "matplotlib", "plotly", "sklearn", "scipy"]


def imported(*arguments: str) -> set[str]:
    """The heavy packages, and the modules of the laboratory, that a run of the command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "halrp", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line.rpartition("|")[2].strip() for line in run.stderr.splitlines() if line.startswith("import time:")]
    return {name for name in names if name in HEAVY or name.startswith("halrp.lab.")}


def test_the_version_is_printed_without_torch_and_without_the_laboratory() -> None:
    assert imported("--version") == set()


def test_a_model_is_explained_without_the_laboratory() -> None:
    assert imported("explain", MODEL) - {"numpy"} == {"torch", "halrp.lab.names"}


def test_python_dash_m_runs_the_command(saved: Path) -> None:
    command = [sys.executable, "-m", "halrp", "verify", str(saved.parent / "nowhere")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == f"halrp: {saved.parent / 'nowhere'} is not a folder; name the folder that a learner saved to\n"
