"""What docs/deployment.md shows is tried: the unit by systemd, the proxy by nginx. Manifests: see test_kubernetes."""

from __future__ import annotations

import re
import runpy
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from djl_python.config import ServerConfig
from djl_python.testing import RunningServer, free_port, running_server
from tests.packaging.documents import DOCS, ROOT
from tests.packaging.markdown import blocks

TEXT = (DOCS / "deployment.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")

#: Streams a line, and another one when there is a file; notes in a file that its stream was closed.
MODEL = """
import asyncio
import pathlib

async def handle(inputs):
    if inputs.is_empty():
        return
    asked = inputs.get_as_json()
    try:
        yield {"client": inputs.get_property("x-forwarded-for"), "id": inputs.get_property("x-request-id")}
        while not pathlib.Path(asked["go_on"]).exists():
            await asyncio.sleep(0.01)
        yield {"last": True}
    finally:
        pathlib.Path(asked["closed"]).touch()
"""


def shown(language: str) -> str:
    """The one block of a language."""
    (block,) = (block for block in blocks(TEXT) if block.language == language)
    return block.text


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / "djl-serving.service"
    unit.write_text(re.sub(r"(?m)^(ExecStart=)\S+", rf"\1{sys.executable}", shown("ini")), encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (checked.stdout + checked.stderr, checked.returncode) == ("", 0)


def test_systemd_waits_until_requests_are_answered() -> None:
    (stop_s,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", shown("ini"))
    assert int(stop_s) > ServerConfig().drain_timeout_s
    assert "\nKillMode=mixed\n" in shown("ini")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = tmp_path_factory.mktemp("deployment") / "lines"
    model.mkdir()
    (model / "model.py").write_text(MODEL, encoding="utf-8")
    with running_server("-m", f"lines={model}") as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of an nginx that is configured as the document says."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if nginx is None or shutil.which("openssl") is None:
        pytest.skip("nginx or openssl is not installed")
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    name = "subjectAltName=DNS:llm.example.com,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=llm.example.com", "-addext", name]
    subprocess.run(command, check=True, capture_output=True)
    configuration = shown("nginx")
    for there, here in {
        "server 127.0.0.1:8080;": f"server {server.url.removeprefix('http://')};",
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/ssl/certs/llm.example.com.pem": str(certificate),
        "/etc/ssl/private/llm.example.com.key": str(key),
    }.items():
        assert there in configuration
        configuration = configuration.replace(there, here)
    folders = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = (
        f"pid {folder}/pid; error_log {folder}/error; events {{}} http {{ access_log off; {folders} {configuration} }}"
    )
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    trusted = ssl.create_default_context(cafile=str(certificate))
    with subprocess.Popen(command) as process:
        try:
            transport = httpx.HTTPTransport(verify=trusted, retries=6)
            headers = {"Host": "llm.example.com"}
            with httpx.Client(base_url=f"https://127.0.0.1:{port}", transport=transport, headers=headers) as client:
                assert client.get("/v2/health/ready").status_code == 200
                yield client
        finally:
            process.terminate()


KEY = {"Authorization": "Bearer sk-change-me"}


def test_the_proxy_wants_a_key(proxy: httpx.Client) -> None:
    body = {"go_on": "/", "closed": "/dev/null"}
    assert proxy.post("/predictions/lines", json=body).status_code == 401
    assert proxy.post("/predictions/lines", json=body, headers={"Authorization": "Bearer sk-other"}).status_code == 401
    assert proxy.post("/predictions/lines", json=body, headers=KEY).status_code == 200


def test_lines_pass_the_proxy_as_they_come(proxy: httpx.Client, tmp_path: Path) -> None:
    body = {"go_on": str(tmp_path / "go_on"), "closed": str(tmp_path / "closed")}
    with proxy.stream("POST", "/predictions/lines", json=body, headers=KEY) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        assert '"client":"127.0.0.1"' in first
        assert f'"id":"{answer.headers["x-request-id"]}"' in first
        (tmp_path / "go_on").touch()
        assert list(lines) == ['{"last":true}']


def test_a_client_that_leaves_the_proxy_ends_its_stream(proxy: httpx.Client, tmp_path: Path) -> None:
    body = {"go_on": str(tmp_path / "go_on"), "closed": str(tmp_path / "closed")}
    with proxy.stream("POST", "/predictions/lines", json=body, headers=KEY) as answer:
        lines = answer.iter_lines()  # which closes the connection when nobody has it any longer
        next(lines)
        assert not (tmp_path / "closed").exists()
    wait = f"while ! test -e {tmp_path / 'closed'}; do sleep 0.02; done"
    subprocess.run(["sh", "-c", wait], check=True, timeout=20)


def test_the_proxy_refuses_to_manage_models(proxy: httpx.Client, server: RunningServer) -> None:
    assert proxy.get("/models", headers=KEY).status_code == 403
    assert proxy.request("DELETE", "/models/lines", headers=KEY).status_code == 403
    assert httpx.get(f"{server.url}/models").status_code == 200


def test_a_pod_is_the_images_user_and_writes_where_it_may() -> None:
    text = (ROOT / "docker" / "kubernetes" / "deployment.yaml").read_text(encoding="utf-8")
    (deployment,) = (document for document in yaml.safe_load_all(text) if document["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    user = pod["securityContext"]["runAsUser"]
    assert f"\nUSER {user}:{pod['securityContext']['runAsGroup']}\n" in DOCKERFILE
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounted = {volume["mountPath"] for volume in container["volumeMounts"]}
    assert mounted == {"/home/djl", "/tmp"}
    assert "\nWORKDIR /home/djl\n" in DOCKERFILE
    assert {volume["name"] for volume in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_compose_runs_the_image_as_the_document_says(server: RunningServer) -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    (service,) = compose["services"].values()
    assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
    assert int(service["stop_grace_period"].removesuffix("s")) > ServerConfig().drain_timeout_s
    assert "healthcheck" not in service  # the image's


def test_the_images_health_check_asks_a_server(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'CMD ["python", "/usr/local/bin/healthcheck.py"]' in DOCKERFILE
    monkeypatch.setenv("SERVING_INFERENCE_ADDRESS", server.url)
    check = runpy.run_path(str(ROOT / "docker" / "healthcheck.py"))["main"]
    monkeypatch.setitem(check.__globals__, "server_command", list)  # of whatever runs on this machine
    assert check() == 0
