"""The description of the protocol: every route is in it, and schemathesis finds the server to do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from halrp.server.app import make_app
from halrp.server.service import Service
from tests.server.asking import asked, server
from tests.timing import PATIENCE

NOT_THE_PROTOCOL = {"/", "/metrics", "/status", "/openapi.json"}


def test_every_route_of_the_protocol_is_described(service: Service) -> None:
    app = make_app(service)
    described = asked(app, "GET", "/openapi.json").json["paths"]
    routes = {
        (re.sub(r":path", "", route.path), method.lower())  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    operations = {(path, method) for path, item in described.items() for method in item if method != "parameters"}
    assert operations == {(path, method) for path, method in routes if path not in NOT_THE_PROTOCOL}


@pytest.mark.slow
def test_schemathesis_finds_no_answer_that_is_not_as_described(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="pip install -c constraints.txt schemathesis")
    schemathesis = Path(sys.executable).with_name("schemathesis")
    # That the data of a tensor fit its shape is beyond what a schema can say, so some requests that fit it are refused.
    options = ("--checks", "all", "--exclude-checks", "positive_data_acceptance", "--max-examples", "20", "--seed", "1")
    with server(store, "--input", "FP32:10") as (address, _):
        command = [str(schemathesis), "run", f"http://{address}/openapi.json", *options, "--no-color"]
        command += ["--continue-on-failure"]
        judged = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert judged.returncode == 0, judged.stdout[-4000:]
    tested = re.search(r"Tested: (\d+)", judged.stdout)
    assert tested is not None
    assert int(tested[1]) == 12
