"""docker/helm: what the chart makes of values is valid, and what it says of this server is what the server has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.packaging.documents import DOCS, ROOT
from tests.packaging.manifests import check_times, check_valid, check_variables, probed_paths
from tests.real.helm import program

CHART: Final = ROOT / "docker" / "helm" / "djl-serving"
MANIFESTS: Final = ROOT / "docker" / "kubernetes"
#: Everything that the chart can make, with values that need care: large numbers, text that looks like a number.
ALL_OF_IT: Final[dict[str, Any]] = {
    "models": [
        {"name": "chat", "source": "hf://owner/chat"},
        {"name": "embedder:2", "source": "/opt/ml/model/embedder"},
    ],
    "options": {"max_model_len": 1048576, "enable_prefix_caching": False, "revision": "1e3"},
    "server": {"job_queue_size": 2000000, "metrics_access": "key"},
    "hubToken": {"secret": "hub"},
    "apiKeys": {"secret": "keys"},
    "env": [{"name": "HF_MODEL_ID", "valueFrom": {"configMapKeyRef": {"name": "models", "key": "id"}}}],
    "resources": {"limits": {"nvidia.com/gpu": 2}},
    "sharedMemory": "8Gi",
    "home": {"claim": "home"},
    "modelVolume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    "loadingTimeoutSeconds": 1801,
    "ingress": {"enabled": True, "className": "nginx", "host": "models.example.org", "tlsSecret": "tls"},
    "autoscaling": {"enabled": True},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceAccount": "models",
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"note": "yes"},
    "podLabels": {"team": "one"},
    "nodeSelector": {"gpu": "true"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}
SETS: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "all": ALL_OF_IT,
    "mounted": {"models": [], "podDisruptionBudget": {"enabled": False}},
}

pytestmark = pytest.mark.skipif(not program().exists(), reason="helm can't be had: python -m tests.real.helm says why")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program()), *arguments], capture_output=True, text=True, timeout=60)


def rendered(folder: Path, values: dict[str, Any], release: str = "models") -> dict[str, dict[str, Any]]:
    """Kind -> the object of this kind."""
    (folder / "values.yaml").write_text(json.dumps(values))
    made = helm("template", release, str(CHART), "--values", str(folder / "values.yaml"))
    assert made.returncode == 0, made.stderr
    documents = [document for document in yaml.safe_load_all(made.stdout) if document]
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents)
    return by_kind


def pod_of(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = documents["Deployment"]["spec"]["template"]["spec"]
    return pod


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_the_linter_finds_nothing() -> None:
    linted = helm("lint", "--strict", str(CHART))
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_objects_of_the_chart_are_valid_and_name_what_the_server_has(values: dict[str, Any], tmp_path: Path) -> None:
    documents = rendered(tmp_path, values)
    for document in documents.values():
        check_valid(document)
    pod = pod_of(documents)
    check_times(pod)
    check_variables(pod)
    assert set(probed_paths(pod)) == {"/v2/health/live", "/v2/health/ready"}


def test_the_parts_know_each_other(tmp_path: Path) -> None:
    documents = rendered(tmp_path, ALL_OF_IT)
    assert set(documents) == {
        *("Deployment", "Service", "Ingress", "HorizontalPodAutoscaler", "PodMonitor", "PodDisruptionBudget")
    }
    spec = documents["Deployment"]["spec"]
    labels, selector = spec["template"]["metadata"]["labels"], spec["selector"]["matchLabels"]
    assert selector.items() <= labels.items() and labels["team"] == "one"
    assert documents["Service"]["spec"]["selector"] == selector
    for kind in ("PodMonitor", "PodDisruptionBudget"):
        assert documents[kind]["spec"]["selector"]["matchLabels"] == selector
    assert {document["metadata"]["name"] for document in documents.values()} == {"models-djl-serving"}
    assert documents["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "models-djl-serving"
    assert "replicas" not in spec  # the autoscaler's
    (rule,) = documents["Ingress"]["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "models-djl-serving", "port": {"name": "http"}}


def test_values_reach_the_server_as_they_were_written(tmp_path: Path) -> None:
    pod = pod_of(rendered(tmp_path, ALL_OF_IT))
    assert variables(pod) == {
        "OPTION_MODEL_LOADING_TIMEOUT": "1801",
        "SERVING_DRAIN_TIMEOUT": "45",
        "OPTION_MAX_MODEL_LEN": "1048576",
        "OPTION_ENABLE_PREFIX_CACHING": "false",
        "OPTION_REVISION": "1e3",
        "SERVING_JOB_QUEUE_SIZE": "2000000",
        "SERVING_METRICS_ACCESS": "key",
        "HF_TOKEN": None,
        "SERVING_API_KEYS": "/etc/djl-serving/keys.jsonl",
        "HF_MODEL_ID": None,
    }
    (container,) = pod["containers"]
    assert container["args"] == ["-m", "chat=hf://owner/chat", "-m", "embedder:2=/opt/ml/model/embedder"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
    assert {path: volumes[name] for path, name in mounts.items()} == {
        "/home/djl": {"persistentVolumeClaim": {"claimName": "home"}},
        "/tmp": {"emptyDir": {}},
        "/opt/ml/model": ALL_OF_IT["modelVolume"],
        "/etc/djl-serving": {"secret": {"secretName": "keys"}},
        "/dev/shm": {"emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    }


def test_the_defaults_are_those_of_the_manifests(tmp_path: Path) -> None:
    with (MANIFESTS / "deployment.yaml").open(encoding="utf-8") as file:
        manifests = {document["kind"]: document for document in yaml.safe_load_all(file)}
    with (MANIFESTS / "autoscaling.yaml").open(encoding="utf-8") as file:
        manifests |= {document["kind"]: document for document in yaml.safe_load_all(file)}
    documents = rendered(tmp_path, {})
    scaling = rendered(tmp_path, {"autoscaling": {"enabled": True}}, "djl-serving")["HorizontalPodAutoscaler"]
    assert scaling["spec"] == manifests["HorizontalPodAutoscaler"]["spec"]  # the name too: the release has the chart's
    assert documents["Deployment"]["spec"]["replicas"] == manifests["Deployment"]["spec"]["replicas"]
    pods = [pod_of(documents), pod_of(manifests)]
    for pod in pods:
        (container,) = pod["containers"]
        for name in ("image", "imagePullPolicy", "env", "args"):
            container.pop(name, None)
    assert pods[0] == pods[1]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replica": 2}, "replica"),
        ({"options": {"dtype": ["bf16"]}}, "dtype"),
        ({"options": {"max-model-len": 1}}, "max-model-len"),
        ({"models": [{"name": "chat"}]}, "source"),
        ({"ingress": {"enabled": True, "tlsSecret": "tls"}}, "ingress.host"),
        ({"autoscaling": {"enabled": True, "minReplicas": 9}}, "at most maxReplicas (8), got 9"),
        ({"server": {"drain_timeout": 120}}, "drain_timeout"),
        ({"options": {"DTYPE": "bf16"}}, "DTYPE"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], told: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    refused = helm("template", "models", str(CHART), "--values", str(tmp_path / "values.yaml"))
    assert refused.returncode != 0 and told in refused.stderr


def test_every_value_has_a_schema_and_a_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, of_it in schema["properties"].items():
        if "properties" in of_it:
            assert set(of_it["properties"]) == set(values[name]), name


def test_the_chart_is_in_the_documents() -> None:
    assert "docker/helm/djl-serving" in (DOCS / "deployment.md").read_text(encoding="utf-8")
