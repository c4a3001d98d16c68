"""What Kubernetes and the server say of a manifest: for those of docker/kubernetes, and those that the chart makes.

`kubernetes-validate` brings the schemas of Kubernetes' own kinds. For other kinds, the fields of `spec` are compared
with those that their documentation names.
"""

from __future__ import annotations

from typing import Any, Final

import kubernetes_validate

from djl_python.config import ServerConfig
from djl_python.config.binding import settings_of
from djl_python.config.command_line import known_settings
from tests.packaging.documents import ROOT

DOCKERFILE: Final = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
#: Kinds of others -> the fields of their `spec` that are used here.
CUSTOM: Final = {
    ("monitoring.coreos.com/v1", "PodMonitor"): {"selector", "podMetricsEndpoints"},
    ("ray.io/v1", "RayCluster"): {"headGroupSpec", "workerGroupSpecs"},
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): {
        "annotations",
        "containers",
        "protocolVersions",
        "supportedModelFormats",
    },
    ("serving.kserve.io/v1beta1", "InferenceService"): {"predictor"},
}
#: Variables that are not settings: the image's model, the hub's token, one that another variable is made of.
OTHER_VARIABLES: Final = {"HF_MODEL_ID", "HF_TOKEN", "POD_IP"}
PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")


def check_valid(document: dict[str, Any]) -> None:
    """Raise if Kubernetes would refuse a manifest, or ignore a field of it."""
    kind = (document["apiVersion"], document["kind"])
    assert set(document) <= {"apiVersion", "kind", "metadata", "spec", "data"}
    if kind in CUSTOM:
        assert set(document["spec"]) <= CUSTOM[kind]
    else:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def probed_paths(pod: dict[str, Any]) -> list[str]:
    """What a pod's probes ask, each at the port that the image exposes."""
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    asked = [container[probe]["httpGet"] for probe in PROBES]
    assert all(f"\nEXPOSE {ports[each['port']]}\n" in DOCKERFILE for each in asked)
    return [each["path"] for each in asked]


def check_times(pod: dict[str, Any]) -> None:
    """Raise if a pod would end before it has loaded, or before it has drained."""
    (container,) = pod["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    _, sleep_s = container["lifecycle"]["preStop"]["exec"]["command"]
    drain_s = float(variables.get("SERVING_DRAIN_TIMEOUT", ServerConfig().drain_timeout_s))
    assert pod["terminationGracePeriodSeconds"] > int(sleep_s) + drain_s
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= int(variables["OPTION_MODEL_LOADING_TIMEOUT"])


def check_variables(pod: dict[str, Any]) -> None:
    """Raise if the server has no setting for a variable of a pod."""
    settings, of_server = known_settings(), {setting.key for setting in settings_of(ServerConfig)}
    for container in pod["containers"]:
        for name in {entry["name"] for entry in container["env"]} - OTHER_VARIABLES:
            kind, _, key = name.partition("_")
            assert (kind == "SERVING" and key.lower() in of_server) or (kind == "OPTION" and key.lower() in settings), (
                name
            )
