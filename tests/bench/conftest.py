"""A model directory that answers soon, and a server with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer


@pytest.fixture(scope="package")
def echo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repeats prompts, a token each millisecond; its tokens are bytes."""
    path = write_byte_tokenizer(tmp_path_factory.mktemp("bench") / "echo")
    (path / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    settings = f"option.model_id={path}\noption.rolling_batch={FAKE_ENGINE}\noption.fake_step_ms=1\n"
    (path / "serving.properties").write_text(settings, encoding="utf-8")
    return path


@pytest.fixture(scope="package")
def server(echo_model: Path) -> Iterator[RunningServer]:
    with running_server("-m", f"echo={echo_model}") as running:
        yield running
