"""The subcommand `djl-serving run`: one prompt, one answer. Runs in the command's own process.

Only the answer goes to stdout, as it comes; stderr says if another model gave it, and what had no effect on it. Exit
codes: 0 the answer is whole; 1 no answer, or one that broke off; 2 the command line is wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from ..commands.models import settings_given
from ..commands.parsing import parse
from ..core.help_text import HelpFormatter
from .arguments import add_parameters, add_target, parameters_of
from .openai_api import ApiError, OpenAiApi, Piece, remarks
from .own_server import StartError
from .screen import harmless
from .target import opened, url_of

_STDIN: Final = "-"
_EXAMPLES: Final = """\
examples:
  djl-serving run /models/llama-3 "Name three rivers."
  djl-serving run http://127.0.0.1:8080 "Summarize this text:" - <article.txt >summary.txt
  git diff | djl-serving run http://127.0.0.1:8080 "Write a message for this commit:" - --temperature 0
  echo "Once upon a time" | djl-serving run /models/base --completion
  djl-serving run /models/llama-3 "Name three rivers." --dtype bf16 --max-model-len 4096
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving run",
        description="Print a model's answer to one prompt. Only the answer goes to stdout.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    add_target(made)
    made.add_argument(
        "prompt",
        nargs="*",
        help="parts are separated by blank lines; - stands for the text on stdin (default: that text alone)",
    )
    add_parameters(made)
    made.add_argument("--completion", action="store_true", help="continue the prompt as a text, instead of a chat")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run `djl-serving run ARGUMENTS`; returns the exit code."""
    made = parser()
    options = parse(made, arguments, intermixed=True)  # the prompt may come after options too
    settings_given(made, options, url_of(options))
    if options.completion and options.system:
        made.error("--system has no place in a text that is continued (--completion)")
    prompt = _prompt(options.prompt or [_STDIN], made)
    try:
        with opened(options, Console(stderr=True, highlight=False)) as (api, _):
            _print(_asked(api, prompt, options, parameters_of(options)))
            for remark in remarks(api):
                print(f"djl-serving run: {remark}", file=sys.stderr)
    except (ApiError, StartError) as error:
        print(f"djl-serving run: {error}", file=sys.stderr)
        return 1
    return 0


def _prompt(parts: Sequence[str], made: argparse.ArgumentParser) -> str:
    if _STDIN in parts and sys.stdin.isatty():
        made.error("a prompt is needed: as an argument, or on stdin")
    try:
        texts = [sys.stdin.read() if part == _STDIN else part for part in parts]
    except UnicodeDecodeError as exc:
        made.error(f"stdin is no text: {exc}")
    prompt = "\n\n".join(text.strip("\n") for text in texts)
    if not prompt.strip():
        made.error("the prompt is empty")
    return prompt


def _asked(api: OpenAiApi, prompt: str, options: argparse.Namespace, parameters: Mapping[str, Any]) -> Iterator[Piece]:
    if options.completion:
        return api.complete(prompt, parameters)
    system = [{"role": "system", "content": options.system}] if options.system else []
    return api.chat([*system, {"role": "user", "content": prompt}], parameters)


def _print(pieces: Iterator[Piece]) -> None:
    """Print an answer, with a line feed at its end; on a terminal, no control characters of the model's."""
    shown = harmless if sys.stdout.isatty() else str
    last = "\n"
    for piece in pieces:
        if piece.text:
            print(shown(piece.text), end="", flush=True)
            last = piece.text
    if not last.endswith("\n"):
        print(flush=True)
