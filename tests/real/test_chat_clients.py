"""Clients of chats, Python's and JavaScript's, against the demo model: each one's process has the same answers.

A plain answer and a stream of it, a tool's call, an answer by a schema, and an error; see `chat_programs`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from djl_python.testing import RunningServer
from tests.real import chat_clients, chat_programs

_NODE = Path(__file__).with_name("chat_programs.mjs")
ANSWER = "Deep learning is a branch of machine learning that"
PLACES = [{"city": city} for city in chat_programs.CITIES]
#: What a client has no way to say, or what this model does not do of its own accord.
WITHOUT = {
    **{name: {"answer", "stream"} for name in ("instructor", "openai_agents_responses")},
    **{name: {"tool"} for name in ("ollama", "ai_ollama")},
}
#: Ollama's API can't force a call.
UNFORCED = ("langchain_ollama", "litellm_ollama")
JAVASCRIPT = ("openai", "anthropic", "ollama", "ai_openai_compatible", "ai_anthropic", "ai_ollama")


def check(name: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        cwd=folder,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert {"answer", "stream", "tool", "structured", "error"} - result.keys() == WITHOUT.get(name, set())
    assert result.get("answer", ANSWER) == result.get("stream", ANSWER) == ANSWER
    if name not in UNFORCED and "tool" in result:
        assert result["tool"] and all(call in PLACES for call in result["tool"])
    assert result["structured"] in PLACES
    # As the server says it; one client tells the status alone.
    assert ("Bad Request" if name == "ai_ollama" else "expected") in result["error"]


@pytest.mark.parametrize("name", chat_programs.PROGRAMS)
def test_a_client_in_python(demo: RunningServer, name: str, tmp_path: Path) -> None:
    path = chat_clients.python_path()
    if not all(folder.is_dir() for folder in path):
        pytest.skip("the clients have not been installed: `make test` and `python -m tests.real.chat_clients` do")
    command = [sys.executable, "-S", chat_programs.__file__, name, demo.url]
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would fetch prices from the network
    }
    check(name, command, environment, tmp_path)


@pytest.mark.parametrize("name", JAVASCRIPT)
def test_a_client_in_javascript(demo: RunningServer, name: str, tmp_path: Path) -> None:
    folder, node = chat_clients.node_environment(), shutil.which("node")
    if node is None or not folder.is_dir():
        pytest.skip("the clients have not been installed: `make test` and `python -m tests.real.chat_clients` do")
    # Packages are found beside the program, so it is where they are.
    (tmp_path / "node_modules").symlink_to(folder / "node_modules")
    program = shutil.copy(_NODE, tmp_path)
    check(name, [node, str(program), name, demo.url], {"AI_SDK_LOG_WARNINGS": "false"}, tmp_path)
