"""/pooling and /classify: request -> required answer, as vLLM's protocol says."""

from __future__ import annotations

import base64
import re
import struct
from typing import Any

import pytest

from djl_python.core.errors import ParameterError
from djl_python.dialects.openai.dialect import OpenAIDialect
from tests.dialects.exchange import task_answer
from tests.text_tasks import DIMENSIONS

OPENAI = OpenAIDialect()


def ask(task: str, operation: str, body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = task_answer(OPENAI, task, operation, body)
    return answer


def test_vectors() -> None:
    answer = ask("feature-extraction", "pooling", {"input": ["a", "b c"]})
    assert re.fullmatch(r"pool-[0-9a-f]{32}", answer["id"])
    assert [(one["index"], one["object"], len(one["data"])) for one in answer["data"]] == [
        (0, "pooling", DIMENSIONS),
        (1, "pooling", DIMENSIONS),
    ]
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_vectors_of_tokens() -> None:
    (one,) = ask("feature-extraction", "pooling", {"input": "a b", "task": "token_embed"})["data"]
    assert [len(row) for row in one["data"]] == [DIMENSIONS] * 4


def test_scores_of_labels() -> None:
    (one,) = ask("text-classification", "pooling", {"input": "a"})["data"]
    assert one["data"] == [0.25, 0.125, 0.625]
    (one,) = ask("text-classification", "pooling", {"input": "a", "encoding_format": "base64"})["data"]
    assert struct.unpack("<3f", base64.b64decode(one["data"])) == (0.25, 0.125, 0.625)


@pytest.mark.parametrize(("task", "asked"), [("feature-extraction", "classify"), ("text-classification", "embed")])
def test_a_task_that_the_model_does_not_do_is_refused(task: str, asked: str) -> None:
    with pytest.raises(ParameterError, match="task: expected "):
        ask(task, "pooling", {"input": "a", "task": asked})


def test_labels() -> None:
    answer = ask("text-classification", "classify", {"input": ["a", "b"]})
    assert re.fullmatch(r"classify-[0-9a-f]{32}", answer["id"])
    assert answer["data"] == [
        {"index": index, "label": "question", "probs": [0.25, 0.125, 0.625], "num_classes": 3} for index in range(2)
    ]
    answer = ask("text-classification", "classify", {"input": "a", "use_activation": False})
    assert answer["data"][0]["probs"] == [2.5, 1.25, 6.25]
