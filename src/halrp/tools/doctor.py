"""What this machine and a store are like, and what a person could do about it: `halrp doctor`.

Every remark is something that was looked up or measured here and now. Nothing is changed.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp._version import __version__
from halrp.errors import StoreError
from halrp.model import views
from halrp.model.base import Base
from halrp.model.factors import Factors, identity_factors
from halrp.model.plan import plan
from halrp.store.store import Store
from halrp.text import counted
from halrp.tools.listing import listing
from halrp.tools.verify import Finding, verify

State: TypeAlias = Literal["good", "note", "advice", "problem"]
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use of the processors, on Linux."""
SLOWER = 1.15
"""How many times as long a step takes with more threads before it is worth a remark."""
REPEATS, PATIENCE = 7, 2.0
"""Timed steps of each kind, of which the median counts, and seconds after which no more are begun."""
CLASSES, BATCH, RANK = 10, 32, 4
REPAIRS = {
    "restore": "halrp repair {} brings it back",
    "rebuild": "halrp repair {} makes it again",
    "set aside": "halrp repair {} sets it aside",
    "delete": "halrp repair {} deletes it",
    "lost": "it cannot be brought back from this folder; restore a copy of it, or learn the task again",
}
"""What to do about what a repair would do."""


@dataclass(frozen=True)
class Remark:
    """One thing that was looked at."""

    topic: str
    state: State
    text: str
    advice: str = ""
    """What to do, if anything."""


def machine(measure: bool = True) -> Iterator[Remark]:
    """Versions, devices and threads, and with `measure` the seconds of a small training step."""
    for look in (versions, devices, threads, *([speed] if measure else [])):
        try:
            yield from look()
        except Exception as error:  # what is broken here must not hide the other remarks
            text = f"{type(error).__name__}: {_line(error)}"
            yield Remark(
                look.__name__, "problem", text, "is torch installed completely? pip install --force-reinstall torch"
            )


def versions() -> Iterator[Remark]:
    """Of the library and of what it needs."""
    system = f"{platform.system()} {platform.machine()}"
    needed = ", ".join(f"{name} {_version(name)}" for name in ("torch", "numpy", "safetensors"))
    text = f"halrp {__version__}, Python {platform.python_version()} on {system}, {needed}"
    yield Remark("versions", "good", text)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def devices() -> Iterator[Remark]:
    """What models can be on."""
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            yield Remark("device", "good", f"cuda:{number}: {properties.name}, {properties.total_memory >> 20:,} MB")
    elif shutil.which("nvidia-smi") and torch.version.cuda is None:
        advice = "install a build of torch for CUDA: https://pytorch.org/get-started/locally"
        yield Remark("device", "advice", "there is a GPU of NVIDIA, and this torch is built without CUDA", advice)
    elif torch.version.cuda is not None:
        advice = "look at the driver and at CUDA_VISIBLE_DEVICES, or stay with the processor"
        yield Remark("device", "advice", "this torch is built for CUDA and sees no GPU", advice)
    elif torch.backends.mps.is_available():
        yield Remark("device", "good", "mps: the GPU of this Mac; move the model there with model.to('mps')")
    else:
        yield Remark("device", "good", "the processor; deltas of small and middle-sized networks learn well on it")


def threads() -> Iterator[Remark]:
    """How many threads torch uses, and how many processors there are for them."""
    cores, used = processors(), torch.get_num_threads()
    text = f"torch uses {used} of {counted(cores, 'processor')}"
    given = os.environ.get("OMP_NUM_THREADS")
    if used > cores:
        yield Remark("threads", "advice", text, f"more threads than processors wait for each other; {_setting(cores)}")
    else:
        yield Remark("threads", "good", text + (f" (OMP_NUM_THREADS={given})" if given else ""))
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy > 1.5 * cores:
        text = f"other programs keep the machine busy: a load of {busy:.1f} on {counted(cores, 'processor')}"
        yield Remark("load", "note", text, "times that are measured now say little")


