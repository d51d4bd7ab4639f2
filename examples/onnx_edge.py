"""A family of tasks on a device without Python's torch: one ONNX graph, and a small adapter file for each task.

ONNX Runtime runs it on phones, in browsers and from C++, C# or Java; `device` below uses nothing but its Python form.

Run it: python examples/onnx_edge.py  (needs pip install 'halrp[onnx,sklearn]')
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from halrp import Halrp, Learner, Recipe
from halrp.tools import onnx_family


def device(folder: Path, x: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """What the device does: one session holds the base, and a call names the adapter of a task."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # it warns that weights are inputs, which is what adapters are
    session = onnxruntime.InferenceSession(str(folder / "family.onnx"), settings)
    outputs: dict[str, Any] = {}
    for path in sorted(folder.glob("*.onnx_adapter")):
        adapter, call = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        adapter.Load(str(path))
        call.add_active_adapter(adapter)
        [outputs[path.stem]] = session.run(None, {"x": x}, call)
    return outputs


def main(folder: Path) -> None:
    x, digit = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x, train, test = x.float() / 16, slice(0, 1300), slice(1300, None)
    tasks = {"digit": digit, "parity": digit % 2, "size": (digit > 4).long()}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    learner = Learner(model, method=Halrp.budget(8_000), recipe=Recipe(epochs=6, batch=32), progress=None)
    for name, y in tasks.items():
        learner.learn(name, (x[train], y[train]))

    # The same as: halrp export STORE --family -o edge --model my_models:build --input 1,64
    onnx_family.write(learner.export(None), learner.tasks, learner.predict, x[:1], folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.name}: {path.stat().st_size:,} bytes")

    for name, logits in device(folder, x[test].numpy()).items():
        right = (logits.argmax(1) == tasks[name][test].numpy()).mean()
        difference = np.abs(logits - learner.predict(x[test], name).numpy()).max()
        print(f"{name}: {right:.1%} right, logits as here: {difference < 1e-4}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
