"""The recipe for Kubernetes agrees with the server: its command, ports, paths, times and volumes."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import typer.main
import yaml

from halrp.cli.app import app
from halrp.server.app import make_app
from halrp.server.inputs import InputSpec
from halrp.server.run import GRACE, Address
from halrp.server.service import Service
from halrp.server.tokens import Tokens, add_token
from tests.server.asking import ROOT, asked, server
from tests.timing import PATIENCE

RECIPE = ROOT / "examples" / "kubernetes"
DOCKERFILE = (RECIPE / "Dockerfile").read_text("utf-8")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def instruction(name: str) -> Any:
    """What an instruction of the Dockerfile has."""
    [text] = re.findall(rf"^{name} (.+)$", DOCKERFILE, re.MULTILINE)
    return json.loads(text) if text.startswith("[") else text


@dataclass(frozen=True)
class Pod:
    """A pod of a manifest, with its one container."""

    name: str
    spec: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        [container] = self.spec["containers"]
        return dict(container)

    @property
    def arguments(self) -> list[str]:
        return [*instruction("ENTRYPOINT"), *self.container["args"]]


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(RECIPE.glob("*.yaml")):
        for content in yaml.safe_load_all(path.read_text("utf-8")):
            yield path.stem, content


def pods() -> Iterator[Pod]:
    for name, content in manifests():
        if content["kind"] == "Deployment":
            yield Pod(name, content["spec"]["template"]["spec"])
        elif content["kind"] == "InferenceService":
            yield Pod(name, content["spec"]["predictor"])


PODS = list(pods())


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The parameters of the command that arguments call, as the command itself parses them."""
    name, command, *rest = arguments
    assert name == "halrp"
    group: Any = typer.main.get_command(app)
    return dict(group.commands[command].make_context(command, rest).params)


def test_there_are_a_deployment_with_a_service_and_an_inference_service() -> None:
    kinds = [content["kind"] for _, content in manifests()]
    assert sorted(kinds) == ["Deployment", "InferenceService", "Service"]
    assert [pod.name for pod in PODS] == ["deployment", "inference-service"]


@pytest.mark.parametrize(
    "arguments", [pod.arguments for pod in PODS] + [instruction("ENTRYPOINT") + instruction("CMD")]
)
def test_the_command_is_one_that_the_server_takes(arguments: list[str]) -> None:
    given = parsed(arguments)
    assert given["model"] == "my_models:build"
    assert re.search(r"^COPY my_models\.py \.$", DOCKERFILE, re.MULTILINE)
    assert given["tokens"] is not None
    assert not given["anyone"]
    address = Address(given["host"], given["port"], given["anyone"])
    assert not address.is_loopback
    address.check(Tokens([]))  # other machines may connect
    for text in given["inputs"] or ():
        InputSpec.parse(text)


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.name)
def test_ports_are_that_of_the_server(pod: Pod) -> None:
    port = parsed(pod.arguments)["port"]
    [declared] = pod.container["ports"]
    assert declared["containerPort"] == port == int(instruction("EXPOSE"))
    names = {declared.get("name"): port, port: port}
    for probe in PROBES:
        assert names[pod.container[probe]["httpGet"]["port"]] == port
    services = [content for name, content in manifests() if name == pod.name and content["kind"] == "Service"]
    for service in services:
        [forwarded] = service["spec"]["ports"]
        assert names[forwarded["targetPort"]] == port


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.name)
def test_probes_ask_for_what_the_server_answers_without_a_token(pod: Pod, service: Service) -> None:
    application = make_app(service, Tokens([]))
    for probe in PROBES:
        assert asked(application, "GET", pod.container[probe]["httpGet"]["path"]).status == 200
    assert pod.container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert asked(application, "GET", "/v2/models/t1").status == 401


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.name)
def test_requests_under_way_have_their_time_before_a_pod_is_killed(pod: Pod) -> None:
    asleep = pod.container["lifecycle"]["preStop"]["exec"]["command"]
    assert asleep[0] == "sleep"
    assert pod.spec["terminationGracePeriodSeconds"] >= int(asleep[1]) + parsed(pod.arguments)["timeout"] + GRACE + 1


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.name)
def test_files_are_on_volumes_that_are_there_and_cannot_be_written_to(pod: Pod) -> None:
    given = parsed(pod.arguments)
    mounts = {PurePosixPath(mount["mountPath"]): mount for mount in pod.container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod.spec["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == volumes
    for path in (given["store"], given["tokens"]):
        [mount] = [mounts[at] for at in mounts if PurePosixPath(path).is_relative_to(at)]
        assert mount["readOnly"]
    security = pod.container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert pod.spec["securityContext"]["runAsNonRoot"]
    assert int(instruction("USER")) > 0


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.name)
def test_threads_and_memory_are_those_of_the_limits(pod: Pod) -> None:
    variables = {variable["name"]: variable for variable in pod.container["env"]}
    assert variables["OMP_NUM_THREADS"]["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"
    given, limits = parsed(pod.arguments), pod.container["resources"]["limits"]
    assert given["workers"] <= int(limits["cpu"])
    assert given["workers"] * (given["memory"] << 20) < int(limits["memory"].removesuffix("Gi")) << 30


def test_the_inference_service_is_of_this_protocol() -> None:
    pod = PODS[1]
    assert pod.container["name"] == "kserve-container"
    assert {"name": "PROTOCOL", "value": "v2"} in pod.container["env"]


def test_the_server_of_the_recipe_starts_and_answers(store: Path, tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens.toml", ["t1"])
    replaced = {"--model", "--port", "--input", "--host", "--tokens"}  # by those of this machine and model
    options = [option for option in PODS[0].container["args"][1:] if option.partition("=")[0] not in replaced]
    assert len(options) >= 3
    with server(store, *options, "--tokens", str(tmp_path / "tokens.toml")) as (address, _):
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        for path, headers, status in (
            ("/v2/health/live", {}, 200),
            ("/v2/health/ready", {}, 200),
            ("/v2/models/t1/ready", {}, 401),
            ("/v2/models/t1/ready", {"Authorization": f"Bearer {token}"}, 200),
        ):
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == status, path
        connection.close()
