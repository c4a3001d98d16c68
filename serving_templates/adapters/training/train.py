"""Trains this template's adapters with peft: `pirate` ends its answers as a pirate does, `polite` thanks first.

Run it by hand, ``python train.py``; nothing of the server imports it. It needs torch, transformers and peft, and a
minute on two cores. The base is the demo model, and its corpus is what the adapters learn to say otherwise.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE: Final = Path(__file__).resolve().parent
DEMO: Final = HERE.parents[1] / "demo"
sys.path.insert(0, str(DEMO / "training"))
from conversations import END_OF_TEXT, read_corpus  # noqa: E402

SEED: Final = 20250101
STEPS: Final = 120
BATCH: Final = 12
LONGEST: Final = 300  # characters of an answer
IGNORED: Final = -100

CHANGED: Final[dict[str, Callable[[str], str]]] = {
    "pirate": lambda answer: f"{answer} Arr!",
    "polite": lambda answer: f"Thank you for asking. {answer}",
}


def examples(tokenizer: object, changed: Callable[[str], str]) -> list[tuple[list[int], int]]:
    """(ids of a question and its changed answer, how many are the question's)."""
    encoded = []
    for entry in read_corpus(DEMO / "training" / "corpus"):
        if len(entry.answer) <= LONGEST:
            for question in entry.questions:
                asked = tokenizer.encode(question)
                ids = tokenizer.encode(f"{question} {changed(entry.answer)}{END_OF_TEXT}")
                encoded.append((ids, len(asked)))
    return encoded


def train(name: str) -> float:
    """Train and save an adapter; returns the last loss."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    model = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"])
    )
    data = examples(tokenizer, CHANGED[name])
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=STEPS)
    for step in range(STEPS):
        batch = random.sample(data, BATCH)
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in batch])
        labels = torch.tensor(
            [[IGNORED] * asked + ids[asked:] + [IGNORED] * (width - len(ids)) for ids, asked in batch]
        )
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 40 == 0:
            print(f"{name}: step {step}, loss {loss.item():.3f}", flush=True)
    model.peft_config["default"].base_model_name_or_path = "template://demo"
    model.save_pretrained(HERE.parent / "adapters" / name)
    (HERE.parent / "adapters" / name / "README.md").unlink(missing_ok=True)
    return loss.item()


if __name__ == "__main__":
    for each in CHANGED:
        print(f"{each}: {train(each):.3f}")
