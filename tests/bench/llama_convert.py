"""llama.cpp's converter, for tokenizers it does not know: `llama_convert.py SOURCE MODEL --outfile F --outtype T`.

Runs in the peer's environment. The converter recognizes byte-level tokenizers by a fingerprint and refuses others, such
as those of checkpoints made for benchmarks. They split text like GPT-2's, or nearly: a prompt may have a few tokens
more or fewer, which the server counts.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any


def main() -> None:
    """Run the converter with what follows its folder on the command line."""
    source = sys.argv.pop(1)
    sys.path[:1] = [source, f"{source}/gguf-py"]
    from conversion.base import TextModel

    recognize = TextModel.get_vocab_base_pre

    def recognize_or_guess(self: Any, tokenizer: Any) -> str:
        try:
            return str(recognize(self, tokenizer))
        except NotImplementedError:
            return "gpt-2"

    TextModel.get_vocab_base_pre = recognize_or_guess
    runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")


if __name__ == "__main__":
    main()
