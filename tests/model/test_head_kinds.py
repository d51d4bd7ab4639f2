"""Every kind of head on its whole way: learned, stored, resumed, mixed, exported, explained, verified."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, Progress, Recipe, Store, explain
from halrp.errors import HeadError, ModelError, StoreError, TaskError, WrongBaseError
from halrp.model.plan import plan
from halrp.tools import export
from halrp.tools.inspect import summary
from halrp.tools.verify import verify
from tests.helpers import CLASSES, VOCABULARY, drawn, tiny_task

BUDGET = 7_000
METHOD = Halrp.budget(bytes_per_task=BUDGET)
RECIPE = Recipe(epochs=2, batch=8, lr=5e-3)


class Features(nn.Module):
    """A body without a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.second(self.first(x).relu()).tanh())


class Headed(Features):
    """The same with a head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.classifier = head

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(super().forward(x)))


class ClassificationHead(nn.Module):
    """As transformers' models of the RoBERTa family have it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout, self.out_proj = nn.Linear(12, 12), nn.Dropout(0.2), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.out_proj(self.dropout(self.dense(self.dropout(x)).tanh())))


def small_mlp() -> nn.Module:
    """A head with norms, one of which has running statistics."""
    return nn.Sequential(
        nn.LayerNorm(12), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Dropout(0.1), nn.Linear(6, CLASSES)
    )


class Convolutional(nn.Module):
    """A 1×1 convolution makes a map of each class, and its mean is the logit."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.conv(x).relu()).mean((2, 3)))


class Language(nn.Module):
    """The next token after a text, with an embedding that is also the output layer."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.lm_head = nn.Linear(8, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.lm_head(self.hidden(self.embedding(x)).tanh().mean(1)))


def transposed() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return cast(nn.Module, Conv1D(CLASSES, 12))


@dataclass(frozen=True)
class Kind:
    """A model with a head of some kind."""

    build: Callable[[], nn.Module]
    head: str | Callable[[], nn.Module] | Literal[False]
    path: str
    """The head's name afterwards."""
    data: str = "mlp"
    given_again: bool = False
    """Whether a store cannot tell the head by itself."""
    one_pass: bool = True

    @property
    def argument(self) -> str | nn.Module | Literal[False]:
        """What `Learner` gets."""
        return drawn(self.head) if callable(self.head) else self.head

    def model(self, seed: int = 0) -> nn.Module:
        return drawn(self.build, seed)

    def learner(self, **settings: Any) -> Learner:
        settings = {"method": METHOD, "recipe": RECIPE, "base": "given", **settings}
        return Learner(self.model(), head=self.argument, **settings)

    def load(self, folder: Path, seed: int = 5, **settings: Any) -> Learner:
        head = drawn(cast(Any, self.head), seed) if self.given_again else None
        return Learner.load(folder, self.model(seed), head=head, **settings)

    def task(self, number: int) -> tuple[Tensor, Tensor]:
        """Tasks of two, three, four … classes; where the head is kept, they use some of its outputs."""
        return tiny_task(self.data, number, classes=2 + number)

    def outputs(self, number: int) -> int:
        return VOCABULARY if self.head is False else 2 + number


KINDS = {
    "transposed": Kind(lambda: Headed(transposed()), "classifier", "classifier"),
    "convolution": Kind(Convolutional, "head", "head", "conv"),
    "classification head": Kind(lambda: Headed(ClassificationHead()), "classifier", "classifier"),
    "small mlp": Kind(lambda: Headed(small_mlp()), "classifier", "classifier"),
    "on top": Kind(Features, lambda: nn.Linear(12, CLASSES), "halrp_linear"),
    "small mlp on top": Kind(Features, small_mlp, "halrp_head", given_again=True),
    "on top of a head": Kind(lambda: Headed(nn.Linear(12, 12)), lambda: nn.Linear(12, CLASSES), "halrp_linear"),
    "kept": Kind(lambda: Language(tied=False), False, "", "gru"),
    "kept and tied": Kind(Language, False, "", "gru"),
}
pytestmark = pytest.mark.filterwarnings("error")


def file_sizes(folder: Path) -> dict[str, int]:
    manifest = Store(folder).manifest()
    return {name: (folder / entry.file).stat().st_size for name, entry in manifest.tasks.items()}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("base", ["given", "first"])
