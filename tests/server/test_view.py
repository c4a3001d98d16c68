import pytest

from djl_python.core.errors import ModelNotFoundError
from tests.server.harness import model_config, running, wait_ready


async def test_what_a_page_sees_of_the_models() -> None:
    async with running(model_config("a", "2"), model_config("b", properties={"load": "fail"}), wait=False) as site:
        view = site.front_end.view
        loading = view.select("b")
        assert not (loading.ready or loading.failed or view.ready)
        for model in site.models.values():
            await wait_ready(model)
        a, b = view.models
        assert (a.config.version, a.ready, a.failed, a.workers) == ("2", True, False, 1)
        assert (b.ready, b.failed, b.workers) == (False, True, 0)
        assert not view.ready
        assert (a.in_flight, a.queued) == (0, 0)


async def test_a_server_that_drains_is_not_ready() -> None:
    async with running() as site:
        assert site.front_end.view.ready
        site.front_end.draining.begun = True
        assert not site.front_end.view.ready


async def test_a_page_can_unload_and_load() -> None:
    async with running(model_config("a"), model_config("b", properties={"load": "fail"})) as site:
        view = site.front_end.view
        await view.unload("b")
        assert [model.config.name for model in view.models] == ["a"] and view.ready
        (gone,) = view.unloaded
        assert (gone.config.name, gone.ready, gone.failed) == ("b", False, False)
        await view.load("a")
        with pytest.raises(ModelNotFoundError):
            view.select("b")
        assert view.select("a", "1", "1").config.name == "a"
