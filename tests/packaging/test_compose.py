"""docker/compose*.yaml without Docker: what they build, mount and scrape is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def document(name: str) -> dict[str, Any]:
    """A YAML file of docker/."""
    content = yaml.safe_load((ROOT / "docker" / name).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Sources by target, with the defaults of variables."""
    texts = (re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text) for text in service["volumes"])
    return {target: source for source, target in (text.split(":")[:2] for text in texts)}


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_mounted_files_exist(name: str) -> None:
    compose = document(name)
    for service in compose["services"].values():
        for target, source in mounts(service).items():
            assert target.startswith("/")
            assert source in compose["volumes"] or (ROOT / "docker" / source).exists(), source
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", service["image"])
    assert compose["services"]["djl-serving"]["build"]["dockerfile"] == "docker/Dockerfile"


def test_images_are_for_cpus_unless_cuda_is_asked_for() -> None:
    cpu, gpu = (document(name)["services"]["djl-serving"] for name in ("compose.yaml", "compose.gpu.yaml"))
    assert cpu["build"]["args"] == {"PIP_EXTRA_INDEX_URL": CPU_INDEX}
    assert "args" not in gpu["build"]
    assert gpu["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    builds = re.findall(r"^docker build .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert builds and all(CPU_INDEX in line for line in builds)


def test_both_run_the_image_alike() -> None:
    cpu, gpu = (document(name)["services"]["djl-serving"] for name in ("compose.yaml", "compose.gpu.yaml"))
    only = {"image", "build", "deploy", "shm_size"}
    assert {name: gpu[name] for name in gpu.keys() - only} == {name: cpu[name] for name in cpu.keys() - only}


def test_prometheus_finds_the_server_and_the_alerts() -> None:
    prometheus = document("monitoring/prometheus.yaml")
    (job,) = prometheus["scrape_configs"]
    assert job["job_name"] == "djl-serving"  # by which the alerts find it
    assert job["static_configs"] == [{"targets": ["djl-serving:8080"]}]
    mounted = mounts(document("compose.gpu.yaml")["services"]["prometheus"])
    assert [f"/etc/prometheus/{name}" in mounted for name in prometheus["rule_files"]] == [True]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    mounted = mounts(document("compose.gpu.yaml")["services"]["grafana"])
    (provider,) = document("monitoring/grafana-dashboards.yaml")["providers"]
    assert mounted[f"{provider['options']['path']}/djl-serving.json"].endswith("/grafana-dashboard.json")
    (source,) = document("monitoring/grafana-datasources.yaml")["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