def test_a_head_goes_the_whole_way(name: str, base: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    learner = kind.learner(base=base, store=tmp_path / "store")
    assert learner.head == kind.path
    x = kind.task(0)[0]
    before: dict[str, Tensor] = {}
    for number, task in enumerate("abc"):
        delta = learner.learn(task, kind.task(number), classes=kind.outputs(number))
        assert delta.classes == kind.outputs(number)
        assert all(torch.equal(learner.predict(x, n), outputs) for n, outputs in before.items())
        before[task] = learner.predict(x, task)
        assert before[task].shape == (len(x), kind.outputs(number))
    # Sizes are exact, and within the budget.
    assert {n: d.bytes for n, d in learner.tasks.items() if not d.is_base} == {
        n: size for n, size in file_sizes(tmp_path / "store").items() if not learner.tasks[n].is_base
    }
    assert all(delta.bytes <= BUDGET for delta in learner.tasks.values())
    # Stored, and loaded by a model with other numbers.
    loaded = kind.load(tmp_path / "store")
    assert loaded.head == kind.path
    assert all(torch.equal(loaded.predict(x, n), outputs) for n, outputs in before.items())
    assert torch.equal(loaded.predict(x, None), learner.predict(x, None))
    loaded.save(tmp_path / "again")
    assert file_sizes(tmp_path / "again") == file_sizes(tmp_path / "store")
    # Rows of different tasks.
    rows = [("a", "b", "c", None)[n % 4] for n in range(len(x))]
    mixed = learner.predict(x, rows)
    for row, task_name in enumerate(rows):
        alone = learner.predict(x[row : row + 1], task_name)[0]
        # The same sums in another order: a few roundings of float32.
        torch.testing.assert_close(mixed[row, : len(alone)], alone, rtol=1e-4, atol=1e-5)
        assert bool((mixed[row, len(alone) :] == -torch.inf).all())
    assert learner._committed.predictor._mixed is not None
    assert learner._committed.predictor._mixed.one_pass is kind.one_pass
    # As modules of their own.
    for form in (learner.module("c"), learner.export("c")):
        torch.testing.assert_close(form(x).detach(), before["c"], rtol=1e-4, atol=1e-5)
    # The tools read it.
    head = drawn(cast(Any, kind.head)) if kind.given_again else None
    assert {finding.status for finding in verify(tmp_path / "store", kind.model(7), head=head)} == {"good"}
    assert summary(tmp_path / "store")["head"] == kind.path


@pytest.mark.parametrize("name", KINDS)
def test_explain_prices_a_task_with_the_head(name: str) -> None:
    kind = KINDS[name]
    model = kind.model()
    numbers = {n: t.clone() for n, t in model.state_dict().items()}
    explained = explain(model, kind.argument)
    assert not explained.refused
    assert explained.head == kind.path
    assert model.state_dict().keys() == numbers.keys()
    learner = kind.learner()
    head = {n: p for n, p in learner._committed.ready.plan.parameters.items() if p.role == "head"}
    rows = {row.name: row for row in explained.rows if row.role == "head" and row.kind == "owned" and row.shape}
    assert rows.keys() >= head.keys()
    sizes = [learner.learn(task, kind.task(number), classes=kind.outputs(number)) for number, task in enumerate("ab")]
    heads = [sum(delta.stored[f"plain/{name}"].bytes for name in head) for delta in sizes]
    assert heads[1] - heads[0] == explained.class_bytes
    assert ("Each class more in the head" in str(explained)) is bool(kind.path)


@pytest.mark.parametrize("name", ["small mlp on top", "kept and tied"])
def test_workers_learn_the_same_bits(name: str) -> None:
    kind = KINDS[name]
    tasks = {task: (kind.task(number),) for number, task in enumerate("ab", 1)}
    here, elsewhere = kind.learner(), kind.learner()
    here.learn_many(tasks)
    with ThreadPoolExecutor(1) as engine:
        elsewhere.learn_many(tasks, engine)
    x = kind.task(0)[0]
    assert all(torch.equal(here.predict(x, task), elsewhere.predict(x, task)) for task in tasks)


class Interrupt(BaseException):
    """What stops a process."""


@pytest.mark.parametrize("name", ["transposed", "small mlp", "on top", "kept and tied"])
def test_a_task_that_was_interrupted_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    recipe = Recipe(epochs=4, batch=8, lr=5e-3)

    def stop(at: Progress) -> None:
        if at.stage.startswith("fine-tune") and at.epoch == 1:
            raise Interrupt

    with pytest.raises(Interrupt):
        kind.learner(store=Store(tmp_path, checkpoint_every=0), recipe=recipe, progress=stop).learn("a", kind.task(1))
    # Another process draws the model's head otherwise.
    model = kind.model()
    for part, layer in model.named_modules():
        if kind.path and part.startswith(kind.path) and hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    argument = kind.argument
    resumed = Learner(
        model, head=argument, base="given", method=METHOD, recipe=recipe, store=Store(tmp_path, checkpoint_every=0)
    )
    resumed.learn("a", kind.task(1))
    whole = kind.learner(recipe=recipe)
    whole.learn("a", kind.task(1))
    x = kind.task(0)[0]
    assert torch.equal(resumed.predict(x, "a"), whole.predict(x, "a"))


@pytest.mark.parametrize("name", ["classification head", "small mlp"])
def test_every_layer_of_a_head_is_drawn_for_a_task_whatever_the_model_has_there(name: str) -> None:
    kind = KINDS[name]
    outputs = []
    for seed in (1, 2):
        model = kind.model()
        torch.manual_seed(seed)
        for layer in model.get_submodule("classifier").modules():
            if isinstance(layer, (nn.Linear, nn.LayerNorm, nn.BatchNorm1d)):
                nn.init.normal_(layer.weight)
        learner = Learner(model, head="classifier", base="given", method=METHOD, recipe=RECIPE)
        learner.learn("a", kind.task(1))
        outputs.append(learner.predict(kind.task(0)[0], "a"))
    assert torch.equal(*outputs)


def test_the_layers_of_a_head_belong_to_the_task_and_the_last_one_has_its_width() -> None:
    model = KINDS["small mlp"].model()
    model.get_buffer("classifier.2.running_mean").fill_(50.0)
    learner = Learner(model, head="classifier", base="given", method=METHOD, recipe=RECIPE)
    delta = learner.learn("a", tiny_task("mlp", 1, classes=5))
    head = {n: tuple(t.shape) for n, t in delta.owned.items() if delta.roles[n] == "head"}
    assert head["classifier.5.weight"] == (5, 6)
    assert head["classifier.5.bias"] == (5,)
    assert head["classifier.1.weight"] == (6, 12)
    assert {"classifier.0.weight", "classifier.2.running_mean"} <= head.keys()
    assert not any(n.startswith("classifier") for n in delta.ranks)


def test_naming_the_last_layer_alone_adapts_the_layers_before_it() -> None:
    model = KINDS["classification head"].model()
    assert plan(model).head == "classifier.out_proj"
    assert plan(model).parameters["classifier.dense.weight"].kind == "adapted"


def test_a_head_that_is_put_on_top_is_copied_and_keeps_its_kind(tmp_path: Path) -> None:
    head, model = drawn(lambda: nn.Linear(12, 7)), drawn(Features)
    before = copy.deepcopy(head.state_dict())
    learner = Learner(model, head=head, base="given", method=METHOD, recipe=RECIPE, store=tmp_path)
    learner.learn("a", tiny_task("mlp", 1))
    assert all(torch.equal(tensor, before[name]) for name, tensor in head.state_dict().items())
    assert head.out_features == 7
    assert [name for name, _ in model.named_children()] == ["first", "second"]
    x = tiny_task("mlp", 2)[0]
    with torch.no_grad():
        torch.testing.assert_close(learner.predict(x, None), head(model.eval()(x)))
    with pytest.raises(WrongBaseError, match=r"made with a head on top of the model .*, the model has the head"):
        Learner(model, head="second", base="given", store=tmp_path)


def test_a_head_on_top_leaves_every_modules_mode_as_it_was() -> None:
    body = drawn(Features)
    body.train().get_submodule("second").eval()
    Learner(body, head=nn.Linear(12, 2), method=METHOD, recipe=RECIPE, base="given", progress=None)
    explain(body, head=nn.Linear(12, 2))
    assert [module.training for module in body.modules()] == [True, True, False]


def test_a_head_of_another_class_on_top_must_be_given_again(tmp_path: Path) -> None:
    kind = KINDS["small mlp on top"]
    learner = kind.learner(store=tmp_path)
    learner.learn("a", kind.task(1))
    with pytest.raises(WrongBaseError, match=r"a head of yours on top of the model; give it: Learner\.load"):
        Learner.load(tmp_path, kind.model())
    with pytest.raises(WrongBaseError, match="is a Linear, the store's is another module"):
        Learner.load(tmp_path, kind.model(), head=nn.Linear(12, 3))
    other = KINDS["kept"]
    other.learner().save(tmp_path / "other")
    with pytest.raises(WrongBaseError, match="not on top of the model; leave it out"):
        Learner.load(tmp_path / "other", other.model(), head=nn.Linear(12, 3))


def test_a_module_with_the_name_of_a_head_on_top_is_refused() -> None:
    model = nn.Sequential(nn.Linear(10, 12))
    model.add_module("halrp_linear", nn.Linear(12, 3))
    with pytest.raises(HeadError, match="a name for heads on top of a model; rename it"):
        Learner(model)
    assert "rename it" in str(explain(model))


def test_a_model_that_gives_no_tensor_takes_no_head_on_top() -> None:
    class Outputs(Features):
        def forward(self, x: Tensor) -> Any:
            return {"last_hidden_state": super().forward(x)}

    learner = Learner(drawn(Outputs), head=nn.Linear(12, 3), base="given", method=METHOD, recipe=RECIPE)
    with pytest.raises(ModelError, match="needs one tensor of features"):
        learner.learn("a", tiny_task("mlp"))


def test_a_kept_head_has_the_models_outputs_for_every_task() -> None:
    learner = KINDS["kept and tied"].learner()
    assert learner.learn("a", KINDS["kept"].task(1)).classes == VOCABULARY
    with pytest.raises(TaskError, match=r"3 classes, but head=False keeps the model's 20 outputs"):
        learner.learn("b", KINDS["kept"].task(1), classes=3)
    tied = learner._committed.ready.plan.parameters["embedding.weight"]
    assert (tied.kind, tied.aliases) == ("adapted", ("embedding.weight", "lm_head.weight"))
    export_ = learner.export("a")
    assert export_.get_parameter("embedding.weight") is export_.get_parameter("lm_head.weight")


class Nameless(nn.Module):
    """Parameters of its own, and nothing that says how many outputs it has."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.inner = nn.Linear(10, 12), nn.Module()
        self.inner.scale = nn.Parameter(torch.ones(3))


class Unresettable(nn.Module):
    """A layer with a parameter that nothing draws."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "tied": (Language, None, "one tied parameter.*untie them.*head=False"),
    "unknown width": (Nameless, False, "head=False: how many outputs the model has does not show.*'inner', a Module"),
    "no reset": (
        lambda: Headed(nn.Sequential(Unresettable(), nn.Linear(12, 3))),
        "classifier",
        r"with '0', a Unresettable, which has no reset_parameters.*name the last layer alone \('1' in it\)",
    ),
    "no output layer": (
        lambda: Headed(nn.Sequential(nn.LayerNorm(12), nn.Bilinear(12, 12, 3))),
        "classifier",
        "without an nn.Linear or an ungrouped convolution",
    ),
    "no head": (
        lambda: nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12)),
        None,
        r"put one on top with head=nn\.Linear\(\.\.\.\), or keep the model's outputs with head=False",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_head_is_refused_with_a_remedy(name: str) -> None:
    build, head, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        Learner(drawn(build), head=head)
    refused = explain(drawn(build), head).refused
    assert refused


