"""The benchmark on pretrained networks: records that resume, disjoint samples, rounded files, paired differences.

All of it runs on a tiny network: neither weights nor data sets nor PEFT are needed, and what needs them is skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import declare_image_operations
from benchmarks.pretrained import measure, records, table, text, training, vision
from benchmarks.pretrained.__main__ import line, main
from benchmarks.pretrained.delta import Delta
from benchmarks.pretrained.domain import Classifier, Domain, Part, Task, drawn
from benchmarks.pretrained.features import Saved, features
from benchmarks.pretrained.finetune import FineTune
from benchmarks.pretrained.lora import Lora
from benchmarks.pretrained.methods import Setting, Stored, methods
from benchmarks.pretrained.probe import Probe
from halrp import seeding
from halrp.errors import DamagedError
from halrp.lab.backbones import efficientnet, minilm
from halrp.lab.methods import rounding
from halrp.lab.methods.logistic import logistic
from tests.helpers import drawn as seeded


@dataclass(frozen=True)
class Tiny:
    """A network of three layers, and tasks of three classes around drawn centres."""

    name = "tiny"
    network = "tiny"
    width = 16
    dev = tuple("ab")
    held_out = tuple("c")

    @property
    def rates(self) -> dict[str, tuple[float, ...]]:
        return {"lora": (0.01,), "finetune": (0.01, 0.02)}

    @property
    def lora_targets(self) -> dict[str, tuple[str, ...]]:
        return {"first": ("0",)}

    def base(self) -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())).eval()

    def task(self, name: str, shots: int, seed: int) -> Task:
        centres = torch.randn(3, 8, generator=seeding.generator(name))

        def part(label: str, count: int) -> Part:
            y = torch.arange(3).repeat_interleave(count)
            return Part(centres[y] + torch.randn(3 * count, 8, generator=seeding.generator(name, label, seed)), y)

        return Task(name, 3, shots, seed, part("train", shots), part("val", 20), part("test", 40))

    def batch(self, shots: int) -> int:
        return 6


@dataclass
class Counting:
    """A method that counts its fits, and whose rate 0.1 is right for everything."""

    fitted: list[tuple[str, int, float]] = field(default_factory=list)
    stop_after: int = 1000
    rates: tuple[float, ...] = (0.01, 0.1, 1.0)

    def grid(self, domain: Domain, shots: int) -> tuple[Setting, ...]:
        return tuple({"lr": lr} for lr in self.rates)

    def fit(self, domain: Domain, task: Task, setting: Setting) -> Iterator[Stored]:
        if len(self.fitted) == self.stop_after:
            raise KeyboardInterrupt
        self.fitted.append((task.name, task.seed, setting["lr"]))
        right = setting["lr"] == 0.1

        def predict(x: Tensor) -> Tensor:
            labels = (task.val if len(x) == len(task.val.y) else task.test).y
            return nn.functional.one_hot(labels if right else labels.flip(0), 3).float()

        yield Stored("float32", 100, predict)


# ---- samples --------------------------------------------------------------------------------------------------------


def test_samples_are_disjoint_and_those_of_fewer_shots_are_a_part_of_those_of_more() -> None:
    few, few_val = drawn(range(100, 150), (5, 20), "task", 0)
    many, many_val = drawn(range(100, 150), (30, 20), "task", 0)
    assert few == many[:5]
    assert few_val == many_val
    assert len({*many, *many_val}) == 50
    assert {*many, *many_val} == set(range(100, 150))
    assert drawn(range(100, 150), (5, 20), "task", 1)[0] != few


def test_a_task_has_the_fingerprint_of_its_examples() -> None:
    first, again, other = (Tiny().task("a", 5, seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_more_examples_than_there_are_is_an_error_that_counts_them() -> None:
    with pytest.raises(ValueError, match="25 examples are needed, and there are 20"):
        drawn(range(20), (5, 20), "task", 0)


def test_tasks_do_not_share_classes_and_text_tenants_are_the_dev_tasks() -> None:
    for classes in (vision.CLASSES, text.CLASSES):
        listed = [label for mine in classes.values() for label in mine]
        assert len(set(listed)) == len(listed)
    assert len(vision.Vision.dev + vision.Vision.held_out) == 20
    source = (Path(__file__).parent.parent / "examples" / "text_tenants.py").read_text()
    for name, sections in text.DEV.items():
        assert f'"{name}": ({", ".join(json.dumps(section) for section in sections)})' in source


def test_texts_of_a_task_are_in_one_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {name: [f"{name} {i}" for i in range(120)] for mine in text.CLASSES.values() for name in mine}
    monkeypatch.setattr(text, "_sections", lambda: sections)
    monkeypatch.setattr(minilm, "tokenizer", lambda _: lambda texts, **_: {"texts": texts})
    domain = text.Text()
    first, second = (domain.task("media", 60, seed) for seed in (0, 1))
    parts = [set(part.x["texts"]) for part in (first.train, first.val, first.test)]
    assert [len(part) for part in parts] == [240, 80, 160]  # of 120: a third to test, 20 to validate, the rest
    assert len(set.union(*parts)) == 480
    assert set(second.test.x["texts"]) == parts[2]
    assert set(second.train.x["texts"]) != parts[0]


# ---- records --------------------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_resumes_with_what_is_missing(tmp_path: Path) -> None:
    path, domain = tmp_path / "tiny.jsonl", Tiny()
    killed, again, whole = Counting(stop_after=4), Counting(), Counting()
    with pytest.raises(KeyboardInterrupt):
        list(measure.Run(domain, {"m": killed}, path).all(["m"], domain.dev, 5, [0, 1]))
    list(measure.Run(domain, {"m": again}, path).all(["m"], domain.dev, 5, [0, 1]))
    list(measure.Run(domain, {"m": whole}, tmp_path / "whole.jsonl").all(["m"], domain.dev, 5, [0, 1]))
    assert killed.fitted + again.fitted == whole.fitted
    assert [lr for task, seed, lr in whole.fitted if seed == 1] == [0.1, 0.1]
    assert len(whole.fitted) == 8  # three rates on two tasks, and the best one on the other seed
    more = Counting()
    assert list(measure.Run(domain, {"m": more}, path).all(["m"], domain.dev, 5, [0, 1])) == []
    assert more.fitted == []


def test_the_choice_of_a_setting_is_a_record_with_its_grid(tmp_path: Path) -> None:
    path, domain = tmp_path / "tiny.jsonl", Tiny()
    rows = list(measure.Run(domain, {"m": Counting()}, path).all(["m"], domain.held_out, 5, [0]))
    choice = records.choice(records.read(path), "tiny", "m", 5)
    assert choice is not None
    assert choice["setting"] == {"lr": 0.1}
    assert [outcome["val_accuracy"] for outcome in choice["grid"]] == pytest.approx([100 / 3, 100, 100 / 3], abs=1e-3)
    assert rows[-1]["task"] == "c"
    assert "chosen from {'lr': 0.01} 33.33" in line(rows[-2])
    assert records.choice(records.read(path), "tiny", "m", 30) is None


def test_another_grid_is_a_new_choice_that_needs_only_the_new_fits(tmp_path: Path) -> None:
    path, domain = tmp_path / "tiny.jsonl", Tiny()
    first, second = Counting(rates=(0.01, 1.0)), Counting(rates=(0.01, 0.1))
    for method in (first, second):
        list(measure.Run(domain, {"m": method}, path).all(["m"], domain.dev, 5, [0]))
    assert second.fitted == [("a", 0, 0.1), ("b", 0, 0.1)]
    choice = records.choice(records.read(path), "tiny", "m", 5)
    assert choice is not None
    assert choice["setting"] == {"lr": 0.1}
    assert "**0.1: 100.0**" in (shown := table.choices(records.read(path)))
    assert len(shown.splitlines()) == 3


def test_a_torn_last_line_is_no_row_and_is_cut_off_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "rows.jsonl"
    assert records.read(path) == []
    records.append(path, {"row": 1})
    with path.open("ab") as file:
        file.write(b'{"row": 2, "tor')
    assert records.read(path) == [{"row": 1}]
    records.append(path, {"row": 3})
    assert records.read(path) == [{"row": 1}, {"row": 3}]
    assert path.read_bytes() == b'{"row": 1}\n{"row": 3}\n'


def test_a_bound_that_is_too_small_is_reported_and_not_recorded(tmp_path: Path) -> None:
    path, domain = tmp_path / "tiny.jsonl", Tiny()
    rows = list(measure.Run(domain, {"halrp": Delta(10)}, path).all(["halrp"], domain.held_out, 5, [0]))
    assert [row["kind"] for row in rows] == ["refused"]
    assert "refused: " in line(rows[0])
    assert records.read(path) == []


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 40), (40, 4), (40, 4, 1, 1), (4, 10, 3, 3)])
def test_int8_is_within_half_a_scale_and_has_a_scale_for_each_slice_of_the_shorter_side(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=seeding.generator("int8", shape))
    integers, scale = rounding.quantised(tensor)
    assert integers.dtype == torch.int8
    assert scale.numel() == min(shape[0], tensor.flatten(1).shape[1])
    assert int(integers.abs().max()) == 127
    error = (integers.flatten(1) * scale - tensor.flatten(1)).abs()
    assert bool((error <= 0.5001 * scale).all())  # a rounded quotient adds a part in 10⁷


@pytest.mark.parametrize("form", rounding.FORMS)
def test_tensors_come_back_from_a_file_as_its_form_holds_them(form: str) -> None:
    generator = seeding.generator("files")
    tensors = {
        "b.wide": torch.randn(3, 50, generator=generator),
        "a.tall": torch.randn(50, 3, 1, 1, generator=generator),
    }
    tensors |= {"bias": torch.randn(3, generator=generator), "zero": torch.zeros(2, 2), "count": torch.tensor(7)}
    content = rounding.encode(tensors, form)
    back = rounding.decode(content)
    assert back.keys() == tensors.keys()
    assert int(back["count"]) == 7
    assert not back["zero"].any()
    for name in ("b.wide", "a.tall", "bias"):
        largest = float(tensors[name].abs().max())
        bound = {"float32": 0.0, "bfloat16": 2**-8 * largest, "int8": 0.51 / 127 * largest}[form]
        if name == "bias" and form == "int8":
            bound = 2**-8 * largest  # vectors are bfloat16
        torch.testing.assert_close(back[name], tensors[name], rtol=0, atol=bound)


def test_smaller_forms_are_smaller_files() -> None:
    tensors = {"weight": torch.randn(5, 1280, generator=seeding.generator("sizes")), "bias": torch.zeros(5)}
    sizes = [len(rounding.encode(tensors, form)) for form in rounding.FORMS]
    assert sizes[0] > 4 * 6405 > sizes[1] > 2 * 6405 > sizes[2] > 6405


# ---- methods --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize(
    ("method", "forms"),
    [(Probe(), rounding.FORMS), (FineTune(), ("float32",)), (Delta(3000), ("file",))],
    ids=["probe", "finetune", "halrp"],
)
def test_a_method_learns_and_counts_its_file(method: Any, forms: tuple[str, ...]) -> None:
    domain = Tiny()
    task = domain.task("a", 20, 0)
    row = measure.fit(domain, "m", method, method.grid(domain, 20)[-1], task)
    assert tuple(row["files"]) == forms
    assert row["rows"] == {"train": 60, "val": 60, "test": 120}
    for file in row["files"].values():
        assert file["accuracy"] > 50  # measured: 61 and more; a guess is right for a third
        assert 0 < file["bytes"] < 10_000
        assert file["val_loss"] < math.log(3)
    assert row["files"] == measure.fit(domain, "m", method, method.grid(domain, 20)[-1], task)["files"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("norms", [False, True])
def test_lora_stores_its_factors_the_head_and_norms_if_they_are_trained(norms: bool) -> None:
    declare_image_operations()
    pytest.importorskip("peft")
    domain = Tiny()
    method = Lora(2, norms=norms, fitted_head=True)
    row = measure.fit(domain, "lora", method, {"lr": 0.01, "targets": "first"}, domain.task("a", 20, 0))
    numbers = 2 * (8 + 16) + 3 * 17 + (4 * 16 if norms else 0)
    sizes = [row["files"][form]["bytes"] for form in rounding.FORMS]
    assert sizes == sorted(sizes, reverse=True)
    assert 4 * numbers < sizes[0] < 4 * numbers + (1200 if norms else 700)  # names and shapes of four to nine tensors
    for form in rounding.FORMS:
        assert row["files"][form]["accuracy"] == pytest.approx(row["files"]["float32"]["accuracy"], abs=5)
    assert row["files"]["float32"]["accuracy"] > 70


def test_the_probe_is_the_minimum_of_its_penalised_loss() -> None:
    task = Tiny().task("a", 20, 0)
    head = logistic(task.train.x, task.train.y, 3, 1e-2)
    loss = nn.functional.cross_entropy(head(task.train.x), task.train.y) + 1e-2 * head.weight.square().sum()
    gradients = torch.autograd.grad(loss, list(head.parameters()))
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-4  # in float32, of a loss near 1


def test_features_are_computed_once_and_the_saved_seconds_are_counted(cached: Path) -> None:
    domain, saved = Tiny(), Saved.seconds
    x = domain.task("a", 5, 0).train.x
    first = features(domain, x)
    assert Saved.seconds == saved
    assert torch.equal(features(domain, x), first)
    assert Saved.seconds > saved
    assert len(list(cached.rglob("*.safetensors"))) == 1
    features(domain, x + 1)
    assert len(list(cached.rglob("*.safetensors"))) == 2


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_norms_do_not_change_in_training(frozen: bool) -> None:
    domain = Tiny()
    model = Classifier(domain.base(), 16, 3)
    before = model.body[1].running_mean.clone()  # type: ignore[index]
    training.train(model, domain.task("a", 5, 0), lr=0.01, batch=5, frozen_norms=frozen)
    assert torch.equal(model.body[1].running_mean, before) is frozen  # type: ignore[index]
    assert not model.training


def test_the_rate_rises_to_its_highest_and_ends_near_zero() -> None:
    factors = [training.factor(step, 80) for step in range(80)]
    assert max(factors) == factors[8] == 1
    assert factors[:9] == sorted(factors[:9])
    assert factors[8:] == sorted(factors[8:], reverse=True)
    assert 0 < factors[-1] < 0.01


class PaddingConv(nn.Conv2d):
    """A convolution that pads by itself."""

    def __init__(self, *args: Any, sides: tuple[int, int, int, int], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.static_padding = nn.ZeroPad2d(sides) if any(sides) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.static_padding(x))


@pytest.mark.parametrize(("sides", "stride"), [((0, 0, 0, 0), 1), ((1, 1, 1, 1), 1), ((0, 1, 0, 1), 2)])
def test_plain_convolutions_have_the_same_outputs(sides: tuple[int, int, int, int], stride: int) -> None:
    network = seeded(lambda: nn.Sequential(PaddingConv(4, 4, 3, stride, groups=2, sides=sides), nn.ReLU()))
    x = torch.randn(2, 4, 8, 8, generator=seeding.generator("images"))
    with torch.no_grad():
        outputs = network(x)
        efficientnet.with_plain_convolutions(network)
        assert torch.equal(network(x), outputs)
    assert not any(isinstance(module, PaddingConv) for module in network.modules())


def test_weights_with_another_checksum_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(b"other")
    with pytest.raises(DamagedError, match=r"weights\.pth has the SHA-256 d9298a10"):
        efficientnet.weights_file(path)


# ---- tables ---------------------------------------------------------------------------------------------------------


def row(method: str, task: str, seed: int, accuracy: float, size: int = 1000, **setting: Any) -> records.Row:
    file = {"bytes": size, "accuracy": accuracy, "val_accuracy": accuracy, "val_loss": 1.0}
    fields = {"kind": "fit", "network": "n", "method": method, "setting": setting, "task": task, "shots": 30}
    return fields | {"seed": seed, "files": {"float32": file}, "seconds": 2.0}


def test_an_estimate_is_the_mean_and_its_standard_error() -> None:
    mean, error = table.estimate([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert str(table.estimate([60.0])) == "60.0"
    assert table.estimate([-1.0, -2.0]).signed == "-1.5 ± 0.5"


def test_differences_are_paired_over_what_both_methods_have() -> None:
    rows = [row("probe", "a", seed, 60.0 + seed) for seed in range(3)] + [row("lora-r4", "a", 0, 70.0, lr=1.0)]
    rows += [row("halrp-60", "a", seed, 63.0 + 2 * seed) for seed in range(3)]
    rows += [row("lora-r4", "a", 0, 99.0, lr=2.0), row("halrp-60", "z", 0, 0.0)]
    rows.append(
        {"kind": "choice", "network": "n", "method": "lora-r4", "shots": 30, "setting": {"lr": 1.0}, "grid": []}
    )
    lines = table.lines(rows, 30, ["a"])
    assert [entry.method for entry in lines] == ["lora-r4", "halrp-60", "probe"]
    shown = table.markdown(lines).splitlines()
    assert "| **halrp-60** | float32 | 3 | 65.0 ± 1.2 | +4.0 ± 0.6 | -7.0 | 1,000 | 2 |" in shown
    assert "| lora-r4 | float32 | 1 | 70.0 | +10.0 |  | 1,000 | 2 |" in shown


def test_a_method_whose_setting_is_not_chosen_yet_is_in_no_table() -> None:
    assert table.lines([row("lora-r4", "a", 0, 70.0, lr=1.0)], 30, ["a"]) == []


def test_every_name_of_the_command_line_is_a_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"probe", "lora-r4", "lora-r8", "finetune", "halrp-15", "halrp-1000"} <= methods().keys()
    with pytest.raises(SystemExit):
        main(["vision", "--methods", "nothing"])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err


def test_the_command_writes_the_tables_into_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.append(tmp_path / "vision.jsonl", row("probe", vision.Vision.dev[0], 0, 61.25))
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- begin pretrained-vision -->\nold\n<!-- end pretrained-vision -->\nafter\n")
    main(["table", "--results", str(tmp_path), "--document", str(document)])
    written = document.read_text()
    assert "| probe | float32 | 1 | 61.2 |" in written
    assert written.startswith("before\n")
    assert "old" not in written
    assert "61.2" in capsys.readouterr().out
