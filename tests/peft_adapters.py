"""LoRA adapters for tests, made and computed by peft itself: what the built-in engine computes must equal it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams, TokenEvent
from djl_python.engine.adapters.targets import adapter_targets
from djl_python.engine.interface import RollingBatch
from tests.checkpoints import VOCABULARY
from tests.engines import reference_model, run_to_end

#: For modules whose tests have peft wrap a model.
PEFT_WARNS: Final = pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing.:FutureWarning", r"ignore::UserWarning:peft\.", r"ignore::RuntimeWarning:peft\."
)
#: peft's name of the model without an adapter, in a mixed batch.
BASE: Final = "__base__"
_NEW: Final = 5  # tokens that `request` asks for
#: Types of models that flatten a batch before a linear, which peft's mixed batches can't follow.
_ONE_BY_ONE: Final = ("opt", "qwen3_moe", "qwen3_next")
#: What adapters here leave alone: peft refuses the latter.
_UNTAKEN: Final = ("lm_head", "mamba.out_proj")


def save_adapter(checkpoint: Path, path: Path, seed: int, **lora: Any) -> Path:
    """A random adapter of a checkpoint, as peft saves it; of all linears but the lm_head where nothing else is said."""
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    targets = adapter_targets(model).items()
    every = [name for name, target in targets if not target.embedding and not name.endswith(_UNTAKEN)]
    if getattr(model.config, "num_experts", 0):  # peft makes what it finds beside stacked experts into parameters
        every = [name for name in every if ".mlp." not in name]
    made = get_peft_model(model, LoraConfig(**{"lora_alpha": 8, "r": 4, "target_modules": every, **lora}))
    random = torch.Generator().manual_seed(seed)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=random)
    made.save_pretrained(str(path))
    return path


def peft_model(checkpoint: Path, adapters: Mapping[str, Path]) -> Any:
    """transformers' model of a checkpoint with these adapters beside it, by name; in fp32."""
    (first, path), *others = adapters.items()
    model = PeftModel.from_pretrained(reference_model(checkpoint), path, adapter_name=first)
    for name, directory in others:
        model.load_adapter(directory, adapter_name=name)
    return model.eval()


@torch.inference_mode()
def mixed_logits(model: Any, texts: Sequence[list[int]], names: Sequence[str]) -> Tensor:
    """(texts, tokens, vocabulary): logits of texts of one length, each with the adapter of its name or `BASE`."""
    if model.config.model_type in _ONE_BY_ONE:
        return torch.cat([_logits(model, text, name) for text, name in zip(texts, names, strict=True)])
    logits: Tensor = model(torch.tensor(texts), adapter_names=list(names)).logits
    return logits


def _logits(model: Any, text: list[int], name: str) -> Tensor:
    if name != BASE:
        model.set_adapter(name)
    with model.disable_adapter() if name == BASE else nullcontext():
        logits: Tensor = model(torch.tensor([text])).logits
    return logits


def prompts(count: int, length: int = 17) -> list[list[int]]:
    """Random texts of the checkpoints' vocabulary."""
    random = torch.Generator().manual_seed(3)
    return torch.randint(2, VOCABULARY, (count, length), generator=random).tolist()


def request(number: int, prompt: list[int], adapter: str) -> SequenceRequest:
    """A few greedy tokens after a prompt, with an adapter or `BASE`, and the log-probabilities of both."""
    sampling = SamplingParams(max_new_tokens=_NEW, logprobs=True, ignore_eos=True, prompt_logprobs=0)
    return SequenceRequest(prompt, sampling, id=number, adapter="" if adapter == BASE else adapter)


def generated(batch: RollingBatch, texts: Sequence[list[int]], names: Sequence[str]) -> list[list[TokenEvent]]:
    """What a batch generates after these texts at once, each with the adapter of its name or `BASE`."""
    for number, (prompt, name) in enumerate(zip(texts, names, strict=True), 1):
        batch.add(request(number, prompt, name))
    events = run_to_end(batch)
    return [events[number] for number in range(1, len(texts) + 1)]


def logprobs_of(events: Sequence[TokenEvent]) -> Tensor:
    """Log-probabilities of the prompt's tokens but the first, and of those generated."""
    prompt = [entry[0] for entry in events[0].prompt[1:]]
    return torch.tensor([*prompt, *(event.logprob for event in events)])


def check_texts(
    model: Any, texts: Sequence[list[int]], names: Sequence[str], made: Sequence[Sequence[TokenEvent]]
) -> None:
    """Check that greedy texts are peft's, and that logits are, as far as log-probabilities show them."""
    choices, logprobs = theirs(model, texts, names, made)
    assert choices == [[event.token_id for event in events] for events in made]
    torch.testing.assert_close(torch.stack([*map(logprobs_of, made)]), logprobs, rtol=1e-4, atol=1e-4)


def theirs(
    model: Any, texts: Sequence[list[int]], names: Sequence[str], made: Sequence[Sequence[TokenEvent]]
) -> tuple[list[list[int]], Tensor]:
    """What a model of peft's makes of these texts and what was generated after them.

    Returns:
        Its choice at the place of each generated token, and log-probabilities as `logprobs_of` has them.
    """
    whole = [prompt + [event.token_id for event in events] for prompt, events in zip(texts, made, strict=True)]
    logits = mixed_logits(model, whole, names)
    logprobs = logits.log_softmax(-1)[:, :-1].gather(2, torch.tensor(whole)[:, 1:, None])[..., 0]
    return logits[:, len(texts[0]) - 1 : -1].argmax(-1).tolist(), logprobs