@pytest.mark.parametrize("name", ["transposed", "small mlp", "on top", "kept"])
def test_a_store_without_a_manifest_names_its_head_again(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    learner = kind.learner(store=tmp_path)
    learner.learn("a", kind.task(1))
    (tmp_path / "manifest.json").unlink()
    Store(tmp_path).repair()
    assert Store(tmp_path).manifest().head == kind.path
    x = kind.task(0)[0]
    assert torch.equal(kind.load(tmp_path).predict(x, "a"), learner.predict(x, "a"))


@pytest.mark.parametrize("name", ["transposed", "on top"])
def test_a_task_is_written_for_other_runtimes(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    learner = kind.learner()
    learner.learn("a", kind.task(1))
    x = kind.task(0)[0]
    written = export.write(learner.export("a"), lambda rows: learner.predict(rows, "a"), x[:4], tmp_path / "a.pt2")
    assert written.difference < 1e-4


def test_an_unreadable_layout_is_named_before_the_head(tmp_path: Path) -> None:
    kind = KINDS["on top"]
    kind.learner(store=tmp_path).learn("a", kind.task(1))
    next(tmp_path.glob("layout-*.json")).unlink()
    with pytest.raises(StoreError, match="layout-"):
        Learner.load(tmp_path, kind.model())
