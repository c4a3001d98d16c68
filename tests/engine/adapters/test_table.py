"""Adapters by name: numbers that are never used again, memory for those that are asked for, files read beside."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path

import pytest

from djl_python.core.errors import ParameterError
from djl_python.engine.adapters.peft_files import LoraAdapter
from djl_python.engine.adapters.table import AdapterTable
from djl_python.engine.adapters.targets import Target
from tests.small_adapters import SHAPES, write_small_adapter


class Made:
    """A table, and the numbers that have gone."""

    def __init__(self, in_memory: int = 2, max_rank: int = 16) -> None:
        self.gone: list[int] = []
        targets = {name: Target(*shape) for name, shape in SHAPES.items()}
        self.table = AdapterTable(targets, max_rank, in_memory, self.gone.append)

    def put(self, name: str, path: Path, version: int = 0) -> int:
        return self.table.put(name, version, self.table.plan(name, str(path)))

    def adapter(self, number: int) -> LoraAdapter:
        """Wait until it is in memory."""
        while (adapter := self.table.adapter(number)) is None:
            wait(self.table.reading)
            assert self.table.take_read() == {}
        return adapter


@pytest.fixture
def made() -> Made:
    return Made()


def test_an_adapter_in_the_place_of_another_has_a_number_of_its_own(made: Made, tmp_path: Path) -> None:
    path = write_small_adapter(tmp_path / "a")
    first = made.put("a", path)
    assert made.table.use("a", 0) == first
    second = made.put("a", path, 1)
    assert second != first
    assert (made.table.use("a", 1), made.table.use("a", 0)) == (second, first), "each may have further sequences"
    assert (made.table.numbers, made.table.name(first)) == ({"a": second}, "a")
    made.table.remove("a", 0)
    with pytest.raises(ParameterError, match="adapter a has been unregistered"):
        made.table.use("a", 0)
    made.table.release(first)
    assert made.gone == [], "a sequence still has it"
    made.adapter(first)
    made.table.release(first)
    assert made.gone == [first]
    made.table.remove("a", 1)
    assert made.gone == [first]
    made.table.release(second)
    assert made.gone == [first, second]
    made.table.remove("a", 1)
    assert made.put("a", path, 2) not in (first, second)


def test_the_least_recently_used_leaves_memory_and_is_read_again(made: Made, tmp_path: Path) -> None:
    numbers = {name: made.put(name, write_small_adapter(tmp_path / name)) for name in "abcd"}
    assert made.table.bytes == 0, "a registered adapter costs no more than its files"
    for name in "abac":
        made.adapter(numbers[name])
    assert made.table.adapter(numbers["a"]) is not None
    assert made.table.adapter(numbers["b"]) is None
    made.adapter(numbers["b"])
    made.table.keep(numbers["a"])
    made.adapter(numbers["c"])
    made.adapter(numbers["d"])
    assert made.table.adapter(numbers["a"]) is not None
    made.table.close()


def test_an_adapter_whose_files_have_gone_is_its_sequences_error(made: Made, tmp_path: Path) -> None:
    path = write_small_adapter(tmp_path / "a")
    number = made.put("a", path)
    (path / "adapter_model.safetensors").unlink()
    assert made.table.adapter(number) is None
    wait(made.table.reading)
    (failure,) = made.table.take_read().values()
    assert str(failure).startswith("adapter a: ")
    write_small_adapter(path)
    assert made.adapter(number).rank == 2


def test_an_adapter_that_changed_on_disk_is_refused_where_it_no_longer_fits(made: Made, tmp_path: Path) -> None:
    path = write_small_adapter(tmp_path / "a")
    number = made.put("a", path)
    write_small_adapter(path, rank=3)
    assert made.table.adapter(number) is None
    wait(made.table.reading)
    (failure,) = made.table.take_read().values()
    assert str(failure).endswith("has changed since it was registered")


def test_a_rank_that_is_too_high_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError) as failure:
        Made(max_rank=1).put("big", write_small_adapter(tmp_path / "a"))
    assert failure.value.message == "adapter big has rank 2; expected at most option.max_lora_rank=1"


def test_files_are_read_beside_the_steps(made: Made, tmp_path: Path) -> None:
    plan, adapter = made.table.planned("a", str(write_small_adapter(tmp_path / "a")), read=True).result()
    assert adapter is not None
    number = made.table.put("a", 0, plan, adapter)
    assert made.table.adapter(number) is adapter
    with pytest.raises(ParameterError, match="adapter b: there is no adapter_config"):
        made.table.planned("b", str(tmp_path / "b"), read=False).result()
