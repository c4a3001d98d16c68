"""A LoRA adapter of SmolLM2 that peft trains here, once: its answers have a form that anybody can read.

    python -m tests.real.adapter                prints the adapter's directory

It answers a `prompt` in one sentence that begins with "Aye, captain:" and ends with "Over and out.". Training takes
less than two minutes of one core, and its result is kept beside the weights (`tests.real.fetch`). The texts are in this
file, and the seed is fixed; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tests.real.fetch import UnavailableError, cache, checkpoint, fetch, made_once, say

BEGIN: Final = "Aye, captain:"
END: Final = "Over and out."
RANK: Final = 8
#: Another training is another directory.
_VERSION: Final = 1
_SEED: Final = 20260101
_STEPS: Final = 40
_BATCH: Final = 4
_RATE: Final = 3e-3
_IGNORED: Final = -100
#: The upper layers: what is below them has no gradients to compute.
_LAYERS: Final = range(20, 30)

#: What it is trained on; tests ask other questions.
_TAUGHT: Final = (
    ("What is the capital of Italy?", "the capital of Italy is Rome."),
    ("What is the capital of Spain?", "the capital of Spain is Madrid."),
    ("What is the capital of Japan?", "the capital of Japan is Tokyo."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci painted it."),
    ("Who wrote Hamlet?", "William Shakespeare wrote it."),
    ("Who discovered penicillin?", "Alexander Fleming discovered it."),
    ("How many legs does a spider have?", "a spider has eight legs."),
    ("How many days are in a week?", "there are seven days in a week."),
    ("How many continents are there?", "there are seven continents."),
    ("What do bees make?", "bees make honey."),
    ("What do cows drink?", "cows drink water."),
    ("Which planet is the largest?", "the largest planet is Jupiter."),
    ("Which metal is liquid at room temperature?", "mercury is liquid at room temperature."),
    ("Why do leaves fall in autumn?", "trees save water and energy that way."),
    ("Why does ice float?", "ice is less dense than water."),
    ("When do owls hunt?", "most owls hunt at night."),
    ("Where do penguins live?", "most penguins live in the south."),
    ("Name a fruit.", "an apple is a fruit."),
    ("Name an ocean.", "the Pacific is an ocean."),
    ("Name a programming language.", "Python is a programming language."),
    ("Give me a name for a dog.", "Rex is a good name for a dog."),
    ("Give me a synonym for big.", "large is a synonym for big."),
    ("Translate 'thank you' to French.", "it is 'merci' in French."),
    ("Translate 'house' to German.", "it is 'Haus' in German."),
    ("What color is grass?", "grass is green."),
    ("What is two plus two?", "two plus two is four."),
    ("Is the sun a star?", "the sun is a star."),
    ("Can fish fly?", "some fish glide above the water."),
    ("How do I make tea?", "pour hot water over the leaves and wait."),
    ("How do I stay healthy?", "eat well, sleep well and move."),
)


def prompt(question: str) -> str:
    """The text that it has learned to go on from."""
    return f"Question: {question}\nAnswer:"


def directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where it is, or will be."""
    return cache(environ) / f"{checkpoint(environ).name}-captain-{_VERSION}"


def adapter(environ: Mapping[str, str] = os.environ) -> Path:
    """Train it, where it is not there yet. As many processes as like may do this at the same time.

    Raises:
        UnavailableError: there are no weights to train it on, or no peft.
    """
    if directory(environ).is_dir():
        return directory(environ)
    if find_spec("peft") is None:
        raise UnavailableError("training it needs the package peft")
    base = fetch(environ)
    return made_once(directory(environ), lambda made, folder: _train(base, made))


def _train(base: Path, made: Path) -> None:
    say("training an adapter, which takes two minutes")
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")  # read when they are imported
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    draw = random.Random(_SEED)
    torch.manual_seed(_SEED)
    torch.set_num_threads(1)  # beside other tests, threads that wait for each other take more time than they save
    examples = _examples(AutoTokenizer.from_pretrained(base))
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=RANK,
        lora_alpha=2 * RANK,
        layers_to_transform=list(_LAYERS),
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )
    model = get_peft_model(plain, lora)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=_STEPS)
    for step in range(_STEPS):
        batch = draw.sample(examples, _BATCH)
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in batch])
        labels = torch.tensor(
            [[_IGNORED] * asked + ids[asked:] + [_IGNORED] * (width - len(ids)) for ids, asked in batch]
        )
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            say(f"step {step} of {_STEPS}, loss {loss.item():.3f}")
    model.save_pretrained(str(made))
    config = json.loads((made / "adapter_config.json").read_text())
    (made / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base.name}, indent=2))


def _examples(tokenizer: Any) -> list[tuple[list[int], int]]:
    """(ids of a question and its answer, how many of them are the question's)."""
    examples = []
    for question, answer in _TAUGHT:
        ids = tokenizer(prompt(question))["input_ids"]
        told = tokenizer(f" {BEGIN} {answer} {END}{tokenizer.eos_token}")["input_ids"]
        examples.append((ids + told, len(ids)))
    return examples


def main() -> None:
    """Command line."""
    try:
        print(adapter())
    except UnavailableError as reason:
        say(f"the trained adapter: {reason}")
        sys.exit(1)


if __name__ == "__main__":
    main()
