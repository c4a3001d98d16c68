"""A fake of the few calls of DeepSpeed that are used, in the place of the package."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
import transformers.integrations.deepspeed  # noqa: F401  asks, as it is imported, whether there is a real one

#: What a fake does to a model, in the place of `init_inference`.
Change = Callable[[Any, Mapping[str, Any]], None]


class FakeBuilder:
    """An extension."""

    name = "fake"
    error_log = ""
    compatible = True

    def is_compatible(self, verbose: bool) -> bool:
        return self.compatible

    def load(self, verbose: bool) -> None:
        return


class FakeDeepSpeed:
    """What is asked of DeepSpeed, and the answers."""

    def __init__(self) -> None:
        self.change: Change = lambda model, config: None
        self.inference: list[dict[str, Any]] = []
        self.initialized: list[dict[str, Any]] = []

    def init_inference(self, model: Any, config: Mapping[str, Any]) -> None:
        self.inference.append(dict(config))
        self.change(model, config)

    def initialize(self, model: Any, config: Mapping[str, Any]) -> None:
        self.initialized.append(dict(config))


class FakeZeroConfig:
    """transformers' note that weights are to be partitioned as they are loaded."""

    alive = 0

    def __init__(self, told: Mapping[str, Any]) -> None:
        type(self).alive += 1

    def __del__(self) -> None:
        type(self).alive -= 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDeepSpeed]:
    made = FakeDeepSpeed()
    modules = {name: ModuleType(name) for name in ("deepspeed", "deepspeed.ops", "deepspeed.ops.op_builder")}
    root, ops, builders = modules.values()
    vars(root).update(init_inference=made.init_inference, initialize=made.initialize, ops=ops)
    vars(ops).update(__compatible_ops__={}, op_builder=builders)
    vars(builders).update(AsyncIOBuilder=FakeBuilder, InferenceBuilder=FakeBuilder)
    modules["deepspeed.utils"] = utils = ModuleType("deepspeed.utils")
    vars(utils)["logger"] = logging.getLogger("FakeDeepSpeed")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    ours = [f"djl_python.engine.deepspeed.{name}" for name in ("extensions", "partitioning", "placing")]
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("transformers.integrations.HfDeepSpeedConfig", FakeZeroConfig)
    monkeypatch.setattr("transformers.integrations.unset_hf_deepspeed_config", lambda: None)
    yield made
    for name in ours:
        sys.modules.pop(name, None)
    if dist.is_initialized():
        dist.destroy_process_group()
