"""Which models to serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.config import ModelSpec, ServerConfig, find_models, load_server_config, parse_model_spec
from djl_python.config.specs import infer_name, model_directory, split_model_specs
from djl_python.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/models/demo", ("demo", "", "", "", "/models/demo")),
        ("/models/llama-3.1/", ("llama_3_1", "", "", "", "/models/llama-3.1/")),
        ("m=/models/demo", ("m", "", "", "", "/models/demo")),
        ("m:1.0=/x", ("m", "1.0", "", "", "/x")),
        ("m:1.0:Python=/x", ("m", "1.0", "Python", "", "/x")),
        ("m:1:Python:gpu0;gpu1=/x", ("m", "1", "Python", "gpu0;gpu1", "/x")),
        ("m:1:Python:cuda:0=/x", ("m", "1", "Python", "cuda:0", "/x")),
        ("resnet::Python=file:///x", ("resnet", "", "Python", "", "file:///x")),
        ("[m:1:Python:*]=s3://b/p", ("m", "1", "Python", "*", "s3://b/p")),
        ("[m]=/x", ("m", "", "", "", "/x")),
        ("::Python=/models/demo", ("demo", "", "Python", "", "/models/demo")),
        ("org/model=/x", ("org/model", "", "", "", "/x")),
        ("org/model-3.1:2=s3://b/p", ("org/model-3.1", "2", "", "", "s3://b/p")),
        ("[org/model]=/x", ("org/model", "", "", "", "/x")),
        ("./run=1/model", ("model", "", "", "", "./run=1/model")),
        ("/data/run=1", ("run_1", "", "", "", "/data/run=1")),
        ("a/b/run=1", ("run_1", "", "", "", "a/b/run=1")),
        ("m=hf://owner/name", ("m", "", "", "", "hf://owner/name")),
        ("https://h/a/m.tar.gz?sig=a=b", ("m", "", "", "", "https://h/a/m.tar.gz?sig=a=b")),
        ("m=https://h/a.zip?x=1", ("m", "", "", "", "https://h/a.zip?x=1")),
        ("s3://bucket/run=1/model", ("model", "", "", "", "s3://bucket/run=1/model")),
        ("file:///a%20b/model.zip", ("model", "", "", "", "file:///a%20b/model.zip")),
    ],
)
def test_parse(text: str, expected: tuple[str, ...]) -> None:
    name, version, engine, devices, url = expected
    assert parse_model_spec(text) == ModelSpec(name=name, version=version, engine=engine, devices=devices, url=url)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a path"),
        ("m=", "expected a path"),
        ("a b=/x", "'a b'"),
        ("a%2Fb=/x", "can't be a model's name: no blanks, \\?, # or %, and one / as in owner/name"),
        ("m::Python:foo=/x", r"devices 'foo': expected \* or a list such as gpu0;gpu1"),
    ],
)
def test_wrong_specs(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_model_spec(text)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/opt/ml/model/", "model"),
        ("s3://bucket/", "bucket"),
        ("template://demo", "demo"),
        ("_hidden", "_hidden"),
        ("a.TAR.GZ", "a"),
        ("a.b.mar", "a_b"),
        ("model.v2", "model_v2"),
        ("https://h/x.zip?a=1", "x"),
    ],
)
def test_inferred_names(url: str, name: str) -> None:
    assert infer_name(url) == name


def test_a_relative_dot_has_its_directory_s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    assert parse_model_spec(".").name == "my_model"


def test_lists(tmp_path: Path) -> None:
    assert split_model_specs("a=/x,b=/y  c=/z, ,") == ["a=/x", "b=/y", "c=/z"]
    assert split_model_specs(" ") == []
    blank = tmp_path / "with blank, and comma"
    blank.mkdir()
    assert split_model_specs(str(blank)) == [str(blank)]
    assert split_model_specs(f"m={blank}") == [f"m={blank}"]
    equals = tmp_path / "run=1"
    equals.mkdir()
    assert parse_model_spec(str(equals)).url == str(equals)


def store(root: Path, *files: str) -> ServerConfig:
    for name in files:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return ServerConfig(model_store=str(root))


def names_and_urls(server: ServerConfig, *specs: str, **environ: str) -> list[tuple[str, str]]:
    root = f"{server.model_store or None}/"
    return [(spec.name, spec.url.removeprefix(root)) for spec in find_models(server, specs, environ)]


def test_every_directory_of_a_store_is_a_model(tmp_path: Path) -> None:
    server = store(tmp_path, "b/model.py", "a/config.json", ".git/x", "empty/", "__pycache__/x", "c.tar.gz", "notes.md")
    assert names_and_urls(server) == [("a", "a"), ("b", "b"), ("c", "c.tar.gz")]
    assert names_and_urls(server, "NONE") == []
    assert names_and_urls(server, "x=b") == [("x", "b")]
    assert names_and_urls(server, "ALL, x=/other") == [("a", "a"), ("b", "b"), ("c", "c.tar.gz"), ("x", "/other")]


@pytest.mark.parametrize("marker", ["serving.properties", "model.py", "config.json"])
def test_a_store_that_is_a_model(tmp_path: Path, marker: str) -> None:
    server = store(tmp_path / "model", marker, "weights/x")
    assert names_and_urls(server) == [("model", str(tmp_path / "model"))]


def test_a_store_with_nothing_but_a_handler(tmp_path: Path) -> None:
    assert names_and_urls(store(tmp_path / "demo", "demo.py")) == [("demo", str(tmp_path / "demo"))]
    assert names_and_urls(store(tmp_path / "docs", "README.md")) == []


def test_hf_model_id_adds_one(tmp_path: Path) -> None:
    server = store(tmp_path, "a/model.py")
    assert names_and_urls(server, HF_MODEL_ID="Owner/Name-7B") == [("a", "a"), ("Owner_Name_7B", "hf://Owner/Name-7B")]
    assert names_and_urls(ServerConfig(), MODEL_ID="Owner/Name") == [("Owner_Name", "hf://Owner/Name")]
    assert names_and_urls(ServerConfig(), MODEL_ID="a/b", OPTION_MODEL_ID="c/d") == [("c_d", "hf://c/d")]
    assert names_and_urls(server, MODEL_ID="Owner/Name") == [("a", "a")]
    assert names_and_urls(server, HF_MODEL_ID='"Owner/Name"') == [("a", "a"), ("Owner_Name", "hf://Owner/Name")]
    assert names_and_urls(server, HF_MODEL_ID="s3://b/my-model") == [("a", "a"), ("my_model", "s3://b/my-model")]
    assert names_and_urls(server, HF_MODEL_ID=str(tmp_path / "a")) == [("a", "a")]


def test_a_container_without_model_files(tmp_path: Path) -> None:
    empty = store(tmp_path)
    assert names_and_urls(empty, OPTION_MODEL_ID="owner/name") == [("owner_name", "hf://owner/name")]
    assert names_and_urls(store(tmp_path, "a/model.py"), OPTION_MODEL_ID="owner/name") == [("a", "a")]


def test_serving_load_models_is_stronger_than_the_command_line_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    server = load_server_config(None, {}, {"SERVING_LOAD_MODELS": "m=/env"})
    assert names_and_urls(server) == [("m", "/env")]
    assert caplog.text == ""
    assert names_and_urls(server, "m=/command") == [("m", "/env")]
    assert "environment SERVING_LOAD_MODELS: m=/env counts, not the command line's models" in caplog.text
    assert names_and_urls(load_server_config(None, {"load_models": "m=/config"}, {})) == [("m", "/config")]


def test_names_are_unique() -> None:
    with pytest.raises(ConfigError, match=r"^two models are called m: /x/m and /y/m$"):
        find_models(ServerConfig(), ["/x/m", "/y/m"], {})
    assert len(find_models(ServerConfig(), ["m:1=/x", "m:2=/x"], {})) == 2


def test_missing_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_store .*/none: not a directory"):
        find_models(ServerConfig(model_store=str(tmp_path / "none")), [], {})
    assert find_models(ServerConfig(), [], {}) == []


def test_an_unreadable_directory_hides_no_other_model(private: Path) -> None:
    server = store(private.parent, "a/model.py")
    assert names_and_urls(server) == [("a", "a"), ("private", "private")]  # whose loading fails
    with pytest.raises(ConfigError, match=r"^.*/private.*: Permission denied$"):
        find_models(ServerConfig(model_store=str(private)), [], {})


def test_a_folder_at_an_archive_s_root(tmp_path: Path) -> None:
    store(tmp_path, "outer/inner/model.py", "outer/.hidden")
    assert model_directory(tmp_path) == tmp_path / "outer" / "inner"
    store(tmp_path / "two", "a/x", "b/x")
    assert model_directory(tmp_path / "two") == tmp_path / "two"
    store(tmp_path / "deep", "a/b/notes")
    assert model_directory(tmp_path / "deep") == tmp_path / "deep"


def test_a_name_with_an_owner_is_a_model_of_the_hub_where_there_is_no_such_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, url in (("owner/model-1.5", "hf://owner/model-1.5"), ("chat=owner/model", "hf://owner/model")):
        assert [spec.url for spec in find_models(ServerConfig(), [given], {})] == [url]
    (tmp_path / "owner" / "there").mkdir(parents=True)
    for path in ("owner/there", "owner/mistyped", "./a/b", "a/b/c", "../a/b", "/a/b"):
        assert [spec.url for spec in find_models(ServerConfig(), [path], {})] == [path]
    store = tmp_path / "store"
    (store / "others" / "model").mkdir(parents=True)
    server = ServerConfig(model_store=str(store))
    assert [spec.url for spec in find_models(server, ["others/model"], {})] == [str(store / "others" / "model")]
