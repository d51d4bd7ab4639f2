"""Every task of a store by Ray Serve: replicas on any number of machines, and requests of different tasks in one batch.

    pip install -c constraints.txt 'ray[serve]'
    python examples/ray_serve.py                              # a store of its own, two replicas on this machine
    serve run examples.ray_serve:application store=tasks/     # your store; replace `build` by your model

A replica is a `StorePredictor`: it reads a task when it is first asked for and follows the store, a folder that all
machines see. There are two ways to ask. Without an id of a model, Ray sends a request to the replica with the shortest
queue, and `serve.batch` fuses requests whatever their tasks are: tasks are small, so every replica may hold all of
them. With the task as the id (`handle.options(multiplexed_model_id=task)`, or the HTTP header
`serve_multiplexed_model_id`), Ray sends it to a replica that holds the task, and divides batches by task: for more
tasks than the memory of one replica holds.
"""

import asyncio
import json
import socket
import tempfile
from typing import Any
from urllib.request import Request as Post
from urllib.request import urlopen

import ray
import torch
from ray import serve
from ray.serve.config import HTTPOptions
from starlette.requests import Request
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe, StorePredictor

NAMES = ("north", "south", "east", "west")
REQUESTS = 64
REPLICAS = 2


def build() -> nn.Module:
    """The architecture; the weights are the store's."""
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


@serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=256, ray_actor_options={"num_cpus": 1})
class Tasks:
    """A replica that answers for every task of a store."""

    def __init__(self, store: str, memory: int = 256 << 20) -> None:
        torch.set_num_threads(1)  # as many as the CPUs that Ray gives it
        self.predictor = StorePredictor.open(store, build(), memory=memory, check=True)
        self.name = serve.get_replica_context().replica_id.unique_id

    @serve.multiplexed(max_num_models_per_replica=1000)
    async def hold(self, task: str) -> str:
        """Read a task; Ray notes that this replica has it. The predictor's own bound decides what stays in memory."""
        await asyncio.to_thread(self.predictor.select, [task])
        return task

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.01)
    async def compute(self, rows: list[Tensor], tasks: list[str]) -> list[dict[str, Any]]:
        """Answers to several requests, in one pass through the network if that is the fastest way."""
        names = [task for x, task in zip(rows, tasks, strict=True) for _ in x]
        answer = await asyncio.to_thread(self.predictor.answer, torch.cat(rows), names)
        facts = {"replica": self.name, "requests": len(rows), "tasks": len(set(tasks))}
        answers, start = [], 0
        for x in rows:
            part = slice(start, start + len(x))
            probabilities = [[p for p in row if p > 0] for row in answer.probabilities[part].tolist()]
            answers.append({"labels": list(answer.labels[part]), "probabilities": probabilities, **facts})
            start += len(x)
        return answers

    async def predict(self, x: Tensor, task: str) -> dict[str, Any]:
        """Labels and probabilities of rows for a task, and how they were computed."""
        if serve.get_multiplexed_model_id():
            await self.hold(task)
        answers: Any = self.compute  # called for one request, and computed for a batch of them
        answer: dict[str, Any] = await answers(x, task)
        return answer

    async def __call__(self, request: Request) -> dict[str, Any]:
        """The same over HTTP: {"task": "north", "rows": [[…], …]}."""
        body = await request.json()
        return await self.predict(torch.tensor(body["rows"], dtype=torch.float32), body["task"])


def application(settings: dict[str, str]) -> Any:
    """What `serve run` takes."""
    deployment: Any = Tasks
    return deployment.bind(settings["store"])


def learn(folder: str) -> tuple[Learner, Tensor]:
    """A store of four tasks, and inputs."""
    torch.manual_seed(0)
    x = torch.randn(96, 8)
    learner = Learner(build(), method=Halrp.budget(growth_per_task=0.5), recipe=Recipe(epochs=5), store=folder)
    for number, name in enumerate(NAMES):
        learner.learn(name, (x, (x[:, number] > 0).long()), class_names=["low", "high"])
    return learner, x


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(handle: Any, x: Tensor, by_task: bool) -> tuple[list[str], list[dict[str, Any]]]:
    """Requests of one row for tasks in turn, all at once; the labels, and how each was computed."""
    responses = []
    for number in range(REQUESTS):
        task, row = NAMES[number % len(NAMES)], x[number : number + 1]
        chosen = handle.options(multiplexed_model_id=task) if by_task else handle
        responses.append(chosen.predict.remote(row, task))
    answers = [response.result(timeout_s=60) for response in responses]
    return [answer["labels"][0] for answer in answers], answers


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        learner, x = learn(folder)
        tasks = [NAMES[number % len(NAMES)] for number in range(REQUESTS)]
        expected = list(learner.answer(x[:REQUESTS], tasks).labels)
        port = free_port()
        ray.init(num_cpus=REPLICAS, include_dashboard=False, log_to_driver=False)
        try:
            serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
            handle = serve.run(application({"store": folder}))
            for task in NAMES:
                handle.options(multiplexed_model_id=task).predict.remote(x[:1], task).result(timeout_s=60)
            for by_task in (True, False):
                labels, answers = ask(handle, x, by_task)
                way = "by task" if by_task else "to any replica"
                most = max(answer["tasks"] for answer in answers)
                print(f"{way}: up to {most} tasks in a batch; as expected: {labels == expected}")
                for n, name in enumerate(NAMES):
                    replicas = sorted({answer["replica"] for answer in answers[n :: len(NAMES)]})
                    print(f"  {name} was computed by {', '.join(replicas)}")
            learner.learn("up", (x, (x[:, 4] > 0).long()), class_names=["low", "high"])  # while it is served
            body = json.dumps({"task": "up", "rows": x[:4].tolist()}).encode()
            with urlopen(Post(f"http://127.0.0.1:{port}/", body), timeout=60) as reply:
                shown = json.load(reply)["labels"]
            print(f"a new task over HTTP: {shown}; as expected: {shown == list(learner.answer(x[:4], 'up').labels)}")
        finally:
            serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    main()
