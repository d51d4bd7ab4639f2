"""What a person does first with each extra, as a program that fails if it does not work."""

from __future__ import annotations

LEARN = """
import torch
from torch import nn
from halrp import Halrp, Learner, Recipe

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

def learned():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    learner = Learner(build(), method=Halrp.budget(8_000), recipe=Recipe(epochs=2), base="given")
    learner.learn("left", (x, (x[:, 0] > 0).long()))
    learner.learn("right", (x, (x[:, 1] > 0).long()))
    return learner, x
"""
"""A model and two tasks."""

COMMAND = """
import subprocess
from pathlib import Path

def halrp(*arguments, code=0):
    done = subprocess.run(["halrp", *arguments], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr
"""

CORE = (
    LEARN
    + COMMAND
    + """
import importlib.util
import halrp as package

learner, x = learned()
learner.save("store")
again = Learner.load("store", build(), check=True)
assert torch.equal(again.predict(x, "left"), learner.predict(x, "left"))
assert halrp("--version") == package.__version__ + "\\n"
assert halrp("inspect", "store", code=1) == "halrp: this command needs typer; run: pip install 'halrp[cli]'\\n"
for other in ("pandas", "sklearn", "scipy", "typer", "rich", "starlette", "onnx"):
    assert importlib.util.find_spec(other) is None, other
"""
)
CLI = (
    LEARN
    + COMMAND
    + """
learner, _ = learned()
learner.save("store")
assert "left" in halrp("inspect", "store")
assert "all good" in halrp("verify", "store")
assert "Retained 100 % (bitwise): 2 tasks." in halrp("report", "store")
assert Path("report.html").exists()
assert "2 with the same bits" in halrp("compare", "store", "store")
assert "All is well" in halrp("doctor", "store", "--no-speed")
Path("my_models.py").write_text("from program_model import build\\n")
Path("program_model.py").write_text(Path("program.py").read_text().partition("def learned")[0])
assert "Smallest budget" in halrp("explain", "my_models:build")
assert "ewc" in halrp("methods")
Path("records").mkdir()
assert halrp("data", "list") and halrp("streams") and halrp("backbones") and halrp("presets")
for command, extra in (
    (("results", "records"), "lab"),
    (("report", "records"), "lab"),
    (("serve", "store", "--model", "my_models:build"), "serve"),
    (("run", "--method", "be", "--stream", "digits", "--backbone", "digits-net"), "lab"),
):
    text = halrp(*command, code=2)
    assert text.startswith("halrp: this command needs ") and text.endswith(f"'halrp[{extra}]'\\n"), text
onnx = ("export", "store", "left", "-o", "left.onnx", "--model", "my_models:build", "--input", "1,8")
assert "run: pip install 'halrp[onnx]'" in halrp(*onnx, code=2)
"""
)
LAB = (
    COMMAND
    + """
run = ("--method", "be", "--stream", "digits", "--backbone", "digits-net", "--tasks", "2", "--epochs", "1")
halrp("run", *run, "--results", "records")
assert "be" in halrp("results", "records")
halrp("report", "records", "-o", "page.html")
assert Path("page.html").stat().st_size > 10_000
"""
)
SERVE = (
    LEARN
    + COMMAND
    + """
import json
import urllib.request

learner, x = learned()
learner.save("store")
Path("program_model.py").write_text(Path("program.py").read_text().partition("def learned")[0])
command = ["halrp", "serve", "store", "--model", "program_model:build", "--input", "x=FP32:8", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        address = server.stdout.readline().split()[-1]
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": x[:1].flatten().tolist()}
        body = json.dumps({"inputs": [entry]}).encode()
        request = urllib.request.Request(f"{address}/v2/models/left/infer", body)
        answer = json.loads(urllib.request.urlopen(request).read())
        assert answer["model_name"] == "left", answer
    finally:
        server.terminate()
"""
)
MLFLOW = (
    LEARN
    + """
import os
from pathlib import Path

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import halrp.mlflow
import mlflow

learner, x = learned()
Path("program_model.py").write_text(Path("program.py").read_text().partition("def learned")[0])
mlflow.set_tracking_uri("file:runs")
with mlflow.start_run():
    halrp.mlflow.log_model(learner, "left", "program_model:build", registered_model_name="left")
model = mlflow.pyfunc.load_model("models:/left/1")
assert (model.predict(x.numpy())["output"] == learner.predict(x, "left").numpy()).all()
"""
)
ONNX = (
    LEARN
    + """
from pathlib import Path
from halrp.tools import export

learner, x = learned()
written = export.write(learner.export("left"), lambda rows: learner.predict(rows, "left"), x[:2], Path("left.onnx"))
assert written.difference < 1e-4
"""
)
TEXT = """
import torch
from transformers import BertConfig, BertForSequenceClassification
from halrp import Halrp, Learner, Recipe

torch.manual_seed(0)
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
model = BertForSequenceClassification(config)
learner = Learner(model, method=Halrp.budget(20_000), recipe=Recipe(epochs=1), base="given")
words = torch.randint(50, (32, 6))
learner.learn("words", ({"input_ids": words, "attention_mask": torch.ones_like(words)}, words[:, 0] % 2))
"""
VISION = """
import torch
import timm
from halrp import Halrp, Learner, Recipe

torch.manual_seed(0)
model = timm.create_model("resnet10t", pretrained=False, num_classes=2)
learner = Learner(model, method=Halrp.budget(150_000), recipe=Recipe(epochs=1), base="given")
images = torch.randn(8, 3, 32, 32)
learner.learn("brightness", (images, (images.mean((1, 2, 3)) > 0).long()))
"""
PEFT = """
from halrp.lab.methods.check import check_method

assert check_method("lora").passed
"""
SKLEARN = """
from sklearn.datasets import load_iris
from halrp.sklearn import HalrpClassifier

x, y = load_iris(return_X_y=True)
assert HalrpClassifier(random_state=0).fit(x, y).score(x, y) > 0.9
"""
SIGNING = (
    LEARN
    + """
from halrp import Store
from halrp.store import signing

learner, _ = learned()
learner.save("store")
key = signing.new_key("ed25519")
assert Store("store").sign(key) > 0
Learner.load("store", build(), verify_key=key.verifier())
"""
)
TENSORBOARD = (
    LEARN
    + """
from pathlib import Path
from halrp.callbacks import TensorBoard

x = torch.randn(32, 8)
learner = Learner(build(), method=Halrp.budget(8_000), recipe=Recipe(epochs=1), base="given")
learner.learn("left", (x, (x[:, 0] > 0).long()), progress=TensorBoard("runs"))
assert any(Path("runs").iterdir())
"""
)
CLUSTER = (
    COMMAND
    + """
from distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        assert client.submit(int, "3").result() == 3
    assert "--scheduler" in halrp("sweep", "--help")
"""
)
DOCS = """
import furo, myst_parser, sphinx

assert sphinx.version_info >= (9, 0)
"""
PROGRAMS = {
    "": CORE,
    "cli": CLI,
    "lab": LAB,
    "serve": SERVE,
    "mlflow": MLFLOW,
    "onnx": ONNX,
    "text": TEXT,
    "vision": VISION,
    "peft": PEFT,
    "sklearn": SKLEARN,
    "signing": SIGNING,
    "tensorboard": TENSORBOARD,
    "cluster": CLUSTER,
    "docs": DOCS,
}
"""By extra; "" is the library alone. `dev` is what developers and CI have."""
