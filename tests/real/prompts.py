"""Twenty prompts, and what transformers generates for them.

At each of their tokens, in fp32, the likeliest is ahead of the next by more than processors' ways to round add up to.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from tests.real.perplexity import all_threads

NEW_TOKENS: Final = 24
QUESTIONS: Final = (
    "Name three colors.",
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "How do I boil an egg?",
    "Explain photosynthesis to a child.",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' to Spanish.",
    "Give me a name for a black cat.",
    "Why is the sky blue?",
    "List the days of the week.",
)
CONTINUED: Final = (
    "The largest planets are",
    "Ingredients: flour, sugar,",
    "def fibonacci(n):\n",
    "import numpy as np\n\ndef softmax(x):\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 2, 3, 4, 5, 6, 7,",
    "The three states of matter are",
    "SELECT name, COUNT(*) FROM orders",
    "In 1969, the first man",
    "for (int i = 0; i < n; i++) {\n",
)


def chat(tokenizer: Any, question: str) -> list[int]:
    """The prompt's ids of a conversation that begins with this."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def prompts(tokenizer: Any) -> list[list[int]]:
    """Ids of all twenty."""
    continued = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in CONTINUED]
    return [*(chat(tokenizer, question) for question in QUESTIONS), *continued]


def generated(model: Any, asked: list[list[int]], pad: int) -> list[list[int]]:
    """What `generate` continues them with, in one batch: greedily, up to and with the end of text."""
    width = max(map(len, asked))
    ids = torch.tensor([[pad] * (width - len(each)) + each for each in asked])
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in asked])
    with all_threads():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=pad)[
            :, width:
        ].tolist()
    end = model.generation_config.eos_token_id
    return [each[: each.index(end) + 1] if end in each else each for each in out]
