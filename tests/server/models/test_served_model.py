import os
import signal

import pytest

from djl_python.core.engine_info import EngineInfo
from djl_python.core.errors import ModelLoadError
from djl_python.server.models.health import Health
from djl_python.server.models.served_model import ServedModel
from tests.server.harness import model_config, running, served, until


async def test_a_model_that_cannot_even_be_tried_has_failed() -> None:
    changes: list[ServedModel] = []
    model = served(model_config(), on_change=changes.append)
    model.fail("option.dtype=fp99: expected auto")
    assert changes == [model] and model.settled.is_set()
    assert model.health is Health.FAILED and model.status.failed and not model.ready
    assert model.failure == "option.dtype=fp99: expected auto"
    assert model.pool.refusal == "model 'm' has failed"
    with pytest.raises(ModelLoadError, match="fp99"):
        await model.scale(2, 2, drain_timeout_s=1)
    await model.stop()
    assert model.successor(model_config()).health is Health.PENDING


async def test_a_models_engine_is_known_while_a_worker_is_ready() -> None:
    async with running(model_config(properties={"runner": "native"})) as site:
        assert site.model.status.engine == site.model.engine == EngineInfo(runner="native")
        assert (await site.client.get("/v1/models/m")).json()["engine"]["runner"] == "native"
        assert (
            await site.metric('djl_engine_info{device="",dtype="",model="m",quantize="none",refused="no",runner="nat')
            == 1
        )
        os.kill(site.pid, signal.SIGKILL)
        await until(lambda: site.model.engine is None)
