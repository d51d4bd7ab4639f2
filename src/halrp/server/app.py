"""The server's HTTP side: routes of the Open Inference Protocol, limits, and errors as answers. `make_app`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from halrp.errors import HalrpError
from halrp.server import openapi, page, protocol
from halrp.server.errors import RequestError, as_request_error
from halrp.server.metrics import Metrics
from halrp.server.service import Service
from halrp.server.tokens import Access, Tokens

Handler = Callable[[Request, Access], Awaitable[Response]]
Value = TypeVar("Value")
LOG = logging.getLogger("halrp.server")
THREADS = 4
"""Threads that read requests and tasks; batches are computed by one more."""
LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]
"""What a browser calls a server on its own machine; another name there may be a trick of a foreign page."""


def make_app(
    service: Service,
    tokens: Tokens | None = None,
    hosts: list[str] | None = None,
    metrics: Metrics | None = None,
) -> Starlette:
    """The application; without tokens everybody who can connect may use every task. `hosts` are names it answers to."""
    return _App(service, tokens, Metrics() if metrics is None else metrics).starlette(hosts)


class _App:
    """The routes over one service."""

    def __init__(self, service: Service, tokens: Tokens | None, metrics: Metrics) -> None:
        self.service, self.tokens, self.metrics = service, tokens, metrics
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="halrp-request")
        self.received = 0
        """Bytes of the requests under way."""

    def starlette(self, hosts: list[str] | None) -> Starlette:
        """All routes. A name of a model may hold slashes, so routes with more behind the name come first."""
        routes = [
            ("GET", "/", "page", self.page, False),
            ("GET", "/v2", "server", self.server, False),
            ("GET", "/v2/health/live", "live", self.alive, False),
            ("GET", "/v2/health/ready", "ready", self.alive, False),
            ("GET", "/metrics", "metrics", self.figures, True),
            ("GET", "/status", "status", self.status, True),
            ("GET", "/openapi.json", "openapi", self.description, True),
            ("POST", "/v2/repository/index", "index", self.index, True),
            ("POST", "/v2/repository/models/{model:path}/load", "load", self.load, True),
            ("POST", "/v2/repository/models/{model:path}/unload", "unload", self.unload, True),
        ]
        for prefix in ("/v2/models/{model:path}/versions/{version}", "/v2/models/{model:path}"):
            routes += [
                ("POST", f"{prefix}/infer", "infer", self.infer, True),
                ("GET", f"{prefix}/ready", "model ready", self.model_ready, True),
                ("GET", prefix, "model", self.model, True),
            ]
        hosted = [] if hosts is None else [Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
        return Starlette(
            routes=[
                Route(path, partial(self._answered, name, handler, private), methods=[method])
                for method, path, name, handler, private in routes
            ],
            middleware=hosted,
            exception_handlers={HTTPException: _nowhere},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.service.close)
        self.threads.shutdown()

    async def _answered(self, name: str, handler: Handler, private: bool, request: Request) -> Response:
        """The answer of a handler, or of an error; both are counted."""
        start = time.perf_counter()
        try:
            response = await handler(request, self._access(request) if private else Access(frozenset()))
        except HalrpError as error:
            response = self._refusal(error, request)
        except ClientDisconnect:
            response = Response(status_code=408)
        except Exception:
            LOG.exception("%s failed", name)
            response = _error(RequestError(500, "the request could not be answered; the server's log says why"))
        self.metrics.add(name, response.status_code, time.perf_counter() - start)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def _access(self, request: Request) -> Access:
        if self.tokens is None:
            return Access()
        access = self.tokens.access(request.headers.get("authorization"))
        if access is None:
            raise RequestError(401, "this server needs a token: Authorization: Bearer …")
        return access

    @staticmethod
    def _refusal(error: HalrpError, request: Request) -> Response:
        refused = as_request_error(error)
        if refused.status >= 500 and not (isinstance(error, RequestError) and error.__cause__ is None):
            LOG.error("%s: %s", request.url.path[:200], error, exc_info=error if refused.status == 500 else None)
        return _error(refused)

    async def _in_thread(self, function: Callable[..., Value], *arguments: Any) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(function, *arguments))

    # ---- inference --------------------------------------------------------------------------------------------------

    async def infer(self, request: Request, access: Access) -> Response:
        """Outputs of a model, or of a task per row."""
        limits, begun = self.service.limits, time.monotonic()
        model, version = request.path_params["model"], request.path_params.get("version")
        counted = [0]
        try:
            body = await self._body(request, counted)
            header = request.headers.get(protocol.HEADER)
            prepared = await self._in_thread(self.service.prepare, access, model, version, body, header)
            del body
            deadline = begun + limits.seconds
            waiting = asyncio.wrap_future(self.service.submit(prepared, deadline))
            try:
                outputs = await asyncio.wait_for(waiting, max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise RequestError(503, f"no answer within {limits.seconds:g} seconds", retry_after=1) from error
            content, length = await self._in_thread(self.service.encode, prepared, outputs)
        finally:
            self.received -= counted[0]
        if length is None:
            return Response(content, media_type="application/json")
        headers = {protocol.HEADER: str(length)}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def _body(self, request: Request, counted: list[int]) -> bytes:
        """The body of a request, which is given up as soon as it is too large or too slow."""
        limits, chunks = self.service.limits, []
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "this server takes no compressed requests")
        declared = request.headers.get("content-length", "0")
        too_large = RequestError(413, f"the request has more than the {limits.body} bytes that this server takes")
        if not declared.isdecimal() or int(declared[:20]) > limits.body:
            raise too_large
        try:
            async with asyncio.timeout(limits.seconds):
                async for chunk in request.stream():
                    counted[0] += len(chunk)
                    self.received += len(chunk)
                    if counted[0] > limits.body:
                        raise too_large
                    if self.received > limits.bodies:
                        raise RequestError(429, "the requests under way are too large together", retry_after=1)
                    chunks.append(chunk)
        except TimeoutError as error:
            raise RequestError(408, f"the request did not come within {limits.seconds:g} seconds") from error
        return b"".join(chunks)

    # ---- models -----------------------------------------------------------------------------------------------------

    async def model(self, request: Request, access: Access) -> Response:
        """What a model takes and gives."""
        parameters = request.path_params
        name, version = parameters["model"], parameters.get("version")
        return JSONResponse(await self._in_thread(self.service.metadata, access, name, version))

    async def model_ready(self, request: Request, access: Access) -> Response:
        """Whether a model can be asked: its file is there and is what was committed."""
        parameters = request.path_params
        await self._in_thread(self.service.loaded, access, parameters["model"], parameters.get("version"))
        return Response()

    async def load(self, request: Request, access: Access) -> Response:
        """Read and verify a model, so that the first request for it need not wait."""
        await self._in_thread(self.service.loaded, access, request.path_params["model"], None)
        return JSONResponse({})

    async def unload(self, request: Request, access: Access) -> Response:
        """Give a model's memory back."""
        await self._in_thread(self.service.unload, access, request.path_params["model"])
        return JSONResponse({})

    async def index(self, request: Request, access: Access) -> Response:
        """The models that a client may use."""
        return JSONResponse(await self._in_thread(self.service.index, access))

    # ---- the server -------------------------------------------------------------------------------------------------

    async def server(self, request: Request, access: Access) -> Response:
        """What the server is."""
        return JSONResponse(self.service.server_metadata())

    async def description(self, request: Request, access: Access) -> Response:
        """The protocol for tools."""
        return JSONResponse(openapi.description(self.service.inputs))

    async def alive(self, request: Request, access: Access) -> Response:
        """That the server answers."""
        return Response()

    async def page(self, request: Request, access: Access) -> Response:
        """The page for people. It holds nothing of the store; its script asks for what the person may see."""
        return Response(page.CONTENT, media_type="text/html", headers=page.HEADERS)

    async def status(self, request: Request, access: Access) -> Response:
        """What the page shows."""
        return JSONResponse(await self._in_thread(self.service.status, access))

    async def figures(self, request: Request, access: Access) -> Response:
        """Figures for Prometheus, for those who may see everything."""
        if not access.everything:
            raise RequestError(404, "there is nothing here")
        gauges = await self._in_thread(self.service.gauges)
        text = self.metrics.text(gauges, self.service.counters())
        return Response(text, media_type="text/plain; version=0.0.4")


async def _nowhere(request: Request, error: Exception) -> Response:
    """The answer for a path or a method that the server does not have: JSON, as for every other error."""
    assert isinstance(error, HTTPException)
    headers = {**(error.headers or {}), "X-Content-Type-Options": "nosniff"}
    return JSONResponse({"error": error.detail}, error.status_code, headers)


def _error(error: RequestError) -> Response:
    headers: Mapping[str, str] = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    return JSONResponse({"error": str(error)}, error.status, headers)
