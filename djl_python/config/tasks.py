"""What models do: the table of tasks that built-in handlers serve, and what a checkpoint is for.

Runs in every process; imports no torch, and no handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..core.errors import ModelLoadError
from .engines import BUILT_IN
from .model import ModelConfig, read_json_object


@dataclass(frozen=True)
class Task:
    """A row of the table: a task, its names, and the built-in handler that serves it.

    Attributes:
        name: by the name of transformers' pipeline.
        handler: "module:Class" of a `handler.Handler`, imported in the worker.
        check: "module:function", called with the ModelConfig in the front end, and by the handler: it refuses what the
            directory and the settings show can't be served, with a ModelLoadError or a ConfigError.
        without_effect: "module:function" of a function that returns sentences about settings without effect as
            configured.
    """

    name: str
    handler: str
    check: str
    without_effect: str


#: What does a task, by the names of transformers' classes.
MODEL_CLASSES: Final[Mapping[str, str]] = {
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
#: Names of tasks in DJL, LMI, vLLM, TEI and elsewhere, with - for _ -> transformers' or the hub's.
ALIASES: Final[Mapping[str, str]] = {
    "classifier": "text-classification",
    "classify": "text-classification",
    "conversational": "text-generation",
    "cross-encoder": "text-ranking",
    "embed": "feature-extraction",
    "embedding": "feature-extraction",
    "embeddings": "feature-extraction",
    "generate": "text-generation",
    "image-text-to-text": "text-generation",  # images too, where the checkpoint takes them
    "ner": "token-classification",
    "question-answer": "question-answering",
    "rerank": "text-ranking",
    "reranker": "text-ranking",
    "reranking": "text-ranking",
    "score": "text-ranking",
    "sentiment-analysis": "text-classification",
    "text-embedding": "feature-extraction",
    "text-embeddings": "feature-extraction",
    "text-similarity": "sentence-similarity",
    "transcription": "automatic-speech-recognition",
}
#: Tasks that are another one, whose answers have another key.
_FORMS: Final[Mapping[str, str]] = dict.fromkeys(("summarization", "translation"), "text2text-generation")
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
#: Values of option.rolling_batch that name the built-in engine.
_BUILT_IN_NAMES: Final = ("auto", "builtin")
#: Those of them that are LMI's Transformers handler, or stand for none.
_ENTRY_POINTS_OF_THE_SERVICE: Final = frozenset({"", "djl_python.huggingface", "djl_python.deepspeed"})
TEXT_GENERATION: Final = "text-generation"
#: What encoder-decoder models do, in the same requests and answers.
TEXT2TEXT_GENERATION: Final = "text2text-generation"
FEATURE_EXTRACTION: Final = "feature-extraction"
TEXT_RANKING: Final = "text-ranking"


def _of_generation(name: str) -> Task:
    """The row of a task of models that generate text."""
    return Task(
        name,
        handler="djl_python.handlers.text_generation:TextGenerationHandler",
        check="djl_python.handlers.checks:check",
        without_effect="djl_python.handlers.checks:without_effect",
    )


def _of_encoders(name: str) -> Task:
    """The row of a task of models that read whole texts."""
    return Task(
        name,
        handler="djl_python.handlers.encoding.handler:EncodingHandler",
        check="djl_python.handlers.encoding.checks:check",
        without_effect="djl_python.handlers.encoding.checks:without_effect",
    )


TASKS: Final[Mapping[str, Task]] = {
    task.name: task
    for task in (
        _of_generation(TEXT_GENERATION),
        _of_generation(TEXT2TEXT_GENERATION),
        _of_encoders(FEATURE_EXTRACTION),
        _of_encoders("sentence-similarity"),
        _of_encoders(TEXT_RANKING),
        _of_encoders("text-classification"),
        _of_encoders("zero-shot-classification"),
        _of_encoders("token-classification"),
        _of_encoders("question-answering"),
        _of_encoders("fill-mask"),
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
#: The task of each head, with those that DJL's table lacks.
TASKS_OF_HEADS: Final[Mapping[str, str]] = {
    **HEADS,
    "ForPreTraining": "fill-mask",
    "ForNextSentencePrediction": "next-sentence-prediction",
}
#: Encoders that transformers would also run as decoders. With `is_decoder` they were trained as such.
_ENCODERS: Final = frozenset(
    "bert big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta roberta-prelayernorm roc_bert "
    "roformer xlm-roberta xlm-roberta-xl xmod".split()
)
#: What is said of heads: with these a model is not one of embeddings, whatever files are beside it.
_CLASSIFIERS: Final = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
#: Ends of names that end as those of base models do, which have no head.
_NO_BASE: Final = ("HeadModel", "HeadsModel", "EncoderDecoderModel")
#: The end of the names of encoders that are a part of encoder-decoder models, such as T5EncoderModel.
_ENCODER_ALONE: Final = "EncoderModel"
_SENTENCE_TRANSFORMERS: Final = "modules.json"


def task_named(name: str) -> str:
    """The task with this name: transformers' name of the pipeline, the hub's tag, LMI's or TEI's name."""
    plain = name.strip().lower().replace("_", "-")
    return ALIASES.get(plain, plain)


def task_of(config: ModelConfig, path: Path | None = None) -> Task:
    """The row of the task that `option.task` names, or else that the checkpoint is for; text generation if none tells.

    Args:
        path: the checkpoint's directory; None: it is not here.

    Raises:
        ModelLoadError: no built-in handler does this; says which tasks there are. Or config.json is broken.
    """
    if config.option.task:
        name = task_named(config.option.task)
        name = TEXT_RANKING if name == FEATURE_EXTRACTION and config.option.reranking else _FORMS.get(name, name)
        if name not in TASKS:
            raise ModelLoadError(
                f"{config.cite('option.task', config.option.task)}: no built-in handler does that; expected "
                f"{', '.join(TASKS)}. {_could_serve(name)}"
            )
        return TASKS[name]
    task_name = "" if path is None else task_of_checkpoint(path)
    return TASKS.get(task_name, TASKS[TEXT_GENERATION])


def task_of_checkpoint(path: Path) -> str:
    """What a checkpoint is for, as far as its files tell; "": nothing else than generating text with a decoder.

    Raises:
        ModelLoadError: config.json is broken.
    """
    config = read_json_object(path / "config.json")
    is_classifier = any(name.endswith(_CLASSIFIERS) for name in _architectures(config))
    if not is_classifier and (path / _SENTENCE_TRANSFORMERS).is_file():
        return FEATURE_EXTRACTION
    return _other_task(config)


def service_takes(config: ModelConfig) -> bool:
    """Whether DJL's HuggingFaceService may answer: no engine of the user's own, and no code, is to."""
    option = config.option
    return ":" not in option.rolling_batch and option.entry_point in {"", *BUILT_IN_HANDLERS} - {TEXT_GENERATION}


def engine_asked(config: ModelConfig) -> str:
    """The setting that asks for an engine that batches, as it was made; "": none does."""
    option, named = config.option, config.properties.get("rolling_batch", "").strip()
    if named.lower() not in ("", "disable", *_BUILT_IN_NAMES):
        return config.cite("option.rolling_batch", named)
    if option.async_mode:
        return config.cite("option.async_mode", "true")
    if option.entry_point not in _ENTRY_POINTS_OF_THE_SERVICE:
        return config.cite("option.entryPoint", option.entry_point)
    return ""


def service_task(config: ModelConfig, path: Path | None) -> str:
    """The task that DJL's HuggingFaceService does with the model; "": a built-in handler, or nobody, does.

    The service does what it is named for (option.entryPoint), and what no built-in handler does. Encoder-decoder models
    are also its own with option.rolling_batch=disable, where another engine than the built-in one is asked for, which
    does not run them, and where option.task names a form of answer (`_FORMS`) and nothing asks for an engine.

    Args:
        path: the checkpoint's directory; None: it is not here, and `option.task` alone tells.

    Raises:
        ModelLoadError: config.json is broken.
    """
    if not service_takes(config):
        return ""
    named = task_named(config.option.task)
    task = _FORMS.get(named, named)
    if not task and path is not None:
        task = task_of_checkpoint(path)
    # In the service a model with one label is a classifier like any other.
    task = "text-classification" if task == TEXT_RANKING and config.option.entry_point else task
    if task == TEXT2TEXT_GENERATION:
        batch, used = config.properties.get("rolling_batch", "").strip().lower(), config.option.rolling_batch
        of_service = config.option.entry_point or used != BUILT_IN or (named in _FORMS and batch not in _BUILT_IN_NAMES)
        return task if engine_asked(config) or of_service else ""
    if engine_asked(config):
        return ""
    return task if task in _OF_THE_SERVICE and (config.option.entry_point or task not in TASKS) else ""


def service_remarks(config: ModelConfig) -> list[str]:
    """A sentence about the setting that asks for an engine, of a model that DJL's HuggingFaceService serves."""
    asked = engine_asked(config)
    why = (
        "it does not run encoder-decoder models; djl_python.huggingface serves it, one request at a time "
        "(option.rolling_batch=builtin batches)"
    )
    return [f"{asked} has no effect, also where that engine is installed: {why}"] if asked else []


