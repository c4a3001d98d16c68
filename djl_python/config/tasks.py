"""What models do: the table of tasks that built-in handlers serve, and what a checkpoint is for.

Runs in every process; imports no torch, and no handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..core.errors import ModelLoadError
from .model import ModelConfig, read_json_object


@dataclass(frozen=True)
class Task:
    """A row: what models do, and which built-in handler does it with them.

    Attributes:
        name: by the name of transformers' pipeline.
        handler: "module:Class" of a `handler.Handler`, imported in the worker.
        check: "module:function", called with the ModelConfig in the front end, and by the handler: it refuses what the
            directory and the settings show can't be served, with a ModelLoadError or a ConfigError.
        without_effect: "module:function", likewise: sentences about settings that have no effect as configured.
    """

    name: str
    handler: str
    check: str
    without_effect: str


#: What does a task, by the names of transformers' classes.
_CLASSES: Final[Mapping[str, str]] = {
    "audio-classification": "AutoModelForAudioClassification",
    "automatic-speech-recognition": "AutoModelForSpeechSeq2Seq",
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
    "image-segmentation": "AutoModelForSemanticSegmentation",
    "multiple-choice": "AutoModelForMultipleChoice",
    "next-sentence-prediction": "AutoModelForNextSentencePrediction",
    "object-detection": "AutoModelForObjectDetection",
    "question-answering": "AutoModelForQuestionAnswering",
    "text-classification": "AutoModelForSequenceClassification",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "token-classification": "AutoModelForTokenClassification",
}
#: DJL's, vLLM's and others' names of tasks.
_ALIASES: Final[Mapping[str, str]] = {
    "classify": "text-classification",
    "conversational": "text-generation",
    "embed": "feature-extraction",
    "embedding": "feature-extraction",
    "generate": "text-generation",
    "sentiment-analysis": "text-classification",
    "summarization": "text2text-generation",
    "text-embedding": "feature-extraction",
    "text_embedding": "feature-extraction",
    "transcription": "automatic-speech-recognition",
    "translation": "text2text-generation",
}
#: What DJL's HuggingFaceService (`djl_python.huggingface`) does beside generating text.
_OF_THE_SERVICE: Final = frozenset(
    "fill-mask question-answering text-classification text2text-generation token-classification".split()
)
#: Values of option.entryPoint for the built-in handler: our name, and the names of LMI's handlers. The rest of its
#: values name code of the user's.
BUILT_IN_HANDLERS: Final = frozenset(
    {
        "text-generation",
        "djl_python.deepspeed",
        "djl_python.fastertransformer",
        "djl_python.huggingface",
        "djl_python.lmi_trtllm.trtllm_async_service",
        "djl_python.lmi_vllm.vllm_async_service",
        "djl_python.tensorrt_llm",
        "djl_python.transformers-neuronx",
        "djl_python.transformers_neuronx",
    }
)
#: LMI's handlers of models that make images.
IMAGE_HANDLERS: Final = frozenset({"djl_python.stable-diffusion", "djl_python.stable_diffusion_inf2"})
#: Those of them that are LMI's Transformers handler, or stand for none.
_ENTRY_POINTS_OF_THE_SERVICE: Final = frozenset({"", "djl_python.huggingface", "djl_python.deepspeed"})
TEXT_GENERATION: Final = "text-generation"
TASKS: Final[Mapping[str, Task]] = {
    task.name: task
    for task in (
        Task(
            TEXT_GENERATION,
            handler="djl_python.handlers.text_generation:TextGenerationHandler",
            check="djl_python.handlers.checks:check",
            without_effect="djl_python.handlers.checks:without_effect",
        ),
    )
}

#: The end of an architecture's name in transformers -> what such a model does, by the name of transformers' pipeline.
HEADS: Final[Mapping[str, str]] = {
    "ForMaskedLM": "fill-mask",
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
#: With those that DJL's table lacks.
_HEADS: Final[Mapping[str, str]] = {
    **HEADS,
    "ForPreTraining": "fill-mask",
    "ForNextSentencePrediction": "next-sentence-prediction",
}
#: Encoders that transformers would also run as decoders. With `is_decoder` they were trained as such.
_ENCODERS: Final = frozenset(
    "bert big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta roberta-prelayernorm roc_bert "
    "roformer xlm-roberta xlm-roberta-xl xmod".split()
)


def task_of(config: ModelConfig) -> Task:
    """The row of the task that `option.task` names; text generation where it names none.

    Raises:
        ModelLoadError: no built-in handler does this; says which tasks there are.
    """
    name = config.option.task or TEXT_GENERATION
    known = _ALIASES.get(name, name)
    if known not in TASKS:
        raise ModelLoadError(
            f"{config.said('option.task', name)}: no built-in handler does that; expected {', '.join(TASKS)}. "
            f"{_could_serve(known)}"
        )
    return TASKS[known]


def service_takes(config: ModelConfig) -> bool:
    """Whether DJL's HuggingFaceService may answer, which is so where nothing names an engine that batches."""
    option = config.option
    batches = config.properties.get("rolling_batch", "").strip().lower() not in ("", "auto", "disable")
    return not (batches or option.async_mode) and option.entry_point in _ENTRY_POINTS_OF_THE_SERVICE


def service_task(config: ModelConfig, path: Path | None) -> str:
    """The task that DJL's HuggingFaceService does with the model, where the built-in handler doesn't; "" if it does.

    As in LMI, whose Transformers handler takes such models.

    Args:
        path: the checkpoint's directory; None: it is not here, and `option.task` alone tells.

    Raises:
        ModelLoadError: config.json is broken.
    """
    if not service_takes(config):
        return ""
    task = _ALIASES.get(config.option.task, config.option.task)
    if not task and path is not None:
        task = _other_task(read_json_object(path / "config.json"))
    return task if task in _OF_THE_SERVICE else ""


def check_is_for(task: str, path: Path) -> None:
    """Refuse a checkpoint that is not for a task, as far as config.json tells: it would answer nonsense.

    Raises:
        ModelLoadError: names the architecture and what could serve it.
    """
    config = read_json_object(path / "config.json")
    other = _other_task(config)
    if other and other != task:
        architecture = ", ".join(_architectures(config)) or f"model_type {config.get('model_type')}"
        raise ModelLoadError(
            f"{path}: {architecture} (config.json) is a model for {other}, and the built-in handler only generates "
            f"text, with decoders such as LlamaForCausalLM. {_could_serve(other)}"
        )


def _could_serve(task: str) -> str:
    if task in _OF_THE_SERVICE:
        return (
            "With option.entryPoint=djl_python.huggingface and option.rolling_batch=disable it is served, one request "
            "at a time"
        )
    example = f", with transformers' {_CLASSES[task]} for example" if task in _CLASSES else ""
    return f"A model.py with handle(inputs) can serve it{example}"


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
