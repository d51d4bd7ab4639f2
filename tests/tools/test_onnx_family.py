"""All tasks of a base in ONNX Runtime: one graph, and an adapter for each task."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime
import pytest
import torch
from torch import Tensor

from halrp import Halrp, Learner
from halrp.errors import ConflictError, ModelError, SettingError
from halrp.tools import onnx_family
from tests.helpers import FAST, net, tiny_task

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch copies its own tree specifications


class Case(NamedTuple):
    """A learner with tasks of several widths, views and precisions, the files made of it, and inputs."""

    learner: Learner
    folder: Path
    family: onnx_family.Family
    x: Tensor


@pytest.fixture(scope="module")
def conv(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made("conv", tmp_path_factory.mktemp("conv"))


@pytest.fixture(scope="module", params=["conv", "transformer"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    kind: str = request.param
    given: Case = request.getfixturevalue("conv") if kind == "conv" else made(kind, tmp_path_factory.mktemp(kind))
    return given


def made(kind: str, folder: Path) -> Case:
    learner = Learner(net(kind), recipe=FAST, method=Halrp.budget(growth_per_task=0.9, view="mean"))
    learner.learn("first", tiny_task(kind, 0))
    learner.learn("mean", tiny_task(kind, 1, classes=4))
    learner.method = Halrp.budget(growth_per_task=0.5, view="full", precision="int8")
    learner.learn("full", tiny_task(kind, 2, classes=5))
    x = tiny_task(kind, 3)[0][:6]
    return Case(learner, folder, written(learner, x, folder), x)


def written(learner: Learner, x: Tensor, folder: Path, **settings: Any) -> onnx_family.Family:
    return onnx_family.write(learner.export(None), learner.tasks, learner.predict, x, folder, **settings)


def run(session: Any, x: Tensor, file: Path | None) -> Tensor:
    options = onnxruntime.RunOptions()
    if file is not None:
        adapter = onnxruntime.LoraAdapter()
        adapter.Load(str(file))
        options.add_active_adapter(adapter)
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()}, options)[0])


def session_of(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options)


def test_one_session_answers_for_every_task_and_the_base(case: Case) -> None:
    learner, folder, family, x = case
    session = session_of(folder / "family.onnx")
    for rows in (x, x[:1], torch.cat([x, x])):
        torch.testing.assert_close(run(session, rows, None), learner.predict(rows, None), rtol=1e-5, atol=1e-5)
        for name in learner.tasks:
            logits = run(session, rows, folder / f"{name}.onnx_adapter")
            torch.testing.assert_close(logits, learner.predict(rows, name), rtol=1e-5, atol=1e-5)
    assert {name: file.path.name for name, file in family.tasks.items()} == {
        n: f"{n}.onnx_adapter" for n in learner.tasks
    }
    assert all(file.bytes == file.path.stat().st_size for file in (family.graph, *family.tasks.values()))


def test_an_adapter_holds_what_the_task_owns_and_no_weight_of_the_base(case: Case) -> None:
    learner, folder, family, _ = case
    names = onnxruntime.AdapterFormat.read_adapter(str(folder / "mean.onnx_adapter")).get_parameters().keys()
    delta = learner.tasks["mean"]
    assert delta.factors
    assert not names & (delta.factors.keys() - delta.owned.keys())
    assert {f"{part}/{name}" for name, factors in delta.factors.items() for part in "rs" if factors} <= names
    assert family.tasks["first"].bytes < 2000 < family.tasks["mean"].bytes


def test_a_later_task_needs_no_other_graph(conv: Case) -> None:
    learner, folder, _, x = conv
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    learner.method = Halrp.budget(growth_per_task=0.7, view="mean")
    learner.learn("later", tiny_task("conv", 5, classes=2))
    try:
        family = written(learner, x, folder)
    finally:
        learner.remove("later")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert family.tasks["later"].path not in before
    family.tasks["later"].path.unlink()


def test_a_file_of_another_task_is_replaced_on_request_only(conv: Case, tmp_path: Path) -> None:
    learner, folder, _, x = conv
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "mean.onnx_adapter").write_bytes(b"another")
    with pytest.raises(ConflictError, match=r"mean\.onnx_adapter is of another task"):
        written(learner, x, tmp_path / "copy")
    (tmp_path / "copy" / "family.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match="cannot run it"):
        written(learner, x, tmp_path / "copy")
    written(learner, x, tmp_path / "copy", force=True, every=False)
    assert (tmp_path / "copy" / "mean.onnx_adapter").read_bytes() == (folder / "mean.onnx_adapter").read_bytes()
    inputs = session_of(tmp_path / "copy" / "family.onnx").get_overridable_initializers()
    assert len(inputs) <= len(session_of(folder / "family.onnx").get_overridable_initializers())


def test_nothing_is_written_that_does_not_agree(conv: Case, tmp_path: Path) -> None:
    learner, folder, _, x = conv
    shutil.copy(folder / "family.onnx", tmp_path)

    def other(rows: Tensor, task: str | None) -> Tensor:
        return learner.predict(rows, task) + (task == "mean")

    with pytest.raises(ModelError, match="'mean' on 6 rows"):
        onnx_family.write(learner.export(None), learner.tasks, other, x, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["family.onnx"]
    with pytest.raises(SettingError, match="no task"):
        onnx_family.write(learner.export(None), {}, learner.predict, x, tmp_path)


def test_names_that_look_alike_have_files_of_their_own() -> None:
    names = onnx_family._file_names(["Birds!", "birds?", "cars"])
    assert names["cars"] == "cars.onnx_adapter"
    assert len({*names.values()}) == 3
