"""Settings that public users of DJL Serving and LMI run with: each is served, or refused in words that say why.

`configs.jsonl` has the settings alone, of a serving.properties and of the environment. MODEL stands for a checkpoint,
here a small one; VALUE for what belongs to their authors. What `check` says of all of them is tested always, and that
those it accepts start and answer in the shapes of LMI's documents: of a few always, of all that are not set up alike
among the slow tests.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from djl_python.commands import handler_check
from djl_python.config import ModelConfig, find_models, load_server_config
from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.engine.builtin import row
from djl_python.sources import load_model_config
from djl_python.testing import running_server
from tests.pipelines.encoders import build_encoder
from tests.quantized_checkpoints import Method, write_quantized
from tests.sketches import LLAMA, write_sketch

DEMO = Path(__file__).parents[2] / "serving_templates" / "demo"
CONFIGS: dict[int, dict[str, Any]] = {
    settings["id"]: settings
    for settings in map(json.loads, Path(__file__).with_name("configs.jsonl").read_text().splitlines())
}
_NOTHING = "nothing to serve: there is no model.py and no config.json, and neither option.model_id nor"
#: What is refused, and what of the message says why. All others are served.
REFUSED: Mapping[int, str] = {
    **dict.fromkeys((102, 107, 108, 109, 112), f"{_NOTHING}.*; models of DJL's PyTorch are not served here"),
    103: "serving.properties:2: option.entryPoint=djl_python.stable-diffusion: no built-in handler makes images",
    105: "option.model_id is not set",  # as they wrote it: opiton.s3url
    111: "has no model.json",  # the table's model is not here
}
#: The served ones whose start is tested always: one each of the ways to answer.
STARTED = (17, 27, 128)
#: Models of a server at a time, in the slow tests.
TOGETHER = 6
_QUESTION = {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 3}}
_ABOUT_A_TEXT = {"inputs": {"question": "Where is the cat?", "context": "The cat sits on a mat."}}
_WIDTH = 32  # of the encoders' vectors
_TEXT = {"inputs": "the cat"}
_RANKED = {"query": "who sat", "texts": ["the cat sat", "two birds"]}
_CONTEXT = {"max_position_embeddings": 1 << 18}
_THEIR_FILE = """\
from djl_python import Output

def handle(inputs):
    return None if inputs.is_empty() else Output().add_as_json({"theirs": inputs.get_as_json()})
"""


@pytest.fixture(scope="module")
def sketches(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """By what option.quantize says of it: the files of a checkpoint, with a context as long as theirs."""
    folder, config = tmp_path_factory.mktemp("sketches"), {**LLAMA, **_CONTEXT}
    methods: dict[str, dict[str, Any]] = {"none": {}} | {
        name: {"quantization_config": {"quant_method": name}} for name in ("awq", "gptq")
    }
    return {name: write_sketch(folder / name, config | how) for name, how in methods.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's checkpoint, which likewise says that its context is long."""
    path = tmp_path_factory.mktemp("plain")
    for file in DEMO.iterdir():
        if file.is_file() and file.name not in ("serving.properties", "README.md"):
            (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((DEMO / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | _CONTEXT))
    return path


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory, plain: Path) -> Mapping[str, Path]:
    folder, methods = tmp_path_factory.mktemp("quantized"), {"awq": Method("gemm"), "gptq": Method("gptq")}
    return {name: write_quantized(plain, folder / name, how) for name, how in methods.items()}


def configured(settings: Mapping[str, Any], directory: Path, sketches: Mapping[str, Path]) -> Iterator[ModelConfig]:
    """The models that these settings make, of a directory with a serving.properties, or of the environment alone."""
    said = {key.lower().removeprefix("option_").removeprefix("option."): value for key, value in _pairs(settings)}
    checkpoint = sketches.get(said.get("quantize", ""), sketches["none"])

    def here(values: Mapping[str, str]) -> dict[str, str]:
        # A model's directory in a container has its checkpoint.
        at = {"MODEL": str(checkpoint), "/opt/ml/model": str(checkpoint)}
        return {key: at.get(value, value.replace("=/opt/ml/model", f"={directory}")) for key, value in values.items()}

    properties, environ = here(settings["properties"]), here(settings["environment"])
    if properties:
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        (directory / "serving.properties").write_text("".join(lines))
        if "model_id" not in said and said.get("rolling_batch"):  # it lies beside it, as a compiled model does
            for file in checkpoint.iterdir():
                if file.is_file():
                    (directory / file.name).symlink_to(file)
    if (file_name := said.get("entrypoint", "")).endswith(".py"):
        (directory / file_name).write_text(_THEIR_FILE)
        environ = {key: str(directory) if value == str(checkpoint) else value for key, value in environ.items()}
    named = [str(directory)] if properties and "SERVING_LOAD_MODELS" not in environ else []
    server = load_server_config(None, {}, environ)
    for spec in find_models(server, named, environ):
        yield load_model_config(spec, server, environ)


