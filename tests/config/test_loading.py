"""A model's configuration from everywhere it may come from."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import msgspec
import pytest

from djl_python.config import (
    ModelConfig,
    ModelSpec,
    ServerConfig,
    devices,
    load_server_config,
    parse_model_spec,
    registered_spec,
)
from djl_python.core.errors import ConfigError
from djl_python.sources import load_model_config

BUILT_IN = ServerConfig()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What load_on_devices names is there."""
    monkeypatch.setattr(devices, "has_gpu", lambda: True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "demo"
    directory.mkdir()
    (directory / "model.py").touch()
    return directory


def load(directory: Path, properties: str = "", server: ServerConfig = BUILT_IN, **environ: str) -> ModelConfig:
    if properties:
        (directory / "serving.properties").write_text(properties)
    return load_model_config(parse_model_spec(str(directory)), server, environ)


def problems(directory: Path, properties: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(directory, properties, BUILT_IN, **environ)
    return caught.value.message.splitlines()


def test_bare_directory(model: Path) -> None:
    config = load(model)
    assert (config.name, config.version, config.path, config.engine) == ("demo", "", str(model), "Python")
    assert config == ModelConfig(
        name="demo", path=str(model), url=str(model), provenance=dict.fromkeys(config.provenance, "default")
    )
    assert "option.dtype" in config.provenance and "minWorkers" in config.provenance


def test_crosses_a_process(model: Path) -> None:
    config = load(model, "option.tensor_parallel_degree=max\nbatch_size=4\noption.x=1\n", PREDICT_TIMEOUT="7")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=ModelConfig) == config


def test_precedence(model: Path, gpu: None) -> None:
    """The model's spec, serving.properties, environment, config.properties, built-in."""
    config_file = model.parent / "config.properties"
    config_file.write_text("job_queue_size=1\nbatch_size=1\nmax_batch_delay=1\nmin_workers=3\n")
    environ = {"SERVING_JOB_QUEUE_SIZE": "2", "SERVING_BATCH_SIZE": "2", "SERVING_MAX_BATCH_DELAY": "2"}
    server = load_server_config(config_file, {}, environ)
    (model / "serving.properties").write_text("job_queue_size=3\nbatch_size=3\nengine=MPI\nload_on_devices=gpu0\n")
    config = load_model_config(parse_model_spec(f"m::Python:gpu1={model}"), server, environ)
    serving = config.serving
    assert (serving.job_queue_size, serving.batch_size, serving.max_batch_delay_ms) == (3, 3, 2)
    assert (serving.engine, config.devices) == ("Python", "gpu1")
    assert (serving.min_workers, serving.retry_threshold) == (3, 0)
    keys = ("engine", "batch_size", "max_batch_delay", "minWorkers", "retry_threshold")
    assert [config.provenance[key] for key in keys] == [
        "model m",
        "serving.properties:2",
        "environment SERVING_MAX_BATCH_DELAY",
        "config.properties:4",
        "default",
    ]


def test_a_registration_is_stronger_than_all(model: Path) -> None:
    (model / "serving.properties").write_text("batch_size=3\nminWorkers=4\njob_queue_size=5\n")
    spec = registered_spec(str(model), "", name="m", parameters={"batch_size": "7", "minWorkers": "8"})
    config = load_model_config(spec, BUILT_IN, {})
    assert (config.serving.batch_size, config.serving.min_workers, config.serving.job_queue_size) == (7, 8, 5)
    assert config.provenance["batch_size"] == "registration" and config.properties["minWorkers"] == "8"
    wrong = registered_spec(str(model), "", parameters={"minWorkers": "none"})
    with pytest.raises(ConfigError, match=r"^registration: minWorkers=none: expected an integer >= 1$"):
        load_model_config(wrong, BUILT_IN, {})


def test_bounds_of_workers(model: Path) -> None:
    def bounds(text: str, **environ: str) -> tuple[int, int | None, float]:
        serving = load(model, text, load_server_config(None, {}, environ)).serving
        return serving.min_workers, serving.max_workers, serving.max_idle_time_s

    assert bounds("") == (1, None, 60)
    assert bounds("minWorkers=2\nmax_workers=4\nmax_idle_time=5\n") == (2, 4, 5)
    assert bounds("# none", SERVING_MIN_WORKERS="2", SERVING_MAX_WORKERS="3", SERVING_MAX_IDLE_TIME="7") == (2, 3, 7)
    # The server's are defaults: where the model's own contradicts one, it counts.
    assert bounds("minWorkers=4", SERVING_MAX_WORKERS="2") == (4, 4, 60)
    assert bounds("maxWorkers=1", SERVING_MIN_WORKERS="2") == (1, 1, 60)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("minWorkers=4\nmaxWorkers=2", "serving.properties:2: maxWorkers=2: expected at least minWorkers, which is 4"),
        (
            "cpu.max_workers=2\nminWorkers=4\nmaxWorkers=8\noption.device=cpu",
            "serving.properties:1: cpu.maxWorkers=2: expected at least minWorkers, which is 4 (serving.properties:2)",
        ),
        (
            "gpu.minWorkers=4\nload_on_devices=cpu;gpu1\nmax_workers=2",
            "serving.properties:3: maxWorkers=2: expected at least gpu.minWorkers, which is 4 (serving.properties:1)",
        ),
    ],
)
def test_the_most_workers_are_not_less_than_the_least(model: Path, gpu: None, text: str, problem: str) -> None:
    (fault,) = problems(model, text)
    assert fault.startswith(problem)


