"""The text that perplexities are of: 8,192 tokens of prose, code and conversations, all written for this.

No model can have been trained on it, and no other package's version changes it. Each kind is cut into windows of 512
tokens, and each window is read by itself: a perplexity is exp of the mean negative log-probability of every token but
its window's first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

WINDOW: Final = 512
_TEXTS: Final = Path(__file__).with_name("texts")


def windows(tokenizer: Any) -> list[list[int]]:
    """Windows of token ids, by SmolLM2's tokenizer 16: of prose, then code, then conversations."""
    conversations = json.loads((_TEXTS / "chat.json").read_text(encoding="utf-8"))
    texts = [
        (_TEXTS / "english.txt").read_text(encoding="utf-8"),
        (_TEXTS / "code.txt").read_text(encoding="utf-8"),
        "".join(tokenizer.apply_chat_template(each, tokenize=False) for each in conversations),
    ]
    token_windows = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        token_windows += [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW + 1, WINDOW)]
    return token_windows
