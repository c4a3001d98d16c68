"""`djl-serving chat` in a pseudo-terminal, with the demo model behind a real server."""

from __future__ import annotations

import json
import re
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from djl_python.testing import RunningServer
from tests.conftest import DEMO

from .conftest import ENDLESS, PATIENCE_S, Terminal

CTRL_C, CTRL_D, ESCAPE = "\x03", "\x04", "\x1b"
DEEP_LEARNING = "Deep learning is a branch of machine learning"

Start = Callable[..., Terminal]


def running(server: RunningServer) -> float:
    """How many requests are in the server's batch."""
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith("djl_running_requests{"):
            return float(line.rpartition(" ")[2])
    return 0.0


def until_idle(server: RunningServer) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while running(server):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_chat_is_kept_saved_and_gone_on_with(demo: RunningServer, terminal: Start, tmp_path: Path) -> None:
    chat = terminal("chat", demo.url, "--temperature", "0", "--system", "Be brief.", "--stats")
    chat.see(f"demo at {demo.url}")
    chat.enter("What is deep learning?")
    chat.see(DEEP_LEARNING)
    chat.see(r"\d+ tokens in [\d.]+ s: [\d.]+ tokens/s")
    saved = tmp_path / "chat.json"
    chat.enter(f"/save {saved}")
    chat.see("saved in")
    chat.enter("/reset")
    chat.see("a new chat")
    chat.enter(f"/load {saved}")
    chat.see("2 messages")
    chat.enter("/system")
    chat.see("Be brief.")
    chat.enter("/set temperature")
    chat.see("no parameter is set")
    chat.prompted().press(CTRL_D)
    assert chat.end() == 0
    body = json.loads(saved.read_text())
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant"]
    assert body["messages"][2]["content"].startswith(DEEP_LEARNING)
    again = httpx.post(f"{demo.url}/v1/chat/completions", json=body | {"max_tokens": 4}, timeout=PATIENCE_S)
    assert again.status_code == 200, "what is saved is the body of a request"
    history = tmp_path / "state" / "djl-serving" / "chat_history"
    assert "What is deep learning?" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_stops_the_answer_and_then_leaves(repeating: RunningServer, terminal: Start, tmp_path: Path) -> None:
    chat = terminal("chat", repeating.url, "--body", ENDLESS)
    chat.enter("again and ")
    chat.see("again and again and again")
    chat.press(CTRL_C)
    chat.see("stopped")
    until_idle(repeating)
    saved = tmp_path / "chat.json"
    chat.enter(f"/save {saved}")
    chat.see("saved in")
    assert len(json.loads(saved.read_text())["messages"]) == 2, "what had come is part of the chat"
    chat.prompted().press(CTRL_C)
    chat.see("once more")
    chat.prompted().press(CTRL_C)
    assert chat.end() == 0


def test_mistakes_are_told_and_cost_nothing(demo: RunningServer, terminal: Start, tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text('{"messages": [{"role": "user", "content": 1}]}')
    chat = terminal("chat", demo.url, "--no-history")
    for line, told in (
        ("/nonsense", "there is no /nonsense; /help"),
        ("/help", "Ctrl-D +leaves"),
        (f"/save {there}", "is there already"),
        ("/save", "which file"),
        (f"/load {there}", r"messages\[0\]: expected a role"),
        ("/load /nowhere", "No such file"),
        ("/log", "is not this chat's own"),
        ("/set temperature hot", 'temperature="hot"'),
        ("What?", "no answer: 400: temperature"),
        ("/set temperature", "no parameter is set"),
        ("/set temprature 1", "there is no parameter temprature; did you mean temperature?"),
        ("/set messages 1", "there is no parameter messages; any field may be sent with --body"),
        ("/set max_tokens 3", "max_tokens=3"),
        ("What is deep learning?", "as many tokens as it may have"),
        ("/exit", ""),
    ):
        chat.enter(line)
        if told:
            chat.see(told)
    assert chat.end() == 0
    assert not (tmp_path / "state").exists()


def test_another_model_and_parameters_without_effect_are_told_once(demo: RunningServer, terminal: Start) -> None:
    chat = terminal("chat", demo.url, "--no-history", "--model", "nope", "--body", '{"mine": 1, "max_tokens": 2}')
    chat.see(f"nope at {demo.url}")
    chat.enter("Hello")
    chat.see(f"{demo.url} has no model nope: demo answered")
    chat.see("without effect on this answer: mine")
    chat.enter("Hello")
    assert "nope" not in chat.see("as many tokens as it may have")
    chat.prompted().press(CTRL_D)
    assert chat.end() == 0


def test_markdown_is_rendered_and_lines_may_be_several(demo: RunningServer, terminal: Start, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    chat = terminal("chat", demo.url, "--markdown", "--max-tokens", "8")
    chat.prompted()
    chat.press(f"What is{ESCAPE}\rdeep learning?\r")
    chat.see("as many tokens as it may have")
    chat.enter("/markdown")
    chat.see("shown as they are")
    chat.enter(f"/save {saved}")
    chat.see("saved in")
    assert json.loads(saved.read_text())["messages"][0]["content"] == "What is\ndeep learning?"
    chat.prompted().press(CTRL_D)
    assert chat.end() == 0


def test_without_a_server(terminal: Start) -> None:
    gone = terminal("chat", "http://127.0.0.1:9")
    gone.see("http://127.0.0.1:9 can't be reached")
    assert gone.end() == 1


@pytest.mark.slow
def test_the_server_of_a_model_starts_and_ends_with_the_chat(terminal: Start) -> None:
    chat = terminal("chat", str(DEMO), "--temperature", "0", OPTION_THREADS="1")
    chat.see("model demo: ")
    chat.see(rf"demo at {re.escape(str(DEMO))}, served for this chat at unix:\S+")
    (server,) = psutil.Process(chat.child.pid).children()
    family = [server, *server.children(recursive=True)]
    chat.enter("What is deep learning?")
    chat.see(DEEP_LEARNING)
    chat.prompted().press(CTRL_C)  # the server does not hear it
    chat.see("once more")
    chat.enter("/log")
    chat.see("djl-serving is ready at")
    chat.prompted().press(CTRL_D)
    assert chat.end() == 0
    assert psutil.wait_procs(family, timeout=20)[1] == []


@pytest.mark.slow
def test_a_chat_that_is_killed_leaves_no_server(terminal: Start) -> None:
    chat = terminal("chat", str(DEMO), OPTION_THREADS="1")
    chat.see(rf"demo at {re.escape(str(DEMO))}, served for this chat at unix:\S+")
    (server,) = psutil.Process(chat.child.pid).children()
    family = [server, *server.children(recursive=True)]
    chat.child.kill(signal.SIGKILL)
    assert psutil.wait_procs(family, timeout=30)[1] == []


def test_a_model_that_does_not_load(terminal: Start, tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.dtype=fp12\n")
    chat = terminal("chat", str(tmp_path))
    chat.see("option.dtype=fp12: expected")
    assert chat.end() == 1