def test_bounds_for_a_device_that_the_model_is_not_on(model: Path) -> None:
    config = load(model, "gpu.minWorkers=4\nmaxWorkers=2\noption.device=cpu\n")
    assert config.serving.gpu_min_workers == 4 and config.warnings == ()


def test_option_precedence(model: Path) -> None:
    environ = {
        "OPTION_DTYPE": "fp16",
        "OPTION_PREDICT_TIMEOUT": "5",
        "PREDICT_TIMEOUT": "6",
        "MODEL_LOADING_TIMEOUT": "8",
    }
    config = load(model, "option.dtype=bf16", BUILT_IN, **environ)
    assert (config.option.dtype, config.option.predict_timeout, config.option.model_loading_timeout) == ("bf16", 5, 8)
    assert config.provenance["option.predict_timeout"] == "environment OPTION_PREDICT_TIMEOUT"
    assert config.provenance["option.model_loading_timeout"] == "environment MODEL_LOADING_TIMEOUT"


def test_server_configuration_made_in_code(model: Path) -> None:
    config = load(model, server=ServerConfig(job_queue_size=2))
    assert config.serving.job_queue_size == 2
    assert config.provenance["job_queue_size"] == "server configuration"


def test_properties_are_what_djl_gives(model: Path) -> None:
    text = "engine=Python\nbatch_size=2\noption.dtype=float32 \noption.mine=a=b\noption.engine=mine\n"
    config = load(model, text, OPTION_ENTRYPOINT="model.py", OPTION_mixedCase="1", TENSOR_PARALLEL_DEGREE="2")
    assert config.properties == {
        "engine": "mine",
        "dtype": "float32 ",
        "mine": "a=b",
        "entryPoint": "model.py",
        "mixedCase": "1",
        "tensor_parallel_degree": "2",
    }
    assert (config.engine, config.option.dtype) == ("Python", "fp32")


def test_a_batch_size_in_the_wrong_place_makes_no_call_a_batch(model: Path) -> None:
    config = load(model, "option.batch_size=4\nmax_dynamic_batch_size=2\nbatch_size=2")
    assert config.properties == {"batch_size": "4"}  # of the first call alone
    said = "serving.properties:1: option.batch_size is not known: passed to the handler; did you mean batch_size?"
    assert said in config.warnings


def test_aliases(model: Path) -> None:
    assert load(model, "max_dynamic_batch_size=4").serving.batch_size == 4
    config = load(model, "max_dynamic_batch_size=4\nbatch_size=2")
    assert config.serving.batch_size == 2
    assert config.warnings == (
        "serving.properties:1: max_dynamic_batch_size is another name of batch_size, which is set too: ignored",
    )


