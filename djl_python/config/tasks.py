"""What a checkpoint is for, as its config.json says. Runs in every process; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..core.errors import ModelLoadError
from .model import read_json_object

#: The end of an architecture's name in transformers -> what such a model does, by the name of transformers' pipeline.
_HEADS: Final[Mapping[str, str]] = {
    "ForMaskedLM": "fill-mask",
    "ForPreTraining": "fill-mask",
    "ForNextSentencePrediction": "next-sentence-prediction",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "image-segmentation",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
}
#: Encoders that transformers would also run as decoders. With `is_decoder` they were trained as such.
_ENCODERS: Final = frozenset(
    "bert big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta roberta-prelayernorm roc_bert "
    "roformer xlm-roberta xlm-roberta-xl xmod".split()
)


def check_generates_text(path: Path) -> None:
    """Refuse a checkpoint that is not for generating text, as far as config.json tells: it would answer nonsense.

    Raises:
        ModelLoadError: names the architecture and what could serve it.
    """
    config = read_json_object(path / "config.json")
    task = _other_task(config)
    if task:
        architecture = ", ".join(_architectures(config)) or f"model_type {config.get('model_type')}"
        raise ModelLoadError(
            f"{path}: {architecture} (config.json) is a model for {task}, and the built-in handler only generates "
            f"text, with decoders such as LlamaForCausalLM. A model.py with handle(inputs) can serve it, with "
            f"transformers' pipeline {task!r} for example"
        )


def _other_task(config: Mapping[str, Any]) -> str:
    """What else than generating text with a decoder the model does; "": nothing that its configuration shows."""
    for name in _architectures(config):
        for head, task in _HEADS.items():
            if name.endswith(head):
                return task
    if config.get("is_encoder_decoder") is True:
        return "text2text-generation"
    if str(config.get("model_type")) in _ENCODERS and config.get("is_decoder") is not True:
        return "feature-extraction"
    return ""


def _architectures(config: Mapping[str, Any]) -> list[str]:
    named = config.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
