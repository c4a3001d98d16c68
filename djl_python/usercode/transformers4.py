"""What a user's file calls of transformers 4 that transformers 5 lacks, found by reading the source.

Runs in the front end, for `djl-serving check`, and in the worker before the file is imported. A handler written for
transformers 4 often fails at its first request only, so a warning at load names the call and its successor. Calls are
recognized by their names alone: a warning may be wrong, and refuses nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

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


def gone_calls(path: Path) -> list[str]:
    """Sentences about what the file uses of transformers and will not find, in the order of its lines.

    A file that can't be read or parsed has none: its import says so.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    if not any(_imports_transformers(node) for node in ast.walk(tree)):
        return []
    found = sorted({(node.lineno, *gone) for node in ast.walk(tree) for gone in _gone(node)})  # type: ignore[attr-defined]
    return [f"{path.name}:{line}: transformers 5 has no {name}: use {instead}" for line, name, instead in found]


def _imports_transformers(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] == "transformers" for alias in names)
        case ast.ImportFrom(module=str(module)):
            return module.partition(".")[0] == "transformers"
    return False


def _gone(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(what is gone, what to use instead) of one node of the source."""
    match node:
        case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "transformers":
            yield from ((alias.name, NAMES[alias.name]) for alias in names if alias.name in NAMES)
        case ast.Attribute(value=ast.Name("transformers"), attr=name) if name in NAMES:
            yield name, NAMES[name]
        case ast.Attribute(attr=name) if name in METHODS:
            yield f"method {name}", METHODS[name]
        case ast.Call(func=ast.Name("pipeline") | ast.Attribute(attr="pipeline")):
            tasks = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "task")]
            for task in tasks:
                if isinstance(task, ast.Constant) and (instead := PIPELINES.get(str(task.value))):
                    yield f"pipeline({task.value!r})", instead
        case ast.Call(func=ast.Attribute(attr="from_pretrained")):
            for keyword in node.keywords:
                if instead := ARGUMENTS.get(keyword.arg or ""):
                    yield f"argument {keyword.arg} of from_pretrained", instead
