"""Secrets are not shown."""

from __future__ import annotations

import pytest

from djl_python.config.masking import MASK, masked


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("option.hf_token", "abc", MASK),
        ("HF_TOKEN", "abc", MASK),
        ("HF_TOKEN", "", ""),
        ("keystore_pass", "changeit", MASK),
        ("aws_secret_access_key", "abc", MASK),
        ("option.env", "A=1,HF_TOKEN=abc,B=2", f"A=1,HF_TOKEN={MASK},B=2"),
        ("option.model_id", "hf_abcdefghijklmno", MASK),
        ("option.max_rolling_batch_prefill_tokens", "512", "512"),
        ("option.tokenizer", "x", "x"),
        ("bypass", "x", "x"),
        ("option.model_id", "s3://key:se/cr@et@bucket/p", f"s3://{MASK}@bucket/p"),
        ("option.model_id", "https://h:8080/a@b", "https://h:8080/a@b"),
        ("option.model_id", "https://h/m.zip?X-Amz-Signature=ab&x=@", f"https://h/m.zip?{MASK}"),
        ("option.env", "A=1,DB_URL=postgres://u:pw@h/d,B=x@y", f"A=1,DB_URL=postgres://{MASK}@h/d,B=x@y"),
        ("option.env", "P=http://u@proxy:3128?k=v,B=2", f"P=http://{MASK}@proxy:3128?{MASK},B=2"),
    ],
)
def test_masked(key: str, value: str, expected: str) -> None:
    assert masked(key, value) == expected
