"""What is asked of every server whose speed is shown: how well it knows a text."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from djl_python.testing import RunningServer, free_port, write_byte_tokenizer
from tests.bench import bench, document, openvino_server
from tests.bench.compare import Plan, System, compare
from tests.bench.peers import PEERS, LlamaCpp, Peer
from tests.bench.perplexity import RANDOM, over_http, perplexity, texts
from tests.bench.process import Launch, started
from tests.real import fetch


class Silent(Peer):
    """Answers requests for files only."""

    name = "silent"

    def _install(self) -> str:
        return "1.0"

    def launch(self, model: Path, precision: str, port: int, sequences: int, max_tokens: int) -> Launch:
        return Launch([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], ready_path="/")


def test_perplexity_is_of_all_windows_together() -> None:
    half = torch.tensor(0.5).log().item()
    assert perplexity([[half], [half, half]]) == pytest.approx(2)
    assert perplexity([[0.0], [3 * half]]) == pytest.approx(2**1.5)


def test_a_server_tells_it_of_token_ids(server: RunningServer) -> None:
    assert over_http(server.url, "echo", [[72, 105], [33] * 40]) == 1.0  # its engine is certain of every token
    with pytest.raises(RuntimeError, match="HTTP 4"):
        over_http(server.url, "echo", [[]])
    with pytest.raises(RuntimeError, match="refused"):
        over_http(f"http://127.0.0.1:{free_port()}", "echo", [[72, 105]])


def test_an_answer_without_log_probabilities_is_no_quality(tmp_path: Path) -> None:
    code = (
        "import http.server as h\n"
        "class A(h.BaseHTTPRequestHandler):\n"
        '    def do_GET(self, body=b\'{"choices": [{"logprobs": null}]}\'):\n'
        "        self.send_response(200); self.end_headers(); self.wfile.write(body)\n"
        "    def do_POST(self): self.do_GET()\n"
        "h.HTTPServer(('127.0.0.1', {port}), A).serve_forever()"
    )
    port = free_port()
    launch = Launch([sys.executable, "-c", code.replace("{port}", str(port))])
    with started(launch, port, 30.0) as running, pytest.raises(RuntimeError, match="0 of 2 tokens"):
        over_http(running.url, "m", [[1, 2]])


def test_texts_of_trained_weights_only(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    LlamaConfig(vocab_size=257).save_pretrained(tmp_path)
    windows = texts(tmp_path)  # a tokenizer without a template
    assert len(windows) > 40 and {len(window) for window in windows} == {512}
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**settings, RANDOM: True}), encoding="utf-8")
    assert texts(tmp_path) == []


def test_no_speed_is_measured_without_it(echo_model: Path, tmp_path: Path) -> None:
    (tmp_path / "silent").mkdir()
    (tmp_path / "silent" / ".installed").write_text("1.0\n")
    windows = [[72, 105] * 100]
    plan = Plan(echo_model, echo_model, [1], 30, 6, [], 2, 60.0, windows)
    assert plan.max_tokens == 201
    (silent, ours), wrong = compare(plan, [System("bf16", Silent(tmp_path)), System("bf16")], lambda: None)
    assert (silent["perplexity"], silent["rows"]) == (None, [])
    assert len(wrong) == 1 and wrong[0].startswith("silent bf16: no log-probabilities: HTTP 501")
    assert ours["perplexity"] == 1.0 and len(ours["rows"]) == 1


def test_only_transformers_server_reports_no_logprobs() -> None:
    assert [name for name, peer in PEERS.items() if not peer.tells_logprobs] == ["transformers"]


def test_llama_cpp_is_asked_through_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = LlamaCpp(tmp_path)
    peer.python.parent.mkdir(parents=True)
    peer.python.write_text("#!/bin/sh\ntest \"$(cat)\" = '[[1, 2, 3]]' && echo '[[-1.0, -3.0]]'\n")
    peer.python.chmod(0o755)
    monkeypatch.setattr(peer, "converted", lambda model, precision: tmp_path / precision)
    assert peer.perplexity("", tmp_path, "int4", [[1, 2, 3]]) == pytest.approx(7.389, rel=1e-3)


async def test_openvino_tells_it_through_its_front(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=_fake_engine, args=(theirs,))
    thread.start()
    port = free_port()
    front = openvino_server.Front(ours, write_byte_tokenizer(tmp_path))
    serving = asyncio.ensure_future(openvino_server.serve(front, ours, port))
    await asyncio.sleep(0.2)
    value = await asyncio.to_thread(over_http, f"http://127.0.0.1:{port}", "m", [[72, 105, 33]])
    serving.cancel()
    thread.join()
    assert value == pytest.approx(7.389, rel=1e-3)
    asyncio.get_running_loop().remove_reader(ours.fileno())
    ours.close()


def _fake_engine(pipe: Connection) -> None:
    """One request's prompt and token, in two pieces."""
    request, ids, count, echo = pipe.recv()
    assert (ids, count, echo) == ([72, 105, 33], 1, True)
    pipe.send([(request, ids, [1.0, -1.0, -3.0], False)])
    pipe.send([(request, [7], [-9.0], True)])


def test_without_the_trained_model_the_demo_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def none() -> Path:
        raise fetch.UnavailableError("no network")

    monkeypatch.setattr(fetch, "fetch", none)
    assert bench.trained_model() == bench.DEMO
    assert "no network" in capsys.readouterr().err
    monkeypatch.setattr(fetch, "fetch", lambda: tmp_path)
    assert bench.trained_model() == tmp_path


def test_captions_say_what_weights_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.told_weights(tmp_path, []) == document.RANDOM == "random weights: no quality"
    assert bench.told_weights(tmp_path, [[1] * 512] * 16) == "trained weights, perplexity of 8192 tokens"
    monkeypatch.setattr(fetch, "checkpoint", lambda: tmp_path)
    assert "unpacked from four bits" in bench.told_weights(tmp_path.resolve(), [[1] * 512])
