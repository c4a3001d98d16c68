"""The server as SageMaker's platform meets it: a container whose models come later, and headers that pass through."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from djl_python.testing import running_server

ATTRIBUTES, SESSION = "X-Amzn-SageMaker-Custom-Attributes", "X-Amzn-SageMaker-Session-Id"
HANDLER = f"""
from djl_python import Output

def handle(inputs):
    if inputs.is_empty():
        return None
    told = inputs.get_property("{ATTRIBUTES}")
    output = Output().add_as_json([told, inputs.get_property("{SESSION}"),
                                   inputs.get_property("X-Amzn-SageMaker-Target-Model")])
    output.add_property("{ATTRIBUTES}", told + ";seen")
    output.add_property("{SESSION}", "new; Expires=2030-01-01T00:00:00Z")
    return output
"""


def test_sagemakers_headers_reach_the_handler_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    headers = {ATTRIBUTES: "trace=1", SESSION: "s1", "X-Amzn-SageMaker-Target-Model": "a.tar.gz"}
    with running_server("-m", f"m={tmp_path}") as server:
        for path in ("/invocations", "/models/m/invoke"):
            response = httpx.post(f"{server.url}{path}", json={}, headers=headers, timeout=30)
            assert response.json() == ["trace=1", "s1", "a.tar.gz"]
            assert response.headers[ATTRIBUTES] == "trace=1;seen"
            assert response.headers[SESSION] == "new; Expires=2030-01-01T00:00:00Z"


def test_a_multi_model_endpoint_begins_without_models(tmp_path: Path) -> None:
    """Its platform loads them, from another machine: here, a client behind a proxy."""
    (tmp_path / "model.py").write_text(HANDLER)
    platform = {"X-Forwarded-For": "10.0.0.1", ATTRIBUTES: "trace=1"}
    with running_server(environment={"SAGEMAKER_MULTI_MODEL": "true"}) as server:
        response = httpx.get(f"{server.url}/ping", timeout=30)
        assert (response.status_code, response.json()) == (200, {})
        response = httpx.post(f"{server.url}/models/gone/invoke", json={}, timeout=30)
        assert response.status_code == 404
        assert response.json()["type"] == "ModelNotFoundException"
        body = {"model_name": "m", "url": str(tmp_path)}
        statuses = [
            httpx.post(f"{server.url}/models", json=body, headers=platform, timeout=60).status_code for _ in range(2)
        ]
        assert statuses == [200, 409]
        listed = httpx.get(f"{server.url}/models", headers=platform, timeout=30).json()["models"]
        assert [(one["modelName"], one["modelUrl"]) for one in listed] == [("m", str(tmp_path))]
        assert httpx.get(f"{server.url}/models/m", headers=platform, timeout=30).status_code == 200
        assert httpx.post(f"{server.url}/models/m/invoke", json={}, headers=platform, timeout=30).status_code == 200
        assert httpx.delete(f"{server.url}/models/m", headers=platform, timeout=30).status_code == 200
        assert httpx.post(f"{server.url}/models/m/invoke", json={}, headers=platform, timeout=30).status_code == 404


def test_secure_mode_refuses_a_model_at_start(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    environment = {
        "SAGEMAKER_SECURE_MODE": "true",
        "SAGEMAKER_SECURITY_CONTROLS": "DISALLOW_CUSTOM_INFERENCE_SCRIPTS",
    }
    with pytest.raises(RuntimeError) as caught, running_server("-m", f"m={tmp_path}", environment=environment):
        pass
    assert f"{tmp_path}/model.py: secure mode runs no code of a user's" in str(caught.value)


def test_the_port_is_the_platforms(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        with (
            pytest.raises(RuntimeError, match=f"127.0.0.1:{port}"),
            running_server("-m", f"m={tmp_path}", environment={"SAGEMAKER_BIND_TO_PORT": port}),
        ):
            pass