def check_is_for(task: str, path: Path) -> None:
    """Refuse a checkpoint that is not for a task, as far as its files tell: it would answer nonsense.

    Raises:
        ModelLoadError: names the architecture and what could serve it.
    """
    other = task_of_checkpoint(path)
    if other and other != task:
        config = read_json_object(path / "config.json")
        architecture = ", ".join(_architectures(config)) or f"model_type {config.get('model_type')}"
        raise ModelLoadError(
            f"{path}: {architecture} (config.json) is a model for {other}, and this handler only generates text, with "
            f"models such as LlamaForCausalLM. {_could_serve(other)}"
        )


def _could_serve(task: str) -> str:
    if task in TASKS:
        return f"With option.task={task}, or none, it is served"
    if task in _OF_THE_SERVICE:
        return (
            "With option.entryPoint=djl_python.huggingface and option.rolling_batch=disable it is served, one request "
            "at a time"
        )
    example = f", with transformers' {MODEL_CLASSES[task]} for example" if task in MODEL_CLASSES else ""
    return f"A model.py with handle(inputs) can serve it{example}"


def _other_task(config: Mapping[str, Any]) -> str:
    """What else than generating text with a decoder the model does; "": nothing that its configuration shows."""
    for name in _architectures(config):
        for head, task in TASKS_OF_HEADS.items():
            if name.endswith(head):
                return TEXT_RANKING if task == "text-classification" and _labels(config) == 1 else task
    if any(name.endswith(_ENCODER_ALONE) for name in _architectures(config)):
        return FEATURE_EXTRACTION
    if config.get("is_encoder_decoder") is True:
        return TEXT2TEXT_GENERATION
    if config.get("use_bidirectional_attention") in (True, "all"):
        return FEATURE_EXTRACTION
    if str(config.get("model_type")) in _ENCODERS and config.get("is_decoder") is not True:
        return FEATURE_EXTRACTION
    if any(name.endswith("Model") and not name.endswith(_NO_BASE) for name in _architectures(config)):
        return "" if "auto_map" in config else FEATURE_EXTRACTION
    return ""


def _labels(config: Mapping[str, Any]) -> int | None:
    """How many labels a classifier has, where config.json says so."""
    names = config.get("id2label")
    count = len(names) if isinstance(names, dict) else config.get("num_labels")
    return count if isinstance(count, int) else None


def _architectures(config: Mapping[str, Any]) -> list[str]:
    named = config.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
