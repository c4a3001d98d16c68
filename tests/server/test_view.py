import asyncio
import threading

import pytest

from djl_python.config import ModelConfig
from djl_python.core.access.api_key import ApiKey
from djl_python.core.access.scopes import Scope
from djl_python.core.errors import ForbiddenError, ModelNotFoundError
from djl_python.core.model_files.model_card import ModelCard
from djl_python.server.view import PartialView
from tests.server.harness import model_config, running, wait_ready
from tests.server.in_process import InProcess


async def test_a_page_sees_the_state_of_each_model() -> None:
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


async def test_a_key_for_some_models_manages_no_others() -> None:
    async with running(model_config("a"), model_config("b"), placement=InProcess()) as site:
        whole = site.front_end.view
        view = PartialView(whole, ApiKey(name="key", sha256="0" * 64, scopes=(Scope.MANAGE,), models=("a", "c")))
        for refused in (view.load("b"), view.unload("b"), view.remove("b"), view.copy("b", "c")):
            with pytest.raises(ModelNotFoundError):
                await refused
        with pytest.raises(ForbiddenError, match="for other models than 'd'"):
            await view.copy("a", "d")
        assert [model.config.name for model in whole.models] == ["a", "b"]
        await view.unload("a")
        assert [model.config.name for model in whole.models] == ["b"]


async def test_a_card_does_not_wait_for_whole_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole one has the vocabulary, and takes long to read."""
    go_on, reading = threading.Event(), threading.Event()

    def card_of(config: ModelConfig, *, whole: bool) -> ModelCard:
        if whole:
            reading.set()
            go_on.wait(20)
        return ModelCard(format=str(whole))

    monkeypatch.setattr("djl_python.server.view.card_of", card_of)
    async with running(placement=InProcess()) as site:
        view = site.front_end.view
        (model,) = view.models
        whole = asyncio.create_task(view.card(model, whole=True))
        await asyncio.to_thread(reading.wait, 20)
        assert (await view.card(model)).format == "False" and not whole.done()
        go_on.set()
        assert (await whole).format == "True"
