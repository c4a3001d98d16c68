import asyncio

import pytest

from djl_python.server.models.health import Health
from djl_python.server.models.instances import ModelInstances
from tests.server.harness import model_config, served, wait_ready


@pytest.mark.parametrize("now", [True, False])
async def test_a_started_model_runs_until_its_workers_have_ended(now: bool) -> None:
    instances, model = ModelInstances(drain_timeout_s=0.1), served(model_config())
    instances.start(model)
    await wait_ready(model)
    assert list(instances.running) == [model] and model.health is Health.HEALTHY
    await (instances.stop if now else instances.retire)(model)
    assert not instances.running and model.workers.always[0].pid is None
    await instances.stop(model)  # once more costs nothing


async def test_two_of_one_model_run_side_by_side() -> None:
    instances, one = ModelInstances(drain_timeout_s=0.1), served(model_config())
    other = one.successor(model_config())
    for model in (one, other):
        instances.start(model)
    assert len(instances.running) == 2
    await asyncio.gather(*map(instances.stop, (one, other)))
    assert not instances.running
