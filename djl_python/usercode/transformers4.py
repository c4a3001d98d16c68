"""What a user's file calls of transformers 4 that transformers 5 lacks, found by reading the source.

Runs in the front end, for `djl-serving check`, and in the worker before the file is imported. A handler written for
transformers 4 often fails at its first request only. So what has a successor is put back (`transformers4_shims`), which
a warning says, and the model is refused where it surely would fail: calls are recognized by their names alone, and one
in a `try`, or of an object that need be no model and no tokenizer, is only warned of.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .transformers4_shims import NAMES as PUT_BACK

#: Names of the package -> what to use.
NAMES: Final[Mapping[str, str]] = {
    "AdamW": "torch.optim.AdamW",
    "AutoModelForVision2Seq": "AutoModelForImageTextToText",
    "AutoModelWithLMHead": "AutoModelForCausalLM, AutoModelForMaskedLM or AutoModelForSeq2SeqLM",
    "CLIPFeatureExtractor": "CLIPImageProcessor",
    "Conversation": "a list of messages",
    "ConversationalPipeline": "pipeline('text-generation') with a list of messages",
    "FlaxAutoModel": "AutoModel",
    "LogitsWarper": "LogitsProcessor",
    "QuestionAnsweringPipeline": "AutoModelForQuestionAnswering",
    "SummarizationPipeline": "AutoModelForSeq2SeqLM",
    "TFAutoModel": "AutoModel",
    "TFAutoModelForCausalLM": "AutoModelForCausalLM",
    "TFAutoModelForSeq2SeqLM": "AutoModelForSeq2SeqLM",
    "TFAutoModelForSequenceClassification": "AutoModelForSequenceClassification",
    "TRANSFORMERS_CACHE": "the environment variable HF_HOME",
    "Text2TextGenerationPipeline": "AutoModelForSeq2SeqLM",
    "TranslationPipeline": "AutoModelForSeq2SeqLM",
    "ViTFeatureExtractor": "ViTImageProcessor",
}
#: Methods of tokenizers and models -> what to use. Others' objects have such names too: only files that import
#: transformers are looked at.
METHODS: Final[Mapping[str, str]] = {
    "as_target_tokenizer": "tokenizer(text_target=...)",
    "batch_encode_plus": "tokenizer(texts)",
    "beam_search": "model.generate(num_beams=...)",
    "build_inputs_with_special_tokens": "tokenizer(text)",
    "contrastive_search": "model.generate(penalty_alpha=..., top_k=...)",
    "encode_plus": "tokenizer(text)",
    "greedy_search": "model.generate(do_sample=False)",
    "prepare_seq2seq_batch": "tokenizer(texts, text_target=...)",
    "reverse_bettertransformer": "nothing: attention is fused as it is",
    "to_bettertransformer": "nothing: attention is fused as it is",
}
#: Tasks of `pipeline` -> what to use.
PIPELINES: Final[Mapping[str, str]] = {
    "conversational": "pipeline('text-generation') with a list of messages",
    "question-answering": "AutoModelForQuestionAnswering",
    "summarization": "AutoModelForSeq2SeqLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "translation": "AutoModelForSeq2SeqLM",
}
#: Arguments of `from_pretrained` -> what to use.
ARGUMENTS: Final[Mapping[str, str]] = {
    "load_in_4bit": "quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
    "load_in_8bit": "quantization_config=BitsAndBytesConfig(load_in_8bit=True)",
    "use_auth_token": "token=",
}
#: Names of variables that hold models and tokenizers.
_OWNERS: Final = re.compile("model|tokenizer", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class GoneCall:
    """A use of something that is gone.

    Attributes:
        line: where.
        name: the name alone.
        what: the name with what it is.
        instead: what to use.
        fails: whether it surely fails: nothing is put back in its place, and nothing catches the error.
    """

    line: int
    name: str
    what: str
    instead: str
    fails: bool


def gone_calls(path: Path) -> tuple[list[str], list[str]]:
    """(refusals, remarks): sentences about what the file uses of transformers that transformers 5 lacks, by its lines.

    Refusals are about what surely fails.

    A file that can't be read or parsed has none: its import says so.
    """
    if not _is_newer():
        return [], []
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return [], []
    if not any(_imports_transformers(node) for node in ast.walk(tree)):
        return [], []
    refusals: list[str] = []
    remarks: list[str] = []
    for call in sorted(set(_calls(tree))):
        file, line, what, successor = path.name, call.line, call.what, call.instead
        if call.name in PUT_BACK:
            remarks.append(f"{file}:{line}: transformers 5 has no {what}: {successor} takes its place")
        else:
            lines = refusals if call.fails else remarks
            lines.append(f"{file}:{line}: transformers 5 has no {what}: use {successor}")
    return refusals, remarks


def _is_newer() -> bool:
    """Whether this Python has transformers 5, or none."""
    try:
        return not importlib.metadata.version("transformers").startswith("4.")
    except importlib.metadata.PackageNotFoundError:
        return True


def _calls(node: ast.AST, *, caught: bool = False) -> Iterator[GoneCall]:
    """Uses below a node. `caught`: it is in the body of a `try` with an `except`."""
    for name, what, instead, surely in _gone(node):
        yield GoneCall(node.lineno, name, what, instead, surely and not caught)  # type: ignore[attr-defined]
    for field, value in ast.iter_fields(node):
        inside = caught or (field == "body" and isinstance(node, ast.Try) and bool(node.handlers))
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _calls(child, caught=inside)


def _imports_transformers(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] == "transformers" for alias in names)
        case ast.ImportFrom(module=str(module)):
            return module.partition(".")[0] == "transformers"
    return False


def _gone(node: ast.AST) -> Iterator[tuple[str, str, str, bool]]:
    """(name, the name with what it is, what to use instead, whether it is surely transformers') of one node."""
    match node:
        case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "transformers":
            yield from (
                (imported.name, imported.name, NAMES[imported.name], True)
                for imported in names
                if imported.name in NAMES
            )
        case ast.Attribute(value=ast.Name("transformers"), attr=name) if name in NAMES:
            yield name, name, NAMES[name], True
        case ast.Attribute(value=ast.Name("self"), attr=name) if name in METHODS:
            pass  # the handler's own
        case ast.Attribute(value=ast.Name(owner) | ast.Attribute(attr=owner), attr=name) if name in METHODS:
            yield name, f"method {name}", METHODS[name], _OWNERS.search(owner) is not None
        case ast.Attribute(attr=name) if name in METHODS:
            yield name, f"method {name}", METHODS[name], False
        case ast.Call(func=ast.Name("pipeline") | ast.Attribute(attr="pipeline")):
            tasks = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "task")]
            for task in tasks:
                if isinstance(task, ast.Constant) and (instead := PIPELINES.get(str(task.value))):
                    yield str(task.value), f"pipeline({task.value!r})", instead, isinstance(node.func, ast.Name)
        case ast.Call(func=ast.Attribute(attr="from_pretrained")):
            for keyword in node.keywords:
                if instead := ARGUMENTS.get(name := keyword.arg or ""):
                    yield name, f"argument {name} of from_pretrained", instead, True
