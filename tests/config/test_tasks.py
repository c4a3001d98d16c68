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
    by_the_service = "With option.entryPoint=djl_python.huggingface and option.rolling_batch=disable it is served, one"
    served = f"With option.task={task}, or none, it is served"
    assert (served if task in TASKS else by_the_service) in caught.value.message


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
def test_checkpoints_of_unknown_kinds_may_generate_text(tmp_path: Path, config: dict[str, Any]) -> None:
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
    for task in ("text-embedding", "text_embedding", "Embed", "feature-extraction"):
        assert task_of(ModelConfig(name="m", option=Options(task=task))) is TASKS["feature-extraction"]
    with pytest.raises(ModelLoadError) as caught:
        task_of(ModelConfig(name="m", option=Options(task="object-detection"), provenance={"option.task": "here:1"}))
    assert caught.value.message == (
        f"here:1: option.task=object-detection: no built-in handler does that; expected {', '.join(TASKS)}. A model.py "
        "with handle(inputs) can serve it, with transformers' AutoModelForObjectDetection for example"
    )
    assert task_of(ModelConfig(name="m", option=Options(task="summarization"))) is TASKS["text2text-generation"]
    assert task_of(ModelConfig(name="m", option=Options(task="image-text-to-text"))).name == "text-generation"
    with pytest.raises(ModelLoadError, match=r"can serve it$"):
        task_of(ModelConfig(name="m", option=Options(task="fortune-telling")))


@pytest.mark.parametrize(
    ("config", "files", "task"),
    [
        ({"architectures": ["BertModel"], "model_type": "bert"}, (), "feature-extraction"),
        ({"architectures": ["Qwen3Model"], "model_type": "qwen3"}, (), "feature-extraction"),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, (), "text-generation"),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, ("modules.json",), "feature-extraction"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, ("modules.json",), "feature-extraction"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, (), "feature-extraction"),
        (
            {"architectures": ["T5EncoderModel"], "model_type": "t5", "is_encoder_decoder": True},
            (),
            "feature-extraction",
        ),
        ({"architectures": ["T5Model"], "is_encoder_decoder": True}, ("modules.json",), "feature-extraction"),
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, (), "text-generation"),
        ({"architectures": ["BertForSequenceClassification"]}, (), "text-classification"),
        ({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a"}}, (), "text-ranking"),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 1}, ("modules.json",), "text-ranking"),
    ],
)
def test_the_checkpoint_tells_the_task(
    tmp_path: Path, config: dict[str, Any], files: tuple[str, ...], task: str
) -> None:
    checkpoint(tmp_path, config)
    for name in files:
        (tmp_path / name).write_text("[]")
    assert task_of(ModelConfig(name="m"), tmp_path) is TASKS[task]


def test_transformers_has_the_classes_of_all_tasks() -> None:
    assert [name for name in tasks.MODEL_CLASSES.values() if not hasattr(transformers, name)] == []
    assert {*tasks.TASKS_OF_HEADS.values(), "text2text-generation", "feature-extraction"} <= tasks.MODEL_CLASSES.keys()


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: str(task.name))
def test_a_tasks_handler_and_checks_can_be_loaded(task: Task) -> None:
    assert issubclass(load_object(task.handler), Handler)
    config = ModelConfig(name="m", option=Options(model_id="owner/name"))
    assert load_object(task.check)(config) is None
    assert load_object(task.without_effect)(config) == []