def processors() -> int:
    """The processors that this process may use, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, no limit, or not Linux
        return cores


def _setting(number: int) -> str:
    return f"set OMP_NUM_THREADS={number}, or call torch.set_num_threads({number})"


# ---- a short measured step ----------------------------------------------------------------------------------------


def speed() -> Iterator[Remark]:
    """How long a training step takes: of a whole small network and of a delta, and with one thread."""
    steps, used = _steps(), torch.get_num_threads()
    many = _measured(steps)
    text = f"a step of a small network, {BATCH} images: {_ms(many['whole'])} whole, {_ms(many['delta'])} as a delta"
    if used == 1:
        yield Remark("speed", "good", f"{text}, with 1 thread")
        return
    with _threads(1):
        single = _measured(steps)
    text += f" with {used} threads, {_ms(single['delta'])} with 1"
    if many["delta"] > SLOWER * single["delta"]:
        yield Remark("speed", "advice", text, f"one thread is faster for small networks here; {_setting(1)}")
    else:
        yield Remark("speed", "good", text)


def _steps() -> dict[str, Callable[[], None]]:
    """A training step of a whole network, and one of a delta on it."""
    with seeding.isolated("doctor", device=torch.device("cpu")):
        model = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(32 * 64, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
        )
        x, y = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % CLASSES
        base = Base(views.clone(model), plan(model), channels_last=False)
        factors = {name: _factors(weight) for name, weight in base.adapted_weights().items()}
    owned: dict[str, Tensor] = {name: nn.Parameter(t) for name, t in base.owned_tensors(base.module).items()}
    delta = base.tuning_view(factors, owned, CLASSES)
    trained = [*owned.values(), *(tensor for part in factors.values() for tensor in part.tensors())]

    def step(net: nn.Module, tensors: list[Tensor]) -> None:
        with torch.enable_grad():
            torch.autograd.grad(nn.functional.cross_entropy(net(x), y), tensors)

    return {"whole": lambda: step(model, [*model.parameters()]), "delta": lambda: step(delta, trained)}


def _factors(weight: Tensor) -> Factors:
    start = identity_factors(weight)
    p, q = torch.randn(weight.shape[0], RANK), torch.randn(RANK, weight.shape[1])
    return Factors(start.r, start.s, 0.01 * p, q).map(lambda tensor: tensor.detach().requires_grad_())


def _measured(steps: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The median seconds of each step, in turns, so that both see the same disturbances."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    begun = time.perf_counter()
    for number in range(REPEATS + 1):
        if number > 1 and time.perf_counter() - begun > PATIENCE:
            break
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


# ---- a store ------------------------------------------------------------------------------------------------------


def store(folder: str | os.PathLike[str], model: nn.Module | None = None, **options: Any) -> Iterator[Remark]:
    """Whether a store can be read as it was committed, and what lies in it besides; with a model, whether tasks fit.

    `options` are what else `verify` needs of the model.
    """
    path = Path(folder)
    try:
        repairs = Store(path).repair(dry_run=True)
        findings = verify(path, model, **options)
    except StoreError as error:
        yield Remark("store", "problem", _line(error), "restore a copy, or name the folder that a learner saved to")
        return
    for repair in repairs.steps:
        state: State = "note" if repair.kind == "delete" else "problem"
        advice = REPAIRS.get(repair.kind, f"halrp repair {path} --dry-run shows what it would do").format(path)
        yield Remark("store", state, f"{repair.file}: {repair.note}", advice)
    named = {repair.file for repair in repairs.steps}
    bad = [finding for finding in findings if finding.status == "bad" and finding.file not in named]
    for finding in bad:
        yield Remark("store", "problem", f"{finding.file}: {finding.note}", "restore a copy of it, or learn it again")
    if not repairs.steps and not bad:
        good = sum(finding.status == "good" for finding in findings)
        compared = " and fit the model" if model is not None else ""
        yield Remark("store", "good", f"{counted(good, 'file')} of {path} are what was committed{compared}")
    yield from _besides(path, findings)


def _besides(path: Path, findings: tuple[Finding, ...]) -> Iterator[Remark]:
    """What is harmless and takes space, or waits for somebody."""
    unfinished = sum(finding.status == "unfinished" for finding in findings)
    if unfinished:
        text = f"{counted(unfinished, 'checkpoint')} of interrupted tasks"
        yield Remark("store", "note", text, "learn these tasks again with the same data to resume them")
    try:
        content = listing(path)
    except StoreError:
        return
    old = sum(len(task["versions"]) for task in content["tasks"])
    if old:
        yield Remark("store", "note", f"{counted(old, 'old version')} of tasks", f"halrp drop {path} TASK removes them")
    if content["trash_bytes"]:
        text, advice = (
            f"{content['trash_bytes']:,} bytes in the trash",
            f"halrp repair {path} --empty-trash deletes them",
        )
        yield Remark("store", "note", text, advice)
    free = shutil.disk_usage(path).free
    if free < max(2 * content["bytes"], 1 << 28):
        text = f"{free >> 20:,} MB are free on its disk"
        yield Remark("disk", "advice", text, "a commit needs room for the new task's file; make some")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
