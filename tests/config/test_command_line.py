"""Settings as options of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python import cli
from djl_python.commands.parsing import options_of
from djl_python.config import ModelConfig, ModelSpec, ServerConfig, load_server_config
from djl_python.config.command_line import (
    expanded,
    known_settings,
    overrides_of,
    read_setting,
    suggestion,
    with_settings,
)
from djl_python.config.keys.vllm_names import SHORT
from djl_python.sources import load_model_config
from tests.packaging.migration import as_option, rows, spans


def config_with(arguments: list[str], directory: Path) -> ModelConfig:
    """A model's configuration with these options of the command line."""
    (directory / "model.py").touch()
    given = [read_setting(text.removeprefix("--set=")) for text in expanded(arguments, [])]
    (spec,) = with_settings([ModelSpec(name="m", url=str(directory))], given)
    return load_model_config(spec, ServerConfig(), {})


@pytest.mark.parametrize(
    "words",
    [
        flags[0]
        for row in rows()
        if row.section == "vLLM" and (flags := spans(row.theirs)) and flags[0].startswith("--")
        if not flags[0].startswith("--allowed-origins")  # which is the server's, under another name
    ],
)
def test_vllms_options_are_what_they_are_in_serving_properties(words: str, tmp_path: Path) -> None:
    option, _, value = words.partition(" ")
    arguments = [option, value.strip("'")] if value else [option]
    config = config_with(arguments, tmp_path)
    (tmp_path / "serving.properties").write_text("".join(f"{k}={v}\n" for k, v in as_option(words).items()))
    expected = load_model_config(ModelSpec(name="m", url=str(tmp_path)), ServerConfig(), {})
    assert (config.option, config.engine_options) == (expected.option, expected.engine_options)
    told = [line.partition(": ")[2] for line in config.warnings]
    assert told == [line.partition(": ")[2] for line in expected.warnings]


def test_switches_take_no_word_and_can_be_off() -> None:
    line = ["--enable-lora", "DIR", "--no-trust-remote-code", "--enforce-eager=true", "--enable-prefix-caching", "X"]
    assert expanded(line, []) == [
        "--set=option.enable_lora=true",
        "DIR",
        "--set=option.trust_remote_code=false",
        "--set=option.enforce_eager=true",
        "--set=option.enable_prefix_caching=true",
        "X",
    ]


def test_short_options_and_those_of_the_parser() -> None:
    assert expanded(["-tp", "2", "-q", "int8", "--port", "1", "--", "--dtype"], ["--port"]) == [
        "--set=option.tensor_parallel_degree=2",
        "--set=option.quantize=int8",
        *("--port", "1", "--", "--dtype"),
    ]
    assert expanded(["--job-queue-size", "5", "--unknown", "-1"], []) == ["--set=job_queue_size=5", "--unknown", "-1"]


def test_a_value_may_have_anything_in_it() -> None:
    given = read_setting("m:2:option.env=A=1,B=x:y")
    assert (given.target, given.known.key, given.value) == ("m:2", "option.env", "A=1,B=x:y")
    assert read_setting("option.mine=1").known.key == "option.mine", "a handler may read it"


def test_the_command_line_is_stronger_than_files_and_weaker_than_a_registration(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "serving.properties").write_text("option.dtype=fp32\nbatch_size=2\n")
    environ = {"OPTION_DTYPE": "fp16", "SERVING_BATCH_SIZE": "8"}
    spec = ModelSpec(name="m", url=str(tmp_path), settings=(("option.dtype", "bf16"), ("batch_size", "4")))
    config = load_model_config(spec, ServerConfig(), environ)
    assert (config.option.dtype, config.serving.batch_size) == ("bf16", 4)
    assert config.provenance["option.dtype"] == config.provenance["batch_size"] == "command line"
    registered = ModelSpec(name="m", url=spec.url, settings=spec.settings, parameters=(("batch_size", "6"),))
    assert load_model_config(registered, ServerConfig(), environ).serving.batch_size == 6


def test_each_setting_says_what_it_is_for() -> None:
    assert [name for name, known in known_settings().items() if not known.help] == []


