"""One GGUF file, served by this server and by llama.cpp's: the same file, in turn, with perplexities beside.

    python -m tests.bench.gguf                                  SmolLM2-135M-Instruct's Q4_1, from its wheel
    python -m tests.bench.gguf --model model-Q4_K_M.gguf --concurrency 1,8,32 --rounds 3
    python -m tests.bench.peers install llama.cpp               before, or this server is measured alone

Prints tokens a second with so many clients, medians of the rounds, and how long each server took to be ready.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from djl_python.bench.arguments import counts
from djl_python.bench.command import terminable
from djl_python.sources import local_path
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.bench.compare import Plan, System, compare
from tests.bench.peers import DEFAULT_HOME, LlamaCpp
from tests.real import gguf_files
from tests.real.texts import windows


class LlamaCppOfFile(LlamaCpp):
    """llama-server with a GGUF file as it is."""

    def __init__(self, home: Path, file: Path) -> None:
        super().__init__(home)
        self._given = file

    def file(self, model: Path, precision: str) -> Path:
        return self._given


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 if a server did not start or a request failed."""
    options = _parser().parse_args(argv)
    if options.model is None:
        gguf_files.fetch_files()
        options.model = gguf_files.model()
    file = options.model.resolve()
    peer = LlamaCppOfFile(options.peers_dir.expanduser().resolve(), file)
    entered = [System(file.stem), *([System(file.stem, peer)] if peer.installed else [])]
    with terminable(), tempfile.TemporaryDirectory(prefix="bench-") as folder:
        described = local_path(str(file), "", Path(folder))
        plan = Plan(
            model=file,
            checkpoint=described,
            concurrency=options.concurrency,
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
            contexts=(),
            rounds=options.rounds,
            start_timeout_s=options.start_timeout_s,
            texts=() if options.no_perplexity else _texts(described),
        )
        results, failures = compare(plan, entered, before_each=lambda: None)
    print("\n".join(_table(results, options.concurrency)))
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="GGUF file (default: SmolLM2-135M-Instruct's)")
    parser.add_argument("--peers-dir", type=Path, default=DEFAULT_HOME, metavar="DIR")
    parser.add_argument("--concurrency", type=counts, default=[1, 8, 32], metavar="N,...")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians count (default 3)")
    parser.add_argument("--no-perplexity", action="store_true", help="speeds alone")
    parser.add_argument("--start-timeout-s", type=float, default=600.0)
    return parser


def _texts(described: Path) -> list[list[int]]:
    """The windows of tests/real's text, by the file's own tokenizer and chat template."""
    templates = Tokenizer.load(described).chat_templates
    return windows(
        PreTrainedTokenizerFast(
            tokenizer_file=str(described / "tokenizer.json"),
            chat_template=templates.get("default", "{% for message in messages %}{{ message.content }}\n{% endfor %}"),
        )
    )


def _table(results: Sequence[dict[str, Any]], concurrency: Sequence[int]) -> list[str]:
    wide = max(len(result["name"]) for result in results)
    lines = [
        f"{'':<{wide}} {'ready s':>8} {'perplexity':>10}" + "".join(f" {number:>4} clients" for number in concurrency)
    ]
    for result in results:
        speeds = {row["concurrency"]: row["tokens_s"] for row in result["rows"]}
        told = "" if result["perplexity"] is None else f"{result['perplexity']:.4f}"
        cells = "".join(f" {speeds.get(number, ''):>12}" for number in concurrency)
        lines.append(f"{result['name']:<{wide}} {min(result['ready_s'], default=''):>8} {told:>10}{cells}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
