"""A model that echoes its prompts, a token every few milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.testing import FAKE_ENGINE, write_byte_tokenizer


@pytest.fixture(scope="session")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_byte_tokenizer(tmp_path_factory.mktemp("models") / "echo")
    (path / "serving.properties").write_text(
        f"option.model_id={path}\noption.rolling_batch={FAKE_ENGINE}\noption.fake_step_ms=5\noption.max_rolling_batch_size=4\n"
    )
    return path
