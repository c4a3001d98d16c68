"""Text of a transformers model as it comes, for handlers that stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from djl_python.streaming_utils import HFStreamer, StreamingUtils

DEMO = str(Path(__file__).resolve().parents[3] / "serving_templates" / "demo")


@pytest.fixture(scope="module")
def demo() -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO)
    return model, transformers.AutoTokenizer.from_pretrained(DEMO)


def test_a_generator_for_each_backend_of_djl(demo: tuple[Any, Any]) -> None:
    for engine in ("Accelerate", "DeepSpeed", "transformers-neuronx"):
        generate = StreamingUtils.get_stream_generator(engine)
        assert list(generate(*demo, ["Hello"], None, max_new_tokens=2)) == [[" Hello"], ["!"]]
    with pytest.raises(ValueError, match="Steam engine is not supported for streaming"):
        StreamingUtils.get_stream_generator("Steam")


def test_prompts_of_different_lengths_go_side_by_side(demo: tuple[Any, Any]) -> None:
    generate = StreamingUtils.get_stream_generator("Accelerate")
    alone = ["".join(piece for (piece,) in generate(*demo, [text])) for text in ("Hello", "What is deep learning?")]
    together = list(generate(*demo, ["Hello", "What is deep learning?"]))
    assert ["".join(texts) for texts in zip(*together, strict=True)] == alone
    assert len(together) <= StreamingUtils.DEFAULT_MAX_NEW_TOKENS + 1


def test_a_single_prompt_for_the_default_streamer(demo: tuple[Any, Any]) -> None:
    assert list(StreamingUtils.use_hf_default_streamer(*demo, "Hello", None, max_new_tokens=1)) == [[" Hello"]]
    with pytest.raises(ValueError, match="takes a list of prompts"):
        StreamingUtils.get_stream_generator("Accelerate")(*demo, "Hello")


def test_a_streamer_for_generate(demo: tuple[Any, Any]) -> None:
    model, tokenizer = demo
    streamer = HFStreamer(tokenizer, skip_special_tokens=True)
    inputs = tokenizer("Hello", return_tensors="pt")
    model.generate(**inputs, max_new_tokens=2, do_sample=False, streamer=streamer)
    assert list(streamer) == [[" Hello"], ["!"]]
    streamer.put_text("more")
    assert next(streamer) == "more"
