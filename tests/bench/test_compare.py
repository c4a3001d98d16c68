"""The measuring side of `make bench`, on servers that answer at once."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Qwen2MoeConfig

from djl_python.testing import RunningServer, free_port
from tests.bench import floor, framework, scenarios
from tests.bench.compare import Plan, System, Words, compare, step_totals, steps, systems
from tests.bench.machine import typical
from tests.bench.peers import PEERS, LlamaCpp, Peer, installed
from tests.bench.plots import Panel, svg
from tests.bench.process import Launch, started
from tests.bench.quality import divergence
from tests.checkpoints import NATIVE, build_checkpoint


class Broken(Peer):
    """Ends as soon as it is started."""

    name = "broken"

    def _install(self) -> str:
        return "1.0"

    def _convert(self, model: Path, precision: str, target: Path) -> None:
        (target / "weights").write_text(precision, encoding="utf-8")

    def launch(self, model: Path, precision: str, port: int, sequences: int, max_tokens: int) -> Launch:
        return Launch([sys.executable, "-c", "import sys; sys.exit('no such processor')"])


def plan(model: Path, **changes: object) -> Plan:
    settings = {"concurrency": [1, 3], "prompt_tokens": 30, "output_tokens": 6, "contexts": [60], "rounds": 2}
    return Plan(model=model, checkpoint=model, start_timeout_s=60.0, **{**settings, **changes})  # type: ignore[arg-type]


def test_rounds_of_ours_beside_a_peer_that_fails(echo_model: Path, tmp_path: Path) -> None:
    entered = [System("bf16", Broken(tmp_path)), System("bf16")]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / ".installed").write_text("1.0\n")
    before: list[str] = []
    (broken, ours), wrong = compare(plan(echo_model), entered, lambda: before.append("a server"))
    assert len(before) == 3  # who fails is not tried again
    assert (broken["version"], broken["rows"]) == ("1.0", [])
    assert len(wrong) == 1 and wrong[0].startswith("broken bf16: it ended with status 1") and "processor" in wrong[0]
    assert [row["concurrency"] for row in ours["rows"]] == [1, 3]
    assert [row["failed"] for row in (*ours["rows"], *ours["contexts"])] == [0, 0, 0]
    assert [row["context"] for row in ours["contexts"]] == [60]
    for row in ours["rows"]:
        assert row["tokens"] == row["requests"] * 6
        assert 25 < row["prompt_tokens"] < 35
        assert row["steps"] == 0  # the echo engine does not count them
        assert min(row["server_cpu_s"], row["worker_cpu_s"], row["engine_cpu_s"]) >= 0
    assert len(ours["ready_s"]) == 2


def test_ours_stands_between_the_peers_in_each_precision(tmp_path: Path) -> None:
    peers = [PEERS[name](tmp_path) for name in ("vllm", "llama.cpp")]
    assert [system.name for system in systems("bf16", ["int8"], peers)] == [
        *("vllm bf16", "djl-serving bf16", "llama.cpp bf16", "llama.cpp int8", "djl-serving int8")
    ]
    assert [system.options for system in systems("bf16", ["int8"], [])] == [(), (("quantize", "int8"),)]


def test_a_machine_is_what_it_was_mostly() -> None:
    seen = [
        {"cpu": "a CPU", "read_gb_s": read, "gemm_gflop_s": {"bf16": peak, "fp32": 90.0}}
        for read, peak in ((58.0, 430.0), (31.0, 440.0), (33.0, 420.0))
    ]
    assert typical(seen) == {
        **{"cpu": "a CPU", "read_gb_s": 33.0, "read_gb_s_seen": [31.0, 58.0]},
        "gemm_gflop_s": {"bf16": 430.0, "fp32": 90.0},
    }


def test_steps_of_the_engine_are_counted(server: RunningServer) -> None:
    lines = ['djl_engine_step_seconds_bucket{le="1"} 9', 'djl_engine_step_seconds_sum{model="a"} 0.5']
    lines += ['djl_engine_step_seconds_count{model="a"} 4.0', 'djl_engine_step_seconds_count{model="b"} 3.0']
    assert step_totals("\n".join(lines)) == (0.5, 7.0)
    assert steps(server.url) == (0.0, 0.0)


def test_words(echo_model: Path, tmp_path: Path) -> None:
    assert Words(tmp_path).for_tokens(128) == 128  # no tokenizer: a word a token
    assert 15 < Words(echo_model).for_tokens(100) < 30  # bytes


def test_checkpoints_are_converted_once(tmp_path: Path) -> None:
    peer, model = Broken(tmp_path), tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    first = peer.converted(model, "int8")
    assert (first / "weights").read_text(encoding="utf-8") == "int8"
    (first / "weights").write_text("kept", encoding="utf-8")
    assert (peer.converted(model, "int8") / "weights").read_text(encoding="utf-8") == "kept"
    (model / "model.safetensors").write_bytes(b"other weights")
    assert peer.converted(model, "int8") != first


def test_only_installed_peers_compete(tmp_path: Path) -> None:
    assert installed(tmp_path) == []
    with pytest.raises(ValueError, match="install vllm"):
        installed(tmp_path, ["vllm"])
    with pytest.raises(ValueError, match="no such peer: tgi"):
        installed(tmp_path, ["tgi"])
    mark = LlamaCpp(tmp_path).home / ".installed"
    mark.parent.mkdir()
    mark.write_text("0.3\n", encoding="utf-8")
    assert [(peer.name, peer.version) for peer in installed(tmp_path)] == [("llama.cpp", "0.3")]


def test_a_process_ends_with_its_block() -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with started(Launch(command, ready_path="/"), port, 30.0) as server:
        assert server.process.poll() is None
    assert server.process.poll() is not None
    with pytest.raises(RuntimeError, match=r"not ready after 0\.3 s"), started(Launch(command), port, 0.3):
        pass  # there is no /health


def test_a_handler_that_does_nothing_answers_numbers() -> None:
    rows = framework.requests_of(1, None)
    assert [(row["name"], row["failed"], row["requests"]) for row in rows] == [("djl-serving", 0, 3200)]


def test_the_floor_is_bytes_or_arithmetic(tmp_path: Path) -> None:
    """4 layers of one 100 x 100 matrix and a tied head of 1000 x 100, by hand."""
    tensors = {f"model.layers.{i}.w.weight": {"shape": [100, 100]} for i in range(4)}
    tensors |= {"model.embed_tokens.weight": {"shape": [1000, 100]}, "model.norm.weight": {"shape": [100]}}
    header = json.dumps({"__metadata__": {}, **tensors}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    LlamaConfig(num_attention_heads=10, num_key_value_heads=5, num_hidden_layers=4, hidden_size=100).save_pretrained(
        tmp_path
    )
    shape = floor.read_shape(tmp_path)
    assert shape == floor.Shape(body=40_000, head=100_000, kv_values=400, attention_flop=1600)
    slow_memory = {"read_gb_s": 1e-3, "gemm_gflop_s": {"bf16": 1e9, "fp32": 1e8}}
    # 1 token of prompt, 2 of output, int8: the weights twice, and the context of two tokens once
    expected_s = (2 * 140_000 + 2 * 400 * 2) / 1e6
    assert floor.tokens_s(shape, slow_memory, "int8", 1, 1, 2) == pytest.approx(2 / expected_s)
    slow_units = {"read_gb_s": 1e9, "gemm_gflop_s": {"bf16": 1e-3, "fp32": 1e-4}}
    # 8 requests with 3 tokens of prompt and one of output
    flop = 2 * (24 * 40_000 + 8 * 100_000) + 8 * (1 + 2 + 3) * 1600
    assert floor.tokens_s(shape, slow_units, "bf16", 8, 3, 1) == pytest.approx(8 / (flop / 1e6))


def test_the_floor_counts_the_experts_that_are_used(tmp_path: Path) -> None:
    tensors = {"model.layers.0.mlp.experts.0.w": {"shape": [10, 8]}, "lm_head.weight": {"shape": [5, 4]}}
    header = json.dumps(tensors).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    Qwen2MoeConfig(num_experts=8, num_experts_per_tok=2).save_pretrained(tmp_path)
    shape = floor.read_shape(tmp_path)
    assert (shape.body, shape.head) == (20, 20)


@pytest.mark.parametrize("architecture", NATIVE)
def test_the_floor_is_known_for_every_architecture(architecture: str, tmp_path: Path) -> None:
    shape = floor.read_shape(build_checkpoint(tmp_path, architecture))
    assert min(shape.body, shape.head) > 0
    assert (shape.kv_values == 0) == (shape.attention_flop == 0) == (architecture in ("mamba", "mamba2"))


def test_a_long_prompt_beside_streams_and_asked_again(echo_model: Path) -> None:
    figures = scenarios.measure(plan(echo_model))
    assert (figures["failed"], figures["first_failure"]) == (0, "")
    assert 1800 < figures["prompt_tokens"] < 2200
    assert min(figures[key] for key in ("itl_p50_ms", "itl_p99_ms", "ttft_first_ms", "ttft_again_ms")) > 0


def test_divergence() -> None:
    exact = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    assert divergence(exact, exact) == {"mean_kl": 0.0, "same_token": 1.0}
    other = torch.tensor([[0.5, 0.5], [0.1, 0.9]]).log()
    divergences = divergence(other, exact)  # KL of the second row: 0.8 * ln 9
    assert divergences["mean_kl"] == pytest.approx(0.8 * 2.1972 / 2, abs=1e-4)
    assert divergences["same_token"] == 0.5


def test_plots_keep_within_their_axes() -> None:
    text = svg([Panel("a & b", "x", {"line": [(1, 0.0), (8, 7.0), (32, 61.0)]}), Panel("empty", "x", {})])
    assert "a &amp; b" in text and ">80<" in text  # the axis ends on a round number
    assert 'd="M0.0 185.0L159.0 168.8L265.0 43.9"' in text
