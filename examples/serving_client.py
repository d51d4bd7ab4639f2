"""A server for all tasks of a store, and a client that needs nothing but Python's standard library.

`halrp serve` speaks the protocol of Triton and KServe, so their clients work as well.

Run it: python examples/serving_client.py  (needs pip install 'halrp[serve,sklearn]')
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe


def build() -> nn.Module:
    """The architecture, which the server builds too: weights come from the store."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def learn(store: Path) -> tuple[Tensor, Tensor]:
    """Learn three tasks into a store; return images that were not trained on, and their digits."""
    x, digit = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x, train = x.float() / 16, slice(0, 1300)
    torch.manual_seed(0)
    recipe = Recipe(epochs=6, batch=32)
    learner = Learner(build(), method=Halrp.budget(8_000), recipe=recipe, store=store, progress=None)
    learner.learn("digit", (x[train], digit[train]), class_names=list("0123456789"))
    learner.learn("parity", (x[train], digit[train] % 2), class_names=["even", "odd"])
    learner.learn("size", (x[train], (digit[train] > 4).long()), class_names=["small", "large"])
    return x[1300:], digit[1300:]


@contextmanager
def served(store: Path) -> Iterator[str]:
    """The address of a server for the store, which runs as long as the block does."""
    command = ["-m", "halrp", "serve", str(store), "--model", "serving_client:build", "--input", "input=FP32:64"]
    here = Path(__file__).parent  # where the server finds the module of the model
    arguments = [sys.executable, *command, "--port", "0"]
    with subprocess.Popen(arguments, cwd=here, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]  # it prints its address when it is ready
        finally:
            server.terminate()


def infer(address: str, model: str, x: Tensor, **more: list[str]) -> dict[str, list[Any]]:
    """Ask a model of the server, which is a task, about some rows; return the outputs by name."""
    inputs = [{"name": "input", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}]
    for name, texts in more.items():
        inputs.append({"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": texts})
    body = json.dumps({"inputs": inputs, "outputs": [{"name": "label"}, {"name": "probability"}]}).encode()
    with urlopen(Request(f"{address}/v2/models/{model}/infer", body)) as answer:
        return {output["name"]: output["data"] for output in json.load(answer)["outputs"]}


def main(folder: Path) -> None:
    x, digit = learn(folder / "store")
    with served(folder / "store") as address:
        for task in ("digit", "parity", "size"):
            print(f"{task}: {infer(address, task, x[:4])['label']} for {digit[:4].tolist()}")
        mixed = infer(address, "base", x[:3], task=["digit", "parity", "size"])  # a task for each row, in one pass
        print(f"mixed: {mixed['label']} for {digit[:3].tolist()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
