"""What is said of a handler that was written for transformers 4."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import transformers
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pipelines import SUPPORTED_TASKS, TASK_ALIASES

from djl_python.usercode.transformers4 import ARGUMENTS, METHODS, NAMES, PIPELINES, gone_calls


def said(tmp_path: Path, source: str) -> tuple[list[str], list[str]]:
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
    refusals, remarks = said(tmp_path, source)
    assert refusals == [
        "model.py:2: transformers 5 has no AutoModelWithLMHead: use AutoModelForCausalLM, AutoModelForMaskedLM or "
        "AutoModelForSeq2SeqLM",
        "model.py:6: transformers 5 has no pipeline('question-answering'): use AutoModelForQuestionAnswering",
    ]
    assert remarks == [
        "model.py:4: transformers 5 has no argument use_auth_token of from_pretrained: token= takes its place",
        "model.py:5: transformers 5 has no method encode_plus: tokenizer(text) takes its place",
        "model.py:7: transformers 5 has no pipeline('conversational'): use pipeline('text-generation') with a list of "
        "messages",
        "model.py:8: transformers 5 has no TRANSFORMERS_CACHE: the environment variable HF_HOME takes its place",
    ]


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("from transformers import AutoModelWithLMHead", True),
        ("try:\n    from transformers import AutoModelWithLMHead\nexcept ImportError:\n    pass", False),
        ("import transformers\nmodel.greedy_search(1)", True),
        ("import transformers\nself.language_model.beam_search(1)", True),
        ("import transformers\nself.beam_search(1)\ndecoder.beam_search(1)", False),  # another's, perhaps
    ],
)
def test_calls_that_surely_fail_are_refused(source: str, refused: bool, tmp_path: Path) -> None:
    assert bool(said(tmp_path, source)[0]) is refused


@pytest.mark.parametrize(
    "source",
    [
        "from transformers import AutoTokenizer\nids = AutoTokenizer.from_pretrained('m')('x')\n",
        "import mine\nmine.encode_plus('x')\n",  # not of transformers
        "from transformers import pipeline\npipeline('text-classification')\n",
        "this is no Python\n",
    ],
)
def test_calls_that_still_work_are_not_named(source: str, tmp_path: Path) -> None:
    assert said(tmp_path, source) == ([], [])
    assert gone_calls(tmp_path / "missing.py") == ([], [])


@pytest.mark.parametrize("name", NAMES)
def test_transformers_lacks_the_listed_names(name: str) -> None:
    assert not hasattr(transformers, name)


@pytest.mark.parametrize("name", METHODS)
def test_transformers_lacks_the_listed_methods(name: str) -> None:
    assert not any(hasattr(one, name) for one in (PreTrainedTokenizerBase, PreTrainedModel, GenerationMixin))


def test_transformers_lacks_the_listed_pipelines() -> None:
    assert PIPELINES.keys().isdisjoint({*SUPPORTED_TASKS, *TASK_ALIASES})


def test_from_pretrained_lacks_the_listed_arguments() -> None:
    source = inspect.getsource(PreTrainedModel.from_pretrained)
    assert [name for name in ARGUMENTS if f'kwargs.pop("{name}"' in source] == []
