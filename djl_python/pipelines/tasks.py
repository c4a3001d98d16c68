"""Makes the pipeline for a task: transformers' own, or ours for what transformers 5 has no pipeline for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..config.tasks import task_named
from ..properties_manager.hf_properties import HuggingFaceProperties
from .loading import device_of, load_model, load_tokenizer, model_arguments, pipeline_tasks
from .question_answering import QuestionAnswering
from .text_generation import DEFAULT_MAX_NEW_TOKENS, GenerationArguments, TextGeneration

#: Tasks of encoder-decoder models -> the key of their answers' text.
_SEQ2SEQ: Final[Mapping[str, str]] = {
    "summarization": "summary_text",
    "text2text-generation": "generated_text",
    "translation": "translation_text",
}
#: What transformers makes of a checkpoint that does not say how long its answers are.
_DEFAULT_MAX_LENGTH: Final = 20
#: Tasks that transformers has no pipeline for -> the one of the models that do them.
_PIPELINES: Final[Mapping[str, str]] = {
    "sentence-similarity": "feature-extraction",
    "text-ranking": "text-classification",
}


class Seq2Seq:
    """`pipeline(texts, **parameters)` -> an object with the generated text for each."""

    def __init__(self, task: str, model: Any, tokenizer: Any) -> None:
        self.task = task
        self.model = model
        self.tokenizer = tokenizer
        lengths = model.generation_config
        says = lengths.max_new_tokens is not None or lengths.max_length not in (None, _DEFAULT_MAX_LENGTH)
        self._most = None if says else DEFAULT_MAX_NEW_TOKENS

    def __call__(self, inputs: str | Sequence[str], **parameters: Any) -> list[dict[str, str]]:
        import torch

        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        wanted = GenerationArguments.of(parameters, max_new_tokens=self._most)
        encoded = self.tokenizer(texts, return_tensors="pt", padding=True, truncation=True).to(self.model.device)
        with torch.inference_mode():
            tokens = self.model.generate(
                input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], **wanted.arguments
            )
        answers = self.tokenizer.batch_decode(tokens[:: len(tokens) // len(texts)], skip_special_tokens=True)
        return [{_SEQ2SEQ[self.task]: answer} for answer in answers]


class OnePerInput:
    """transformers' pipeline of fill-mask, which unwraps the result of a list of one."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def __call__(self, inputs: Sequence[Any], **parameters: Any) -> list[Any]:
        return [self._pipeline(element, **parameters) for element in inputs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


def make_pipeline(task: str, path: str, configs: HuggingFaceProperties, stops: Sequence[str] = ()) -> Any:
    """A pipeline, called with a list of inputs and parameters by name; with `model`, `tokenizer` and `task`.

    Args:
        path: the checkpoint's directory.
        stops: stop sequences of every request to generate text.

    Raises:
        ValueError: there is none for the task; names those that there are.
    """
    named, task = task, task_named(task)
    task = _PIPELINES.get(task, task)
    if task in _OURS:
        return _OURS[task](path, configs, stops)
    if task not in pipeline_tasks():
        raise ValueError(f"option.task={named}: expected one of {', '.join(sorted(pipeline_tasks() | _OURS.keys()))}")
    import transformers

    arguments = model_arguments(configs)
    placed = {} if "device_map" in arguments else {"device": device_of(configs)}
    trust, dtype = arguments.pop("trust_remote_code"), arguments.pop("dtype", "auto")
    made = transformers.pipeline(
        task, model=path, trust_remote_code=trust, dtype=dtype, model_kwargs=arguments, **placed
    )
    return OnePerInput(made) if task == "fill-mask" else made


def _text_generation(path: str, configs: HuggingFaceProperties, stops: Sequence[str]) -> TextGeneration:
    model = load_model(path, configs, "AutoModelForCausalLM")
    return TextGeneration(model, load_tokenizer(path, configs, for_decoder=True), stops)


def _question_answering(path: str, configs: HuggingFaceProperties, _: Sequence[str]) -> QuestionAnswering:
    model = load_model(path, configs, "AutoModelForQuestionAnswering")
    return QuestionAnswering(model, load_tokenizer(path, configs))


def _seq2seq(task: str) -> Callable[..., Seq2Seq]:
    def make(path: str, configs: HuggingFaceProperties, _: Sequence[str]) -> Seq2Seq:
        return Seq2Seq(task, load_model(path, configs, "AutoModelForSeq2SeqLM"), load_tokenizer(path, configs))

    return make


#: The tasks that are not transformers' business, or not in a batch of texts of different lengths.
_OURS: Final[Mapping[str, Callable[[str, HuggingFaceProperties, Sequence[str]], Any]]] = {
    "question-answering": _question_answering,
    "text-generation": _text_generation,
    **{task: _seq2seq(task) for task in _SEQ2SEQ},
}
