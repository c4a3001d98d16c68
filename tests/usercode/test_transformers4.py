"""What is said of a handler that was written for transformers 4."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import transformers
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pipelines import SUPPORTED_TASKS, TASK_ALIASES

from djl_python.usercode.transformers4 import ARGUMENTS, METHODS, NAMES, PIPELINES, gone_calls


def said(tmp_path: Path, source: str) -> list[str]:
    path = tmp_path / "model.py"
    path.write_text(source)
    return gone_calls(path)


def test_each_call_is_named_with_its_line_and_its_successor(tmp_path: Path) -> None:
    source = """import transformers
from transformers import AutoTokenizer, AutoModelWithLMHead, pipeline

tokenizer = AutoTokenizer.from_pretrained("m", use_auth_token=True)
ids = tokenizer.encode_plus("x", return_tensors="pt")
answers = pipeline("question-answering", model="m")
talk = transformers.pipeline(task="conversational")
cache = transformers.TRANSFORMERS_CACHE
"""
    assert said(tmp_path, source) == [
        "model.py:2: transformers 5 has no AutoModelWithLMHead: use AutoModelForCausalLM, AutoModelForMaskedLM or "
        "AutoModelForSeq2SeqLM",
        "model.py:4: transformers 5 has no argument use_auth_token of from_pretrained: use token=",
        "model.py:5: transformers 5 has no method encode_plus: use tokenizer(text)",
        "model.py:6: transformers 5 has no pipeline('question-answering'): use AutoModelForQuestionAnswering",
        "model.py:7: transformers 5 has no pipeline('conversational'): use pipeline('text-generation') with a list of "
        "messages",
        "model.py:8: transformers 5 has no TRANSFORMERS_CACHE: use the environment variable HF_HOME",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "from transformers import AutoTokenizer\nids = AutoTokenizer.from_pretrained('m')('x')\n",
        "import mine\nmine.encode_plus('x')\n",  # not of transformers
        "from transformers import pipeline\npipeline('text-classification')\n",
        "this is no Python\n",
    ],
)
def test_what_is_still_there_is_not_named(source: str, tmp_path: Path) -> None:
    assert said(tmp_path, source) == []
    assert gone_calls(tmp_path / "missing.py") == []


@pytest.mark.parametrize("name", NAMES)
def test_these_names_are_gone(name: str) -> None:
    assert not hasattr(transformers, name)


@pytest.mark.parametrize("name", METHODS)
def test_these_methods_are_gone(name: str) -> None:
    assert not any(hasattr(one, name) for one in (PreTrainedTokenizerBase, PreTrainedModel, GenerationMixin))


def test_these_pipelines_are_gone() -> None:
    assert PIPELINES.keys().isdisjoint({*SUPPORTED_TASKS, *TASK_ALIASES})


def test_these_arguments_are_gone() -> None:
    source = inspect.getsource(PreTrainedModel.from_pretrained)
    assert [name for name in ARGUMENTS if f'kwargs.pop("{name}"' in source] == []