@pytest.mark.parametrize(
    ("alias", "value", "field"),
    [
        ("speculative_draft_model", "owner/name", "draft_model_id"),
        ("max_total_tokens", "100", "max_model_len"),
        ("max_input_length", "50", "max_input_tokens"),
        ("fullTextEnabled", "true", "full_text_enabled"),
    ],
)
def test_aliases_of_options(model: Path, alias: str, value: str, field: str) -> None:
    from_file = load(model, f"option.{alias}={value}")
    (model / "serving.properties").unlink()
    for config in (from_file, load(model, "", BUILT_IN, **{f"OPTION_{alias.upper()}": value})):
        option = config.engine_options[field] if field in config.engine_options else getattr(config.option, field)
        assert str(option).lower() == value
        assert config.warnings == ()
    assert load(model, f"{alias}={value}").warnings == (
        f"serving.properties:1: {alias} is not known; did you mean option.{alias}?",
    )


def test_an_alias_in_the_environment_is_as_strong_as_the_name(model: Path) -> None:
    own = {"MAX_TOTAL_TOKENS": "200"}
    assert load(model, "", BUILT_IN, **own).option.max_model_len == 200
    assert load(model, "", BUILT_IN, OPTION_MAX_TOTAL_TOKENS="100", **own).option.max_model_len == 100
    both = load(model, "", BUILT_IN, OPTION_MAX_TOTAL_TOKENS="100", OPTION_MAX_MODEL_LEN="300", **own)
    assert both.option.max_model_len == 300
    assert both.warnings[0].startswith("environment OPTION_MAX_TOTAL_TOKENS: option.max_total_tokens is another name")