#: Every option of `vllm serve` that has a value, of its EngineArgs and FrontendArgs, those that went with vLLM 1 too.
VALUES = """
additional-config all2all-backend allowed-headers allowed-local-media-path allowed-media-domains allowed-methods
allowed-origins api-key api-server-count attention-backend attention-config block-size chat-template
chat-template-content-format code-revision cohere-format compilation-config config-format convert cpu-offload-gb
cuda-graph-sizes cudagraph-capture-sizes data-parallel-address data-parallel-backend data-parallel-rank
data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank
data-parallel-supervisor-port dbo-decode-token-threshold dbo-prefill-token-threshold decode-context-parallel-size
default-chat-template-kwargs default-mm-loras disable-access-log-for-endpoints distributed-executor-backend
download-dir dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dtype
eplb-config eplb-step-interval eplb-window-size expert-placement-strategy fingerprint-mode fingerprint-value
generation-config gpu-memory-utilization guided-decoding-backend h11-max-header-count h11-max-incomplete-event-size
hf-config-path hf-overrides hf-token host ignore-patterns io-processor-plugin kv-cache-dtype kv-cache-memory-bytes
kv-events-config kv-transfer-config limit-mm-per-prompt load-format log-config-file logits-processor-pattern
logits-processors logprobs-mode long-lora-scaling-factors long-prefill-token-threshold lora-dtype
lora-extra-vocab-size lora-modules mamba-block-size mamba-cache-dtype mamba-ssm-cache-dtype max-cpu-loras
max-cudagraph-capture-size max-log-len max-logprobs max-long-partial-prefills max-lora-rank max-loras max-model-len
max-num-batched-tokens max-num-partial-prefills max-num-seqs max-parallel-loading-workers max-prompt-adapter-token
max-prompt-adapters max-seq-len-to-capture media-io-kwargs middleware mm-encoder-attn-backend mm-encoder-tp-mode
mm-processor-cache-gb mm-processor-cache-type mm-processor-kwargs mm-shm-cache-max-object-size-mb model model-impl
model-loader-extra-config ngram-prompt-lookup-max ngram-prompt-lookup-min num-gpu-blocks-override num-lookahead-slots
num-redundant-experts num-scheduler-steps num-speculative-tokens otlp-traces-endpoint override-attention-dtype
override-generation-config override-neuron-config override-pooler-config pipeline-parallel-size pooler-config port
preemption-mode prefix-caching-hash-algo pt-load-map-location qlora-adapter-name-or-path quantization
reasoning-parser response-role revision root-path rope-scaling rope-theta runner safetensors-load-strategy
scheduler-cls scheduler-delay-factor scheduling-policy seed served-model-name show-hidden-metrics-for-version
spec-decoding-acceptance-method speculative-config speculative-disable-by-batch-size
speculative-draft-tensor-parallel-size speculative-max-model-len speculative-model speculative-model-quantization
ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile structured-outputs-config swap-space task
tensor-parallel-size tokenizer tokenizer-mode tokenizer-pool-extra-config tokenizer-pool-size tokenizer-pool-type
tokenizer-revision tool-call-parser tool-parser-plugin tool-server typical-acceptance-sampler-posterior-alpha
typical-acceptance-sampler-posterior-threshold uds uvicorn-log-level video-pruning-rate worker-cls
worker-extension-cls
""".split()
#: Those that are switched on or off.
SWITCHED = """
aggregate-engine-logging allow-credentials async-scheduling calculate-kv-scales cohere-is-reasoning-model
data-parallel-hybrid-lb disable-async-output-proc disable-cascade-attn disable-chunked-mm-input
disable-custom-all-reduce disable-fastapi-docs disable-frontend-multiprocessing disable-hybrid-kv-cache-manager
disable-log-requests disable-log-stats disable-logprobs-during-spec-decoding disable-mm-preprocessor-cache
disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
enable-chunked-prefill enable-dbo enable-eplb enable-expert-parallel enable-flash-late-interaction
enable-force-include-usage enable-log-deltas enable-log-outputs enable-log-requests enable-lora enable-lora-bias
enable-mm-embeds enable-multimodal-encoder-data-parallel enable-offline-docs enable-per-request-metrics
enable-prefix-caching enable-prompt-adapter enable-prompt-embeds enable-prompt-tokens-details enable-reasoning
enable-request-id-headers enable-server-load-tracking enable-sleep-mode enable-ssl-refresh
enable-tokenizer-info-endpoint enforce-eager eplb-log-balancedness exclude-tools-when-tool-choice-none
fully-sharded-loras guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
guided-decoding-disable-fallback headless interleave-mm-strings kv-sharing-fast-prefill log-error-stack
multi-step-stream-outputs ray-workers-use-nsight return-tokens-as-token-ids skip-mm-profiling skip-tokenizer-init
speculative-disable-mqa-scorer tokens-only trust-remote-code trust-request-chat-template use-tqdm-on-load
use-v2-block-manager worker-use-ray
""".split()


@pytest.mark.parametrize(("names", "value"), [(VALUES, ["x"]), (SWITCHED, [])], ids=["values", "switches"])
def test_the_whole_command_line_of_vllm_is_taken(names: list[str], value: list[str]) -> None:
    own = options_of(cli.serve_parser())
    unknown = []
    for name in names:
        words = expanded([f"--{name}", *value, "DIR"], own)
        if f"--{name}" not in own and (len(words) != 2 or not words[0].startswith("--set=")):
            unknown.append(name)
    assert unknown == []
    assert all(SHORT[short] in known_settings() for short in SHORT)


def test_vllms_options_become_ours() -> None:
    line = ["--allowed-origins", '["https://a", "https://b"]', "--allowed-methods=*", "--ssl-certfile", "a.pem", "-O3"]
    line += ["--uds", "/run/s", "--lora-modules", "a=/x", "b=/y", "--cudagraph-capture-sizes", "1", "2", "n=DIR"]
    assert expanded(line, []) == [
        "--set=cors_allowed_origin=https://a,https://b",
        "--set=cors_allowed_methods=*",
        "--set=certificate_file=a.pem",
        "--set=option.optimization_level=3",
        "--set=inference_address=unix:/run/s",
        "--set=option.lora_modules=a=/x,b=/y",
        "--set=option.cudagraph_capture_sizes=1,2",
        "n=DIR",
    ]
    assert suggestion("--allowed-origin") == (
        f"; did you mean --allowed-origins? (cors_allowed_origin: {known_settings()['cors_allowed_origin'].help[:-1]})"
    )


def test_options_of_vllms_server_without_effect_are_named() -> None:
    given = [read_setting(text.removeprefix("--set=")) for text in expanded(["--root-path", "/x", "--headless"], [])]
    config = load_server_config(None, overrides_of(given), {})
    assert config.warnings == (
        "command line: root_path has no effect: it is about vLLM's own HTTP server",
        "command line: headless has no effect: it is about vLLM's own HTTP server",
    )
