"""What a checkpoint is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from djl_python.config import TASKS, TEXT_GENERATION, ModelConfig, Options, Task, check_is_for, task_of, tasks
from djl_python.core.errors import ModelLoadError
from djl_python.core.registry import load_object
from djl_python.handler import Handler


def checkpoint(path: Path, config: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "named", "task"),
    [
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "BertForMaskedLM", "fill-mask"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification",
            "text-classification",
        ),
        ({"architectures": ["RobertaForQuestionAnswering"]}, "RobertaForQuestionAnswering", "question-answering"),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "BertModel", "feature-extraction"),
        ({"model_type": "xlm-roberta"}, "model_type xlm-roberta", "feature-extraction"),
        (
            {"architectures": ["BartForConditionalGeneration"], "model_type": "bart", "is_encoder_decoder": True},
            "BartForConditionalGeneration",
            "text2text-generation",
        ),
    ],
)
def test_a_model_for_something_else_is_refused(tmp_path: Path, config: dict[str, Any], named: str, task: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        check_is_for(TEXT_GENERATION, checkpoint(tmp_path, config))
    assert f"{tmp_path}: {named} (config.json) is a model for {task}, and" in caught.value.message
    served = "option.entryPoint=djl_python.huggingface and option.rolling_batch=disable it is served, one request at a"
    by_hand = "A model.py with handle(inputs) can serve it"
    assert (by_hand if task == "feature-extraction" else served) in caught.value.message


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama"},
        {"architectures": None},
        {"architectures": [5], "model_type": 7},
        {"architectures": ["BertLMHeadModel"], "model_type": "bert", "is_decoder": True},
        {"architectures": ["TheirOwnModel"], "auto_map": {"AutoModelForCausalLM": "modeling.TheirOwnModel"}},
    ],
)
def test_what_may_generate_text(tmp_path: Path, config: dict[str, Any]) -> None:
    check_is_for(TEXT_GENERATION, checkpoint(tmp_path, config))
    check_is_for(TEXT_GENERATION, tmp_path / "nowhere")


def test_none_of_transformers_decoders_is_taken_for_something_else(tmp_path: Path) -> None:
    for names in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        for model_type, architecture in names.items():
            config = {"architectures": [architecture], "model_type": model_type, "is_decoder": True}
            check_is_for(TEXT_GENERATION, checkpoint(tmp_path, config))


def test_the_handler_of_a_task() -> None:
    for task in ("", "text-generation"):
        assert task_of(ModelConfig(name="m", option=Options(task=task))) is TASKS["text-generation"]
    with pytest.raises(ModelLoadError) as caught:
        task_of(ModelConfig(name="m", option=Options(task="text-embedding"), provenance={"option.task": "here:1"}))
    assert caught.value.message == (
        "here:1: option.task=text-embedding: no built-in handler does that; expected text-generation. A model.py with "
        "handle(inputs) can serve it, with transformers' AutoModel for example"
    )
    with pytest.raises(ModelLoadError, match=r"option.rolling_batch=disable it is served"):
        task_of(ModelConfig(name="m", option=Options(task="summarization")))
    with pytest.raises(ModelLoadError, match=r"can serve it, with transformers' AutoModel for example"):
        task_of(ModelConfig(name="m", option=Options(task="text-embedding")))
    with pytest.raises(ModelLoadError, match=r"can serve it$"):
        task_of(ModelConfig(name="m", option=Options(task="fortune-telling")))


def test_what_could_serve_a_task_is_there() -> None:
    assert [name for name in tasks._CLASSES.values() if not hasattr(transformers, name)] == []
    assert {*tasks._HEADS.values(), "text2text-generation", "feature-extraction"} <= tasks._CLASSES.keys()


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: str(task.name))
def test_what_a_row_names_is_there(task: Task) -> None:
    assert issubclass(load_object(task.handler), Handler)
    config = ModelConfig(name="m", option=Options(model_id="owner/name"))
    assert load_object(task.check)(config) is None
    assert load_object(task.without_effect)(config) == []