def test_a_path_that_no_other_process_could_be_told(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff"))
    directory.mkdir()
    (directory / "model.py").touch()
    with pytest.raises(ConfigError, match="expected a name and a path in UTF-8"):
        load_model_config(ModelSpec(name="m", url=str(directory)), BUILT_IN, {})


def test_all_problems_at_once(model: Path) -> None:
    text = "engine=Pyton\noption.max_rolling_batch_size=lots\n\noption.dtype=fp8\n"
    assert problems(model, text, OPTION_TGI_COMPAT="si", SM_NUM_GPUS="some", OPTION_FOO="\udcff") == [
        "serving.properties:2: option.max_rolling_batch_size=lots: expected an integer >= 1",
        "serving.properties:4: option.dtype=fp8: expected one of auto, bf16, fp16, fp32",
        "environment OPTION_TGI_COMPAT: option.tgi_compat=si: expected true or false",
        "environment SM_NUM_GPUS: option.tensor_parallel_degree=some: expected an integer >= 1, or max",
        "environment OPTION_FOO: option.foo: expected UTF-8 text",
        "serving.properties:1: engine=Pyton: expected Python",
    ]


def test_a_secret_is_not_in_the_message(model: Path) -> None:
    (problem,) = problems(model, "option.env=HF_TOKEN=abcdef,oops")
    assert "abcdef" not in problem


def test_warnings_about_keys(model: Path) -> None:
    text = (
        "option.max_rolling_batchsize=4\noption.mine=1\noption.lora_dtype=awq\nminworkers=1\ntranslatorFactory=x\n"
        "option.dtype=\noption.task=a\noption.task=b\nlog_request_metric=true\n"
    )
    config = load(model, text, OPTION_MINE_TOO="1")
    assert sorted(config.warnings) == sorted(
        [
            "serving.properties:8: option.task replaces the one of serving.properties:7",
            "serving.properties:1: option.max_rolling_batchsize is not known: passed to the handler; "
            "did you mean option.max_rolling_batch_size?",
            "serving.properties:2: option.mine is not known: passed to the handler",
            "serving.properties:3: option.lora_dtype has no effect: adapters are computed in the model's number format",
            "serving.properties:4: minworkers is not known; did you mean minWorkers?",
            "serving.properties:5: translatorFactory has no effect: it is for DJL's Java engines",
            "serving.properties:6: option.dtype is empty: the default counts",
            "serving.properties:9: log_request_metric has no effect: metrics are at /metrics",
            "environment OPTION_MINE_TOO: option.mine_too is not known: passed to the handler",
        ]
    )
    assert config.properties["max_rolling_batchsize"] == "4"
    assert config.provenance["option.dtype"] == "default"


def test_requirements_that_change_what_others_have_or_count_for_nothing(model: Path) -> None:
    (model / "requirements").mkdir()
    assert load(model).warnings == (f"{model}/requirements has no effect: there is no requirements.txt beside it",)
    (model / "requirements.txt").write_text("numpy\n")
    assert load(model).warnings == ()
    assert load(model, "option.enable_venv=false").warnings == (
        f"{model}/requirements.txt changes the packages of the server (option.enable_venv=false)",
    )


def test_nothing_to_serve(tmp_path: Path) -> None:
    assert problems(tmp_path, "option.dtype=fp32")[0].startswith(f"{tmp_path}: nothing to serve: there is no model.py")
    assert load(tmp_path, "option.model_id=owner/name").option.model_id == "owner/name"
    assert load(tmp_path, "option.entryPoint=djl_python.huggingface").option.entry_point == "djl_python.huggingface"
    (tmp_path / "serving.properties").unlink()
    (tmp_path / f"{parse_model_spec(str(tmp_path)).name}.py").touch()
    assert load(tmp_path).path == str(tmp_path)


def test_a_directory_that_may_not_be_read(private: Path) -> None:
    with pytest.raises(ConfigError, match=r"^.*/private.*: Permission denied$"):
        load(private)


def test_spec_fields(model: Path, gpu: None) -> None:
    spec = ModelSpec(name="m", version="2", engine="mpi", devices="gpu0", url=str(model))
    config = load_model_config(spec, BUILT_IN, {})
    assert (config.name, config.version, config.engine, config.devices) == ("m", "2", "Python", "gpu0")
    assert load(model, "load_on_devices=gpu1;gpu2").devices == "gpu1;gpu2"


def test_devices_that_are_not_there_are_workers_on_the_cpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    config = load(model, "load_on_devices=0;gpu1\ngpu.maxWorkers=1\noption.tensor_parallel_degree=2")
    assert devices.devices_each(config) == 1
    assert devices.bounds_of(config) == {"auto": (2, 2)}
    assert config.warnings[-1] == (
        "serving.properties:1: load_on_devices=0;gpu1 has no effect: there is no GPU; one worker on the CPU for each "
        "device"
    )


def test_hub_model() -> None:
    spec = ModelSpec(name="m", url="hf://owner/name")
    environ = {"HF_MODEL_ID": "owner/name", "HF_REVISION": "main", "OPTION_MODEL_ID": "other/model"}
    config = load_model_config(spec, BUILT_IN, environ)
    assert (config.path, config.option.model_id, config.option.revision) == ("", "owner/name", "main")
    assert config.provenance["option.model_id"] == "environment HF_MODEL_ID"
    assert load_model_config(spec, BUILT_IN, {}).provenance["option.model_id"] == "model hf://owner/name"


def test_archive(model: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("folder/model.py", "")
        archive.writestr("folder/serving.properties", "option.dtype=bf16")
    cache = tmp_path / "cache"
    spec = parse_model_spec(str(tmp_path / "zipped.zip"))
    config = load_model_config(spec, BUILT_IN, {"DJL_CACHE_DIR": str(cache)})
    assert (config.name, config.option.dtype, config.cache_dir) == ("zipped", "bf16", str(cache))
    assert Path(config.path).is_relative_to(cache) and Path(config.path).name == "folder"


def test_a_cache_is_where_it_is_for_workers_too(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in the directories of their models."""
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as packed:
        packed.write(model / "model.py", "model.py")
    monkeypatch.chdir(tmp_path)
    config = load_model_config(parse_model_spec("m.zip"), BUILT_IN, {"DJL_CACHE_DIR": "cache"})
    assert config.cache_dir == str(tmp_path / "cache")
    assert Path(config.path).is_relative_to(tmp_path / "cache")


def test_path_is_absolute(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    config = load_model_config(parse_model_spec("m=demo"), BUILT_IN, {})
    assert (config.path, config.url) == (str(model), "demo")
    assert os.path.isabs(load_model_config(parse_model_spec(model.as_uri()), BUILT_IN, {}).path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/no/such/model", "/no/such/model: no such file or directory"),
        ("owner/name", "no such file or directory (a hub model is hf://owner/name)"),
        ("djl://ai.djl/x", "model djl://ai.djl/x: DJL's model zoo is not here; expected a checkpoint, as in hf://x"),
    ],
)
def test_models_that_are_not_there(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_model_config(parse_model_spec(url), BUILT_IN, {})
