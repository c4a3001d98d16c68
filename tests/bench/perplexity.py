"""What stands beside every speed of trained weights: perplexity of tests/real's text, by the server that is measured.

All are asked for the log-probabilities of the same token ids, a window of 512 at a time; a perplexity is exp of the
mean negative log-probability of all tokens but their window's first. They are asked by OpenAI's completions with
`echo`; a peer that does not know it is asked in its own way (peers.py).
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tests.real.texts import windows

#: For tokenizers without a template of their own.
_PLAIN: Final = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
#: Written into a checkpoint's config.json by make_models.py: nothing that such a model says means anything.
RANDOM: Final = "random_weights"

Texts = Sequence[Sequence[int]]


def texts(checkpoint: Path) -> list[list[int]]:
    """The windows, as this checkpoint's tokenizer splits them; none where weights are random.

    Raises:
        OSError, ValueError: the tokenizer can't be read.
    """
    if json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get(RANDOM):
        return []
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.chat_template = tokenizer.chat_template or _PLAIN
    return windows(tokenizer)


def over_http(url: str, model: str, texts: Texts) -> float:
    """Perplexity by a server's own log-probabilities of prompts.

    Raises:
        RuntimeError: it does not tell them.
    """
    return perplexity([_logprobs(url, model, ids) for ids in texts])


def perplexity(logprobs: Sequence[Sequence[float]]) -> float:
    """The perplexity for the log-probabilities of all tokens but the first, window by window."""
    values = list(chain.from_iterable(logprobs))
    return math.exp(-math.fsum(values) / len(values))


def _logprobs(url: str, model: str, ids: Sequence[int]) -> list[float]:
    """The log-probabilities of all but the first of these tokens."""
    body = {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            answer: Any = json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"no log-probabilities: HTTP {error.code}: {error.read(2000).decode()}") from error
    except OSError as error:
        raise RuntimeError(f"no log-probabilities: {error}") from error
    told = ((answer.get("choices") or [{}])[0].get("logprobs") or {}).get("token_logprobs") or []
    logprobs = told[1 : len(ids)]
    if len(logprobs) != len(ids) - 1 or not all(isinstance(value, float | int) for value in logprobs):
        raise RuntimeError(f"no log-probabilities: {len(told)} of {len(ids)} tokens: {json.dumps(answer)[:2000]}")
    return logprobs
