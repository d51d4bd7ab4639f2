"""Commands of the server: serve a store, and make tokens for its clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from halrp.cli.options import Json
from halrp.cli.screen import show
from halrp.cli.store import Folder, HeadOption, ModelOption, OutputsOption, TransformOption
from halrp.errors import SettingError
from halrp.terminal import echo
from halrp.tools.importing import build_model, call_options


def serve_store(
    store: Folder,
    model: ModelOption,
    head: HeadOption = None,
    outputs: OutputsOption = None,
    transform: TransformOption = None,
    host: Annotated[
        str, typer.Option(help="the address to listen on; the default is this machine alone")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="the port to listen on; 0 is any free one")] = 8000,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="an input, NAME=DATATYPE:SIZES of a row: pixels=FP32:3,32,32; requests must fit"),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="only for clients with a token of this file; see halrp token")
    ] = None,
    anyone: Annotated[bool, typer.Option("--anyone", help="let other machines in without tokens")] = False,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="use only what this key signed")] = None,
    memory: Annotated[
        int | None, typer.Option(help="MB of tasks in memory, beside the base; default 256 or four times the base")
    ] = None,
    pinned: Annotated[list[str] | None, typer.Option("--pin", help="a task that always stays in memory")] = None,
    batch: Annotated[int, typer.Option(help="rows that requests are fused to")] = 64,
    delay: Annotated[float, typer.Option(help="milliseconds that a request waits for others")] = 2.0,
    body: Annotated[int, typer.Option(help="MB that a request may have")] = 64,
    text: Annotated[int, typer.Option(help="MB of a request that may be JSON; tensors may be binary")] = 16,
    bodies: Annotated[int, typer.Option(help="MB that all requests under way may have, in each process")] = 512,
    rows: Annotated[int, typer.Option(help="rows that a request may have")] = 4096,
    queue: Annotated[int, typer.Option(help="requests that may wait")] = 256,
    timeout: Annotated[float, typer.Option(help="seconds after which a request is given up")] = 30.0,
    workers: Annotated[
        int, typer.Option(help="processes that share the base's memory; --memory is that of each, beside pinned tasks")
    ] = 1,
) -> None:
    """Serve every task of a store over HTTP, by the Open Inference Protocol of Triton, KServe and MLServer.

    A task is a model of that name; the model "base" is the base, and takes requests with a task for each row. Tasks
    are read when they are first asked for, and what other processes commit is seen. There is a page at / and figures
    for Prometheus at /metrics. Ctrl-C or SIGTERM finishes the requests under way.

    Example: halrp serve store/ --model my_models:resnet --input pixels=FP32:3,32,32
    """
    import torch

    from halrp.serve.store_predictor import StorePredictor
    from halrp.server.inputs import InputSpec
    from halrp.server.limits import Limits
    from halrp.server.run import Address, serve
    from halrp.server.service import Service
    from halrp.server.tokens import Tokens
    from halrp.server.workers import prepare_forks

    logging.basicConfig(level=logging.WARNING, format="halrp: %(message)s")
    address, known = Address(host, port, anyone), None if tokens is None else Tokens.load(tokens)
    address.check(known)
    specs = [InputSpec.parse(text) for text in inputs or []]
    sizes = {"body": body << 20, "text": text << 20, "bodies": bodies << 20}
    limits = Limits(**sizes, rows=rows, queue=queue, seconds=timeout, batch=batch, delay=delay / 1000)
    threads = prepare_forks(workers)
    predictor = StorePredictor.open(
        store,
        build_model(model),
        **call_options(head, outputs, transform),
        verify_key=key,
        memory=None if memory is None else memory << 20,
        pinned=pinned or (),
        check=True,
    )
    if workers > 1 and predictor.base.device.type != "cpu":
        raise SettingError("--workers shares memory of the processor; a model on another device has one worker")

    def service() -> Service:
        torch.set_num_threads(threads)
        return Service(predictor, limits, specs)

    tell = f"serving {len(predictor.tasks)} tasks of {store}" + (f" by {workers} workers" if workers > 1 else "")
    serve(service, limits, address, known, lambda url: echo(f"{tell} on {url}"), workers)


def make_token(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a file of tokens, made if need be", show_default=False)],
    tasks: Annotated[
        list[str], typer.Option("--task", help='a task that the token is for; "*" is all, "base" the base')
    ],
    as_json: Json = False,
) -> None:
    """Make a token for clients of halrp serve, and add its checksum to a file of tokens.

    The token is printed once and stored nowhere. Clients send it as "Authorization: Bearer TOKEN". A server reads
    the file when it starts.

    Example: halrp token tokens.toml --task birds --task cars
    """
    from halrp.server.tokens import add_token

    token = add_token(file, tasks)
    show({"token": token, "file": str(file), "tasks": tasks}, token, as_json)


COMMANDS: dict[str, Callable[..., None]] = {"serve": serve_store, "token": make_token}
