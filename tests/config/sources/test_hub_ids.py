"""What can be the name of a model of the hub."""

from __future__ import annotations

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from djl_python.config.sources.hub_ids import id_of_page, is_hub_id


@pytest.mark.parametrize(
    "text",
    """
    gpt2 owner/name meta-llama/Llama-2-7b-hf Qwen/Qwen2.5-0.5B-Instruct a_b/c.d 01-ai/Yi {{model_id}} <your_model>
    $MODEL_ID ${MODEL_ID} {model_id} owner/na:me owner/name@main owner//name owner/na--me owner/.name -owner/name
    owner/name- o/n..m größe/x
    """.split(),
)
def test_hub_ids_are_those_that_the_hub_takes(text: str) -> None:
    try:
        validate_repo_id(text)
    except HFValidationError:
        taken = False
    else:
        taken = text.isascii()
    assert is_hub_id(text) == taken


def test_a_name_has_no_blanks_and_is_not_too_long() -> None:
    assert not is_hub_id("a b") and not is_hub_id("") and not is_hub_id("n" * 97) and is_hub_id("n" * 96)


@pytest.mark.parametrize(
    ("url", "hub_id"),
    [
        ("https://huggingface.co/owner/name", "owner/name"),
        ("https://huggingface.co/owner/na.me-7B/tree/main", "owner/na.me-7B"),
        ("http://hf.co/owner/name?x=1", "owner/name"),
        ("https://huggingface.co/owner", ""),
        ("https://example.com/owner/name", ""),
        ("owner/name", ""),
    ],
)
def test_the_page_of_a_model(url: str, hub_id: str) -> None:
    assert id_of_page(url) == hub_id
