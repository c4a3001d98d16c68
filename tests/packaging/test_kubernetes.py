"""docker/kubernetes: what Kubernetes knows is valid, and what the manifests say of this server is what it has.

Pods within other kinds are validated as pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import httpx
import kubernetes_validate
import pytest
import yaml
from jsonschema import ValidationError

from djl_python.server.metrics.specs import SPECS, MetricKind
from djl_python.testing import RunningServer
from tests.packaging.documents import DOCS, ROOT
from tests.packaging.manifests import DOCKERFILE, check_times, check_valid, check_variables, probed_paths

FOLDER: Final = ROOT / "docker" / "kubernetes"
#: Fields of an InferenceService's predictor that are not a pod's.
OF_A_PREDICTOR: Final = {"minReplicas", "maxReplicas", "model"}


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path.name, document


ALL: Final = list(manifests())
IDS: Final = [f"{name}-{document['kind']}" for name, document in ALL]


def one(kind: str) -> dict[str, Any]:
    """The manifest of this kind, of those that are not for Ray."""
    (manifest,) = (document for name, document in ALL if document["kind"] == kind and name != "ray.yaml")
    return manifest


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods of all manifests, by where they are. KServe puts the two parts of its pod together."""
    predictor = one("InferenceService")["spec"]["predictor"]
    pod = {name: value for name, value in predictor.items() if name not in OF_A_PREDICTOR}
    yield "kserve.yaml", {**pod, "containers": one("ServingRuntime")["spec"]["containers"]}
    for name, document in ALL:
        if document["kind"] == "Deployment":
            yield name, document["spec"]["template"]["spec"]


PODS: Final = list(pods())


@pytest.mark.parametrize("document", [document for _, document in ALL], ids=IDS)
def test_a_manifest_is_valid(document: dict[str, Any]) -> None:
    check_valid(document)


@pytest.mark.parametrize("pod", [pod for _, pod in PODS], ids=[name for name, _ in PODS])
def test_a_pod_is_valid_wherever_it_is_written(pod: dict[str, Any]) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_a_ray_cluster_has_valid_pods_and_the_server_finds_its_head() -> None:
    (cluster,) = (document for _, document in ALL if document["kind"] == "RayCluster")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    head = cluster["spec"]["headGroupSpec"]
    for template in (head["template"], group["template"]):
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **template}
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    (server,) = (document for name, document in ALL if name == "ray.yaml" and document["kind"] == "Deployment")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in head["template"]["spec"]["containers"][0]["ports"]}
    # KubeRay calls a head's service so.
    address = f"ray://{cluster['metadata']['name']}-head-svc:{ports['client']}"
    assert (variables["OPTION_PLACEMENT"], variables["OPTION_RAY_ADDRESS"]) == ("ray", address)
    (port,) = (port["containerPort"] for port in container["ports"] if port["name"] == "workers")
    assert variables["SERVING_WORKER_ADDRESS"] == f"$(POD_IP):{port}"


def test_a_wrong_field_would_be_found() -> None:
    wrong = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": {"containers": [], "replicas": 2}}
    with pytest.raises(ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("pod", [pod for _, pod in PODS], ids=[name for name, _ in PODS])
def test_probes_ask_what_the_server_answers_at_the_images_port(pod: dict[str, Any], demo: RunningServer) -> None:
    for path in probed_paths(pod):
        assert httpx.get(f"{demo.url}{path}").status_code == 200


@pytest.mark.parametrize("pod", [pod for _, pod in PODS], ids=[name for name, _ in PODS])
def test_a_pod_lives_until_it_has_loaded_and_until_it_has_drained(pod: dict[str, Any]) -> None:
    check_times(pod)


@pytest.mark.parametrize("pod", [pod for _, pod in PODS], ids=[name for name, _ in PODS])
def test_variables_of_a_pod_are_those_of_the_server(pod: dict[str, Any]) -> None:
    check_variables(pod)


def test_selectors_find_the_pods_of_the_deployment() -> None:
    spec = one("Deployment")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert one("Service")["spec"]["selector"] == labels
    for kind in ("PodMonitor", "PodDisruptionBudget"):
        assert one(kind)["spec"]["selector"]["matchLabels"] == labels
    target = one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", one("Deployment")["metadata"]["name"])
    runtime = one("InferenceService")["spec"]["predictor"]["model"]
    assert runtime["runtime"] == one("ServingRuntime")["metadata"]["name"]
    formats = {each["name"] for each in one("ServingRuntime")["spec"]["supportedModelFormats"]}
    assert runtime["modelFormat"]["name"] in formats


def test_ports_that_others_name_are_the_pods() -> None:
    (container,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    names = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in one("Service")["spec"]["ports"]} <= names
    assert {endpoint["port"] for endpoint in one("PodMonitor")["spec"]["podMetricsEndpoints"]} <= names


def test_prometheus_scrapes_where_the_server_has_metrics(demo: RunningServer) -> None:
    annotations = one("ServingRuntime")["spec"]["annotations"]
    paths = {endpoint["path"] for endpoint in one("PodMonitor")["spec"]["podMetricsEndpoints"]}
    for path in paths | {annotations["prometheus.kserve.io/path"]}:
        assert "\ndjl_workers{" in httpx.get(f"{demo.url}{path}").text
    assert f"\nEXPOSE {annotations['prometheus.kserve.io/port']}\n" in DOCKERFILE


def test_an_autoscaler_asks_for_gauges_of_the_server_that_the_adapter_passes_on() -> None:
    gauges = {spec.full_name for spec in SPECS if spec.kind is MetricKind.GAUGE}
    asked = {metric["pods"]["metric"]["name"] for metric in one("HorizontalPodAutoscaler")["spec"]["metrics"]}
    assert asked <= gauges
    (rule,) = yaml.safe_load(one("ConfigMap")["data"]["config.yaml"])["rules"]
    (pattern,) = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    assert {name for name in gauges if re.fullmatch(pattern, name)} == asked


def test_every_file_is_in_the_documents() -> None:
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("deployment.md", "scale.md"))
    assert {path.name for path in FOLDER.iterdir()} == set(re.findall(r"kubernetes/([\w.-]+\.yaml)", text))
