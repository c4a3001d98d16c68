"""Names of transformers 4 that are put back, in a process of their own: they change transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from djl_python.usercode import transformers4
from djl_python.usercode.transformers4_shims import NAMES
from tests.conftest import DEMO

HANDLER = """
from djl_python import Input, Output
from transformers import (
    AdamW, AutoModelForCausalLM, AutoModelForVision2Seq, AutoTokenizer, PreTrainedModel, ViTFeatureExtractor
)
from helper import encoded

model = tokenizer = None


def handle(inputs: Input):
    global model, tokenizer
    if model is None:
        where = inputs.get_properties()["model_id"]
        tokenizer = AutoTokenizer.from_pretrained(where, use_auth_token=None)
        model = AutoModelForCausalLM.from_pretrained(where, load_in_8bit=False, use_auth_token=False)
        model = model.to_bettertransformer()
    if inputs.is_empty():
        return None
    prompts = inputs.get_as_json()["inputs"]
    tokens = tokenizer.batch_encode_plus(prompts, return_tensors="pt")
    answers = model.generate(**tokens, max_new_tokens=3, do_sample=False)
    quantized = ""
    try:
        AutoModelForCausalLM.from_pretrained(inputs.get_properties()["model_id"], load_in_8bit=True)
    except ImportError as exc:
        quantized = str(exc)
    return Output().add_as_json({
        "texts": tokenizer.batch_decode(answers, skip_special_tokens=True),
        "pairs": tokenizer.batch_encode_plus([("a", "b")])["input_ids"] == [tokenizer("a", "b")["input_ids"]],
        "padded": len(encoded(tokenizer, prompts[0])),
        "batch": tokenizer.prepare_seq2seq_batch(["a b c", "d"], ["e"] * 2, return_tensors="pt")["labels"].shape[0],
        "quantized": quantized,
        "names": [AdamW.__module__.split(".")[0], AutoModelForVision2Seq.__name__, ViTFeatureExtractor.__name__],
    })
"""
HELPER = """
import transformers


def encoded(tokenizer, text):
    return tokenizer.encode_plus(text, max_length=40, truncation=True, pad_to_max_length=True)["input_ids"]
"""
PROGRAM = """
import json, sys
from djl_python.test_model import TestHandler, create_request

handler = TestHandler("model.py", sys.argv[1])
print(handler.inference(create_request(['{"inputs": ["What is deep learning?"]}'])).content.value_at(0).decode())
"""


@pytest.mark.slow
def test_a_handler_for_transformers_4_answers(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "serving.properties").write_text(f"option.model_id={DEMO}\n")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "pip install -U bitsandbytes" in answer.pop("quantized")  # asked for, where it is not installed
    assert answer.pop("names")[:2] == ["torch", "AutoModelForImageTextToText"]
    texts = ["What is deep learning? Deep learning is"]
    assert answer == {"texts": texts, "pairs": True, "padded": 40, "batch": 2}


def test_restored_names_are_known_to_the_check() -> None:
    known = {*transformers4.NAMES, *transformers4.METHODS, *transformers4.ARGUMENTS}
    assert known >= NAMES
