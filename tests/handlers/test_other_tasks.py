"""A task that is not text generation, through the same seams: its parser, its formatter, and the writer of answers."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from djl_python.config import ModelConfig
from djl_python.core.errors import PayloadError, ServingError
from djl_python.dialects.shared.base import AnswerFormatter, ParsedTask
from djl_python.handlers.answer import AnswerWriter
from djl_python.inputs import Input
from tests.dialects.exchange import inputs
from tests.handlers.harness import FakeReply, PlainDialect

Vector = list[float]


class VectorFormatter(AnswerFormatter[Vector]):
    """A JSON array of the vectors."""

    stream = False

    def __init__(self) -> None:
        self.headers = {"content-type": "application/json"}
        self._vectors: list[Vector] = []

    def push(self, part: Vector, /) -> bytes:
        self._vectors.append(part)
        return b""

    def end(self) -> bytes:
        return msgspec.json.encode(self._vectors)

    def error(self, error: ServingError) -> bytes:
        return error.message.encode()


def read_texts(call: Input, model: ModelConfig) -> ParsedTask[str, Vector]:
    return ParsedTask(tuple(call.get_as_json()["inputs"]), VectorFormatter())


class EmbeddingDialect(PlainDialect):
    task_parsers: ClassVar = {("feature-extraction", "generate"): read_texts}


async def test_each_input_has_a_part_and_the_last_one_ends_the_answer() -> None:
    parsed = EmbeddingDialect().parse_task(
        "feature-extraction", inputs("generate", {"inputs": ["ab", "c"]}), ModelConfig(name="m")
    )
    reply = FakeReply()
    answer = AnswerWriter(parsed.formatter, reply, len(parsed.requests))
    for text in parsed.requests:
        assert not answer.done()
        answer.push([float(len(text))], last=True)
    await answer.wait()
    assert (reply.status, reply.body) == (200, b"[[2.0],[1.0]]")


@pytest.mark.parametrize(("task", "operation"), [("fill-mask", "generate"), ("feature-extraction", "tokenize")])
def test_a_path_that_is_not_for_the_models_task_says_so(task: str, operation: str) -> None:
    with pytest.raises(PayloadError, match=f"model 'm' is for {task}, and this path is not"):
        EmbeddingDialect().parse_task(task, inputs(operation, {"inputs": []}), ModelConfig(name="m"))