def _pairs(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from settings["properties"].items()
    yield from settings["environment"].items()


def outcome(settings: Mapping[str, Any], directory: Path, sketches: Mapping[str, Path]) -> str:
    """What `check` says."""
    try:
        configs = list(configured(settings, directory, sketches))
        assert configs, "no model was found"
        for config in configs:
            handler_check.handler_of(config)
    except (ConfigError, ModelLoadError) as refusal:
        return refusal.message
    return "served"


@pytest.mark.parametrize("number", CONFIGS)
def test_a_djl_configuration_is_served_or_refused_in_a_line(
    number: int, tmp_path: Path, sketches: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row, "has_gpu", lambda: True)  # the machines that these settings are for have some
    verdict = outcome(CONFIGS[number], tmp_path, sketches)
    assert re.search(REFUSED.get(number, "^served$"), verdict)
    assert "\n" not in verdict


def test_most_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counter("refused" if number in REFUSED else "served" for number in CONFIGS)
    with capsys.disabled():
        print(f"\npublic configurations: {counts['served']} of {len(CONFIGS)} served, {counts['refused']} refused")
    assert counts["served"] >= 175


#: Fields of a configuration that its start and the shape of its answers do not depend on.
_ELSE = {"model_id", "revision", "predict_timeout", "model_loading_timeout"}


def kinds(folder: Path, sketches: Mapping[str, Path]) -> dict[int, ModelConfig]:
    """The configurations that can be served here, one of those that are set up alike, by the first one's number."""
    by_setup: dict[str, tuple[int, ModelConfig]] = {}
    for number, settings in CONFIGS.items():
        if number in REFUSED:
            continue
        directory = folder / f"of{number}"
        directory.mkdir()
        for config in configured(settings, directory, sketches):
            option = {key: value for key, value in msgspec.structs.asdict(config.option).items() if key not in _ELSE}
            by_setup.setdefault(repr((config.serving, option, config.engine_options)), (number, config))
    return dict(by_setup.values())


def write_model(directory: Path, config: ModelConfig, checkpoint: Path) -> None:
    """A model directory with all of a configuration's settings in its serving.properties, those of variables too."""
    directory.mkdir()
    lines = {key: config.properties.get(key.removeprefix("option."), "") for key in config.provenance}
    lines |= {"option.model_id": str(checkpoint), "batch_size": str(config.serving.batch_size)}
    text = "".join(f"{key}={value}\n" for key, value in lines.items() if value)
    (directory / "serving.properties").write_text(text)
    if config.option.entry_point.endswith(".py"):
        (directory / config.option.entry_point).write_text(_THEIR_FILE)


def check_started(configs: Mapping[int, ModelConfig], folder: Path, checkpoints: Mapping[str, Path]) -> None:
    """Start models with these configurations, and check that each answers as LMI's documents say."""
    for number, config in configs.items():
        checkpoint = checkpoints[config.engine_options.get("quantize", "none")]
        if config.option.task == "question-answering":
            checkpoint = build_encoder(folder.parent / f"reader{number}", "BertForQuestionAnswering")
        elif config.option.task == "text-embedding":
            architecture = "BertForSequenceClassification" if config.option.reranking else "BertModel"
            checkpoint = build_encoder(folder.parent / f"encoder{number}", architecture, num_labels=1)
        write_model(folder / f"m{number}", config, checkpoint)
    with running_server("-s", str(folder), start_timeout_s=60 * len(configs)) as server:
        for number, config in configs.items():
            response = httpx.post(f"{server.url}/predictions/m{number}", json=question(config), timeout=60)
            assert response.status_code == 200, (number, response.text, server.output())
            check_shape(config, response)


def question(config: ModelConfig) -> dict[str, Any]:
    """A request that a model of this configuration answers."""
    if config.option.task == "question-answering":
        return _ABOUT_A_TEXT
    if config.option.task == "text-embedding":
        return _RANKED if config.option.reranking else _TEXT
    return _QUESTION


def check_shape(config: ModelConfig, response: httpx.Response) -> None:
    option = config.option
    if option.entry_point.endswith(".py"):
        assert response.json() == {"theirs": _QUESTION}
    elif option.task == "question-answering":
        answer = response.json()
        assert answer["answer"] in _ABOUT_A_TEXT["inputs"]["context"] and answer["start"] < answer["end"]
    elif option.task == "text-embedding" and option.reranking:
        assert sorted(one["index"] for one in response.json()) == [0, 1]
    elif option.task == "text-embedding":
        vector = response.json()
        assert len(vector) == _WIDTH
        assert (abs(sum(value * value for value in vector) - 1) < 1e-3) == (option.normalize is not False)
    elif option.output_formatter == "jsonlines":
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert [line["token"]["text"] for line in lines] == [" Deep", " learning", " is"]
        assert lines[-1]["generated_text"] == " Deep learning is"
    elif option.rolling_batch == "disable" and option.enable_streaming:
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert [line["outputs"] for line in lines] == [[" Deep"], [" learning"], [" is"]]
    elif option.rolling_batch == "disable":
        assert response.json() == [{"generated_text": " Deep learning is"}]
    else:
        assert response.json() == {"generated_text": " Deep learning is"}


@pytest.fixture(scope="module")
def startable(tmp_path_factory: pytest.TempPathFactory, sketches: Mapping[str, Path]) -> dict[int, ModelConfig]:
    return kinds(tmp_path_factory.mktemp("kinds"), sketches)


def test_servable_djl_configurations_start_and_answer(
    startable: Mapping[int, ModelConfig], tmp_path: Path, plain: Path
) -> None:
    check_started({number: startable[number] for number in STARTED}, tmp_path, {"none": plain})


@pytest.mark.slow
@pytest.mark.parametrize("place", range(6))
def test_all_others_start_and_answer(
    place: int, startable: Mapping[int, ModelConfig], tmp_path: Path, plain: Path, quantized: Mapping[str, Path]
) -> None:
    numbers = [number for number in startable if number not in STARTED][place::6]
    for first in range(0, len(numbers), TOGETHER):
        some = {number: startable[number] for number in numbers[first : first + TOGETHER]}
        folder = tmp_path / str(first)
        folder.mkdir()
        check_started(some, folder, {"none": plain, "int8": plain, "int4": plain, **quantized})
