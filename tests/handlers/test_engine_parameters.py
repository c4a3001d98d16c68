"""What an engine can't do is said, or refused where the answer would not be what was asked for."""

from __future__ import annotations

import pytest

from djl_python.config import Options
from djl_python.core.errors import ParameterError
from djl_python.core.types import GenerateRequest, Grammar, SamplingParams
from djl_python.engine.row import ALL_PARAMETERS
from djl_python.handlers.preparation import Preparation
from djl_python.testing import write_byte_tokenizer
from djl_python.text.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("tokenizer")))


async def ignored(
    tokenizer: Tokenizer, sampling: SamplingParams, *, lacks: set[str], option: Options
) -> tuple[str, ...]:
    preparation = Preparation(tokenizer, option, 100, parameters=ALL_PARAMETERS - lacks)
    (prepared,) = await preparation.prepare([GenerateRequest(prompt="hello", sampling=sampling)], long=False)
    names: tuple[str, ...] = prepared.request.ignored
    return names


async def test_parameters_that_the_engine_lacks_are_reported_as_ignored(tokenizer: Tokenizer) -> None:
    asked = SamplingParams(max_new_tokens=5, do_sample=True, typical_p=0.9, top_k=3, seed=7)
    lacks = {"typical_p", "min_p", "seed"}
    assert await ignored(tokenizer, asked, lacks=lacks, option=Options()) == ("typical_p",)
    assert await ignored(tokenizer, asked, lacks=set(), option=Options()) == ()


async def test_parameters_that_the_engine_lacks_are_refused_where_nothing_may_be_ignored(tokenizer: Tokenizer) -> None:
    asked = SamplingParams(max_new_tokens=5, typical_p=0.9)
    with pytest.raises(ParameterError, match="typical_p: the engine does not have it"):
        await ignored(tokenizer, asked, lacks={"typical_p"}, option=Options(unknown_parameters="error"))


async def test_a_grammar_is_never_ignored(tokenizer: Tokenizer) -> None:
    asked = SamplingParams(max_new_tokens=5, grammar=Grammar("regex", "a+", "response_format.value"))
    with pytest.raises(ParameterError, match=r"response_format\.value: the engine has no grammars"):
        await ignored(tokenizer, asked, lacks={"grammar"}, option=Options())
