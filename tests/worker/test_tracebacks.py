from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from djl_python.core.errors import PayloadError
from djl_python.inputs import Input
from djl_python.service_loader import load_model_service
from djl_python.worker.thread import HandlerThread
from djl_python.worker.tracebacks import user_traceback


def fail() -> None:
    try:
        raise KeyError("inner")
    except KeyError as exc:
        raise ValueError("outer") from exc


async def test_only_the_users_frames_are_left_causes_included() -> None:
    with pytest.raises(ValueError, match="outer") as caught:
        await HandlerThread().run((), fail)
    text = user_traceback(caught.value)
    assert text.endswith("ValueError: outer")
    assert "KeyError: 'inner'" in text and "direct cause" in text
    assert "in fail" in text
    assert "concurrent" not in text and "djl_python/worker/thread" not in text


def test_a_syntax_error_shows_the_users_line_and_none_of_our_frames(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("def handle(inputs:\n    pass\n")
    spec = importlib.util.spec_from_file_location("broken_model", file)
    assert spec is not None and spec.loader is not None
    with pytest.raises(SyntaxError) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    # Only what leads to the import is left of the traceback when the worker imports it.
    caught.value.__traceback__ = caught.tb.tb_next
    text = user_traceback(caught.value)
    assert f'File "{file}", line 1' in text and "def handle(inputs:" in text
    assert "SyntaxError: '(' was never closed" in text
    assert "importlib" not in text


async def test_a_traceback_without_user_frames_is_whole() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    cause = caught.value.__cause__
    assert cause is not None
    assert "Traceback" in user_traceback(caught.value)


def test_a_traceback_begins_at_the_users_line_and_has_what_that_called(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("def handle(inputs):\n    return inputs.get_as_json()\n")
    service = load_model_service(tmp_path, "model.py")
    with pytest.raises(PayloadError) as caught:
        service.invoke_handler("handle", Input())
    entered = caught.tb.tb_next  # without this test's own frame, which is a user's too
    assert entered is not None and "service_loader" in entered.tb_frame.f_code.co_filename
    lines = user_traceback(caught.value.with_traceback(entered)).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].strip() == f'File "{file}", line 2, in handle'
    assert any("inputs.py" in line for line in lines[2:]), "what the user's line called is kept"
