"""Loads a checkpoint's configuration, tokenizer and model with transformers, as the settings say."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final

from ..config.tasks import HEADS
from ..properties_manager.hf_properties import HuggingFaceProperties
from ..sources import local_path

#: The end of an architecture's name -> what the model does, by the name of transformers' pipeline; the first match.
ARCHITECTURES_2_TASK: Final[dict[str, str]] = {
    "TapasForQuestionAnswering": "table-question-answering",
    **HEADS,
    "ForCausalLM": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
    "EncoderDecoderModel": "text2text-generation",
    "GPT2LMHeadModel": "text-generation",
    "T5WithLMHeadModel": "text2text-generation",
    "BloomModel": "text-generation",
}


def checkpoint_of(configs: HuggingFaceProperties) -> str:
    """The local directory of a checkpoint, which is fetched if it is not here yet.

    Raises:
        ConfigError: the checkpoint does not exist, or can't be fetched.
    """
    model_dir = Path(configs.model_dir or ".")
    named = configs.model_id_or_path
    if Path(named).is_dir():  # DJL's handlers are run in their model's directory, these perhaps in another
        return named
    return str(local_path(named, configs.revision or "", model_dir))


def load_config(path: str, configs: HuggingFaceProperties) -> Any:
    """A checkpoint's configuration."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(path, trust_remote_code=configs.trust_remote_code)


def task_of_architectures(config: Any) -> str:
    """What a checkpoint is for.

    Raises:
        ValueError: its architecture does not tell.
    """
    architecture = next(iter(config.architectures or ()), "")
    for end, task in ARCHITECTURES_2_TASK.items():
        if architecture.endswith(end):
            return task
    raise ValueError(f"Task couldn't be inferred from {architecture or 'config.json'}: set option.task")


def load_tokenizer(path: str, configs: HuggingFaceProperties, *, for_decoder: bool = False) -> Any:
    """A checkpoint's tokenizer. One without padding pads with the end token; `for_decoder`, on the left."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=configs.trust_remote_code)
    if for_decoder:
        tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(path: str, configs: HuggingFaceProperties, auto_class: str) -> Any:
    """A checkpoint's model, by one of transformers' auto classes, on the device of the settings.

    Raises:
        ValueError, OSError: transformers can't load it.
        ImportError: bitsandbytes is not installed, and the settings want it.
    """
    import transformers

    model = getattr(transformers, auto_class).from_pretrained(path, **model_arguments(configs)).eval()
    return model if "device_map" in configs.kwargs else model.to(device_of(configs))


def model_arguments(configs: HuggingFaceProperties) -> dict[str, Any]:
    """The arguments of `from_pretrained` that the settings mean."""
    arguments = {name: value for name, value in configs.kwargs.items() if name != "revision"}
    bits = {name: arguments.pop(name) for name in ("load_in_4bit", "load_in_8bit") if name in arguments}
    if bits:
        from transformers import BitsAndBytesConfig

        arguments["quantization_config"] = BitsAndBytesConfig(**bits)
    return arguments


def device_of(configs: HuggingFaceProperties) -> str:
    """Where the model is to be."""
    return str(configs.device) if configs.device is not None else "cpu"


def parse_stop_sequence(text: str) -> list[str]:
    """The stop sequences of option.stop_sequence: `["a", "b"]`, in either kind of quotes.

    Raises:
        ValueError: it is no such list.
    """
    if not re.fullmatch(r"\s*\[.*\]\s*", text, re.DOTALL):
        raise ValueError(f"option.stop_sequence={text}: expected a list of texts in quotes")
    matches = re.findall(
        r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')\s*(?:,|\]\s*$)""", text.strip()[1:], re.DOTALL
    )
    return [double or single for double, single in matches]


@functools.cache
def pipeline_tasks() -> frozenset[str]:
    """The tasks that transformers' `pipeline` has."""
    from transformers.pipelines import SUPPORTED_TASKS, TASK_ALIASES

    return frozenset({*SUPPORTED_TASKS, *TASK_ALIASES})
