"""Tokens per second of processor time by llama.cpp: `llama_steps.py BINDING LIBRARIES GGUF SEQUENCES PROMPT OUTPUT`.

Runs in the peer's environment, on the libraries that its llama-server runs on, with one thread. Writes two numbers to
standard output: prompt tokens, and generated tokens after each sequence's first.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from llama_logprobs import bound  # type: ignore[import-not-found]  # it lies beside this file


def main() -> None:
    """Command line."""
    import numpy

    binding, libraries, path, *counts = sys.argv[1:]
    sequences, prompt, output = map(int, counts)
    llama = bound(binding, libraries)
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    settings = llama.llama_context_default_params()
    settings.n_ctx, settings.n_batch = sequences * (prompt + output), max(2048, sequences)
    settings.n_seq_max, settings.n_threads, settings.n_threads_batch = sequences, 1, 1
    context = llama.llama_init_from_model(model, settings)
    if not model or not context:
        sys.exit(f"llama.cpp does not load {path}")
    size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    batch = llama.llama_batch_init(settings.n_batch, 0, 1)

    def decode(rows: list[tuple[int, int, int, bool]]) -> Any:
        """The next tokens of rows of (token, position, sequence, whether its logits are wanted)."""
        batch.n_tokens = len(rows)
        for at, (token, place, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = token, place, wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        if status := llama.llama_decode(context, batch):
            sys.exit(f"llama_decode gives {status}")
        wanted_rows = sum(row[3] for row in rows)
        if not wanted_rows:
            return []
        return numpy.ctypeslib.as_array(llama.llama_get_logits(context), (wanted_rows, size)).argmax(1).tolist()

    ids = numpy.random.default_rng(0).integers(100, size - 100, (sequences, prompt)).tolist()
    started = time.process_time()
    rows = [(ids[one][at], at, one, at == prompt - 1) for one in range(sequences) for at in range(prompt)]
    last = [token for at in range(0, len(rows), 2048) for token in decode(rows[at : at + 2048])]
    begun = time.process_time()
    for step in range(output - 1):
        last = decode([(token, prompt + step, one, True) for one, token in enumerate(last)])
    ended = time.process_time()
    json.dump([sequences * prompt / (begun - started), sequences * (output - 1) / (ended - begun)], sys.stdout)


if __name__ == "__main__":
    main()
