"""The encoder in a process of its own, as a worker has it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from djl_python.config import ModelConfig
from djl_python.core.errors import ModelLoadError, ParameterError, WorkerDiedError
from djl_python.engine.encoder_client import EncoderClient
from djl_python.engine.encoding.settings import Head
from djl_python.engine.process import Hooks
from djl_python.ipc.encodings import EncodeRequest, EncoderInput
from tests.encoders import write_encoder


async def test_a_process_encodes_and_its_death_is_told(tmp_path: Path) -> None:
    model = write_encoder(tmp_path)
    deaths: list[str] = []
    died = asyncio.Event()

    def on_death(reason: str) -> None:
        deaths.append(reason)
        died.set()

    client = await open_client(tmp_path, on_death)
    assert (client.limits.max_model_len, client.limits.info.runner, client.limits.info.dtype) == (
        64,
        "native",
        "float32",
    )
    progress: list[None] = []
    inputs = [EncoderInput([2, 7, 8, 3]), EncoderInput([2, 9, 3])]
    arrays = await client.encode(EncodeRequest(inputs), on_progress=lambda: progress.append(None))
    with torch.inference_mode():
        for one, numbers in zip(inputs, arrays, strict=True):
            expected = model(torch.tensor([one.ids])).last_hidden_state[0].mean(0).numpy()
            np.testing.assert_allclose(numbers, expected, atol=1e-5)
    assert len(progress) == 2 and await client.encode(EncodeRequest([])) == []
    with pytest.raises(ParameterError, match=r"a text has 65 tokens; expected 1 to 64"):
        await client.encode(EncodeRequest([EncoderInput([5] * 65), inputs[0]]))
    # What is cancelled leaves the engine, which goes on with others.
    waiting = asyncio.create_task(client.encode(EncodeRequest(inputs * 200)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(await client.encode(EncodeRequest(inputs))) == 2
    lost = asyncio.create_task(client.encode(EncodeRequest(inputs * 200)))
    await asyncio.sleep(0)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        await lost
    await died.wait()
    with pytest.raises(WorkerDiedError):
        await client.encode(EncodeRequest(inputs))
    await client.close()
    assert deaths == ["the engine process ended unexpectedly"]


async def test_why_it_can_not_be_loaded_is_told(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    with pytest.raises(ModelLoadError, match=r"without 2 of the weights that BertForSequenceClassification needs: cl"):
        await open_client(tmp_path, head=Head.CLASSES)


async def open_client(path: Path, on_death: object = print, head: Head = Head.EMBEDDING) -> EncoderClient:
    config = ModelConfig(name="m", path=str(path), engine_options={"threads": 1})
    hooks = Hooks(lambda *report: None, lambda stats: None, on_death)  # type: ignore[arg-type]
    return await EncoderClient.open(config, path, head, hooks)
