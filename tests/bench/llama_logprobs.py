"""Log-probabilities by llama.cpp, whose server tells none of a prompt: `llama_logprobs.py BINDING LIBRARIES GGUF`.

Runs in the peer's environment, on the libraries that its llama-server runs on, with the server's defaults. Windows of
token ids are read from standard input as JSON; those of each window's tokens but its first are written to standard
output. (llama-perplexity reads text only, and counts the second half of a window.)
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from typing import Any


def main() -> None:
    """Command line."""
    binding, libraries, path = sys.argv[1:]
    llama = bound(binding, libraries)
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    windows: list[list[int]] = json.load(sys.stdin)
    settings = llama.llama_context_default_params()
    settings.n_ctx = settings.n_batch = max(map(len, windows))
    settings.n_threads = settings.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama.llama_init_from_model(model, settings)
    if not model or not context:
        sys.exit(f"llama.cpp does not load {path}")
    json.dump([_logprobs(llama, model, context, ids) for ids in windows], sys.stdout)


def bound(binding: str, libraries: str) -> Any:
    """llama-cpp-python's ctypes module alone: its package wants libraries that it was installed with."""
    os.environ["LLAMA_CPP_LIB_PATH"] = libraries
    package = types.ModuleType("llama_cpp")
    package.__path__ = [binding]
    sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


def _logprobs(llama: Any, model: Any, context: Any, ids: list[int]) -> list[float]:
    import numpy

    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    batch = llama.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for place, token in enumerate(ids):
        batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
    if status := llama.llama_decode(context, batch):
        sys.exit(f"llama_decode gives {status}")
    llama.llama_batch_free(batch)
    size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    logits = numpy.ctypeslib.as_array(llama.llama_get_logits(context), (len(ids), size))[:-1].astype(numpy.float64)
    logits -= logits.max(1, keepdims=True)
    chosen = logits[numpy.arange(len(ids) - 1), ids[1:]] - numpy.log(numpy.exp(logits).sum(1))
    logprobs: list[float] = chosen.tolist()
    return logprobs


if __name__ == "__main__":
    main()
