"""A model that a model.py wraps: LMI's answers, for text generation and for other tasks."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

from djl_python.core.errors import PayloadError
from djl_python.huggingface import HuggingFaceService, StopWord, get_torch_dtype_from_str
from djl_python.inputs import Input
from djl_python.np_util import from_nd_list
from djl_python.outputs import Output
from djl_python.test_model import create_concurrent_batch_request, extract_output_as_string
from tests.pipelines.encoders import build_encoder, build_translator

DEMO = str(Path(__file__).resolve().parents[3] / "serving_templates" / "demo")
QUESTION = "What is deep learning?"


def service_of(**properties: str) -> HuggingFaceService:
    service = HuggingFaceService()
    assert not service.initialized
    service.initialize({"model_id": DEMO} | properties)
    assert service.initialized
    return service


@pytest.fixture(scope="module")
def demo() -> HuggingFaceService:
    return service_of()


def ask(service: HuggingFaceService, body: Any, **headers: str) -> Output:
    inputs = Input()
    inputs.properties = {"content-type": "application/json", **headers}
    inputs.content.add("data", json.dumps(body).encode())
    return service.inference(inputs)


def answer(service: HuggingFaceService, body: Any) -> Any:
    output = ask(service, body)
    assert output.code == 200, output
    return json.loads(extract_output_as_string(output))


def test_text_generation_has_the_dynamic_batch_schema(demo: HuggingFaceService) -> None:
    four = {"max_new_tokens": 4}
    assert answer(demo, {"inputs": QUESTION, "parameters": four}) == [{"generated_text": " Deep learning is a"}]
    several = {"inputs": [QUESTION, "Hello"], "parameters": {**four, "return_full_text": True, "details": True}}
    assert answer(demo, several) == [
        {"generated_text": f"{QUESTION} Deep learning is a"},
        {"generated_text": "Hello Hello! I am"},
    ]
    stopped = {"inputs": QUESTION, "parameters": {"max_new_tokens": 9, "stop": ["is a"]}}
    assert answer(demo, stopped) == [{"generated_text": " Deep learning "}]
    assert len(answer(demo, {"inputs": QUESTION})[0]["generated_text"]) > 40  # 30 tokens
    seeded = {"inputs": QUESTION, "parameters": {"do_sample": True, "temperature": 3.0, "seed": 5}}
    assert answer(demo, seeded) == answer(demo, seeded)


def test_the_calls_of_a_batch_have_their_own_parameters_and_errors(demo: HuggingFaceService) -> None:
    bodies = [
        {"inputs": QUESTION, "parameters": {"max_new_tokens": 2}},
        {"parameters": {}, "inputs": None},
        {"inputs": ["Hello", QUESTION], "parameters": {"max_new_tokens": 3}},
    ]
    output = demo.inference(create_concurrent_batch_request(bodies))
    first, second, third = (json.loads(value) for value in output.content.values)
    assert first == [{"generated_text": " Deep learning"}]
    assert second["code"] == 424
    assert [one["generated_text"] for one in third] == [" Hello! I", " Deep learning is"]
    assert output.properties["batch_001.code"] == "424"
    assert output.properties["batch_002.content-type"] == "application/json"


def test_an_unknown_parameter_is_refused_by_name(demo: HuggingFaceService) -> None:
    with pytest.raises(ValueError, match="mood"):
        ask(demo, {"inputs": QUESTION, "parameters": {"mood": "good"}})


def test_the_services_parts_are_transformers_own(demo: HuggingFaceService) -> None:
    assert type(demo.model).__name__ == "LlamaForCausalLM"
    assert demo.tokenizer.decode(demo.tokenizer("Hello").input_ids).endswith("Hello")
    assert demo.pipeline is demo.hf_pipeline
    assert demo.hf_pipeline("Hello", max_new_tokens=2) == [{"generated_text": " Hello!"}]
    assert demo.model_config.model_type == "llama"


def test_a_replaced_parse_input(demo: HuggingFaceService, monkeypatch: pytest.MonkeyPatch) -> None:
    """As public handlers do it, for bodies of their own."""

    def of_prompts(self: HuggingFaceService, inputs: Input) -> tuple[Any, ...]:
        batch = inputs.get_batches()
        prompts = [item.get_as_json()["prompt"] for item in batch]
        return prompts, [1] * len(batch), [{"max_new_tokens": 2}] * len(batch), {}, batch

    def with_errors(self: HuggingFaceService, inputs: Input, tokenizer: Any, output_formatter: Any) -> tuple[Any, ...]:
        return [QUESTION], [1], [{"max_new_tokens": 2}], {0: "not that"}, inputs.get_batches()

    monkeypatch.setattr(demo, "parse_input", types.MethodType(of_prompts, demo), raising=False)
    assert answer(demo, {"prompt": QUESTION}) == [{"generated_text": " Deep learning"}]
    monkeypatch.setattr(demo, "parse_input", types.MethodType(with_errors, demo), raising=False)
    output = demo.inference(create_concurrent_batch_request([{}, {}]))
    assert json.loads(output.content.value_at(0))["error"] == "not that"
    assert json.loads(output.content.value_at(1)) == [{"generated_text": " Deep learning"}]


def test_a_replaced_parse_input_of_a_rolling_batch() -> None:
    service = service_of(rolling_batch="lmi-dist", output_formatter="json")
    given = []

    def of_prompts(self: HuggingFaceService, inputs: Input, tokenizer: Any, formatter: Any) -> tuple[Any, ...]:
        given.append((tokenizer is self.tokenizer, formatter, self.input_format_configs.is_rolling_batch))
        bodies = [item.get_as_json() for item in inputs.get_batches()]
        texts = [body["prompt"] for body in bodies if "prompt" in body]
        errors = {index: "no prompt" for index, body in enumerate(bodies) if "prompt" not in body}
        sizes = [int("prompt" in body) for body in bodies]
        return texts, sizes, [{"max_new_tokens": 2}] * len(texts), errors, inputs.get_batches()

    service.parse_input = types.MethodType(of_prompts, service)  # type: ignore[method-assign]
    assert answer(service, {"prompt": QUESTION}) == {"generated_text": " Deep learning"}
    output = service.inference(create_concurrent_batch_request([{"prompt": QUESTION}, {"inputs": QUESTION}]))
    assert json.loads(output.content.value_at(0)) == {"generated_text": " Deep learning"}
    assert json.loads(output.content.value_at(1))["error"] == "no prompt"
    assert given == [(True, "json", True)] * 2


@pytest.mark.parametrize("enable_streaming", ["true", "huggingface"])
def test_streaming(enable_streaming: str) -> None:
    service = service_of(enable_streaming=enable_streaming)
    output = ask(service, {"inputs": [QUESTION, "Hello"], "parameters": {"max_new_tokens": 3}})
    assert output.properties["content-type"] == "application/jsonlines"
    assert output.stream_content is not None
    assert list(output.stream_content) == [[" Deep", " Hello"], [" learning", "!"], [" is", " I"]]  # type: ignore[arg-type]
    assert ask(service, {"inputs": ""}).code == 424


def test_a_rolling_batch_has_the_continuous_schema() -> None:
    service = service_of(rolling_batch="auto")
    two = {"max_new_tokens": 2, "details": True}
    whole = answer(service, {"inputs": QUESTION, "parameters": two})
    assert whole["generated_text"] == " Deep learning"
    assert whole["details"]["finish_reason"] == "length"
    assert [token["text"] for token in whole["details"]["tokens"]] == [" Deep", " learning"]
    assert all(-1 < token["log_prob"] < 0 for token in whole["details"]["tokens"])
    streamed = ask(service, {"inputs": QUESTION, "parameters": {"max_new_tokens": 2}, "stream": True})
    lines = [json.loads(line) for line in streamed.stream_content]  # type: ignore[union-attr]
    assert [line["token"]["text"] for line in lines] == [" Deep", " learning"]
    assert lines[-1]["generated_text"] == " Deep learning"
    chat = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 3, "temperature": 0}
    assert answer(service, chat)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("task", "head"), [("classify", "BertForSequenceClassification"), ("embed", "BertModel")])
def test_other_names_of_tasks(tmp_path: Path, task: str, head: str) -> None:
    build_encoder(tmp_path, head)
    (response,) = answer(service_of(model_id=str(tmp_path), task=task), {"inputs": "the cat sat"})
    assert "label" in response if task == "classify" else len(response[0]) == 5  # [CLS], three words, [SEP]


def test_auto_is_no_rolling_batch_of_a_model_that_generates_no_text(tmp_path: Path) -> None:
    build_encoder(tmp_path, "BertForSequenceClassification")
    (classified,) = answer(service_of(model_id=str(tmp_path), rolling_batch="auto"), {"inputs": "the cat sat"})
    assert classified["label"] in ("LABEL_0", "LABEL_1")


def test_classification(tmp_path: Path) -> None:
    service = service_of(model_id=str(build_encoder(tmp_path, "BertForSequenceClassification", num_labels=3)))
    (label,) = answer(service, {"inputs": "the cat sat"})
    assert label.keys() == {"label", "score"}
    labels = answer(service, {"inputs": ["the cat sat", "two birds"], "parameters": {"top_k": 3}})
    assert [len(one) for one in labels] == [3, 3]


def test_tokens_and_masks(tmp_path: Path) -> None:
    tokens = service_of(model_id=str(build_encoder(tmp_path / "t", "BertForTokenClassification", num_labels=4)))
    (entities,) = answer(tokens, {"inputs": "the cat sat"})
    assert {"entity", "score", "start", "end", "word"} <= entities[0].keys()
    masks = service_of(model_id=str(build_encoder(tmp_path / "m", "BertForMaskedLM")))
    (candidates,) = answer(masks, {"inputs": "the [MASK] sat", "parameters": {"top_k": 2}})
    assert [one.keys() for one in candidates] == [{"score", "token", "token_str", "sequence"}] * 2
    assert len(answer(masks, {"inputs": ["the [MASK]", "[MASK] sat"]})) == 2


def test_features_as_json_and_as_arrays(tmp_path: Path) -> None:
    service = service_of(model_id=str(build_encoder(tmp_path, "BertModel")), task="feature-extraction")
    (features,) = answer(service, {"inputs": "the cat sat"})
    assert (len(features[0]), len(features[0][0])) == (5, 32)
    output = ask(service, {"inputs": "the cat sat"}, accept="tensor/ndlist")
    assert output.properties["Content-Type"] == "tensor/ndlist"
    assert from_nd_list(output.content.value_at(0))[0].shape == (1, 5, 32)


def test_questions_and_contexts(tmp_path: Path) -> None:
    service = service_of(model_id=str(build_encoder(tmp_path, "BertForQuestionAnswering")))
    body = {"question": "who sat", "context": "the cat sat on a mat"}
    (span,) = answer(service, body)
    assert span == answer(service, {"inputs": body})[0]
    assert body["context"][span["start"] : span["end"]] == span["answer"] != ""
    assert 0 < span["score"] <= 1
    (spans,) = answer(service, {"inputs": body, "parameters": {"top_k": 3}})
    assert spans[0] == span
    assert len({(one["start"], one["end"]) for one in spans}) == 3
    with pytest.raises(PayloadError, match="question and context"):
        ask(service, {"inputs": "who sat"})


def test_a_text_that_is_rewritten(tmp_path: Path) -> None:
    service = service_of(model_id=str(build_translator(tmp_path)))
    made = answer(service, {"inputs": ["the cat sat", "two"], "parameters": {"max_new_tokens": 3}})
    assert [one.keys() for one in made] == [{"generated_text"}] * 2
    summary = service_of(model_id=str(tmp_path), task="summarization")
    assert answer(summary, {"inputs": "the cat sat"})[0].keys() == {"summary_text"}


def test_an_unknown_or_missing_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"option.task=juggling: expected one of .*fill-mask.*question-answering"):
        service_of(task="juggling")
    with pytest.raises(ValueError, match="Task couldn't be inferred"):
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        service_of(model_id=str(tmp_path))


def test_names_of_number_formats() -> None:
    import torch

    names = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "auto": "auto", None: None}
    assert {name: get_torch_dtype_from_str(name) for name in names} == names
    with pytest.raises(ValueError, match="Invalid data type: fp7"):
        get_torch_dtype_from_str("fp7")
    assert service_of(dtype="bf16").model.dtype is torch.bfloat16


def test_stop_words_of_the_model(demo: HuggingFaceService) -> None:
    assert HuggingFaceService.parse_stop_sequence_input("""["a, b", 'c']""") == ["a, b", "c"]
    with pytest.raises(ValueError, match="expected a list"):
        HuggingFaceService.parse_stop_sequence_input("abc")
    stopping = service_of(stop_sequence='["learning"]')
    assert answer(stopping, {"inputs": QUESTION}) == [{"generated_text": " Deep "}]
    ids = demo.tokenizer("a stop", return_tensors="pt").input_ids
    assert StopWord(demo.tokenizer, "stop")(ids, None)
    assert not StopWord(demo.tokenizer, "halt")(ids, None)
