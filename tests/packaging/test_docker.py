"""docker/ without Docker: the entry point's command lines, and that what the Dockerfile copies is there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

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
    assert "\nUSER djl\n" in DOCKERFILE
    assert "\nEXPOSE 8080\n" in DOCKERFILE
