"""What Python describes of the kernels is what they are compiled with, and kernels use what their kinds have."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

from djl_python.engine.batch.sequence import NO_TOKEN
from djl_python.engine.checkpoints import quantization
from djl_python.engine.native.abi import enums
from djl_python.engine.native.abi import places as lying
from djl_python.engine.native.abi.decoder import EmbedOp, GatherOp, LinearOp, NormOp
from djl_python.engine.native.abi.enums import Activation, Kind, Mode, NormKind, WeightFormat
from djl_python.engine.native.abi.header import HEADER, header
from djl_python.engine.native.abi.operations import OPERATIONS, Op, OperationArray
from djl_python.engine.native.abi.parts import Output, PackedWeight
from djl_python.engine.native.abi.places import differences, field_offsets, structures
from djl_python.engine.native.abi.structures import Operation
from djl_python.engine.native.library import KernelsUnavailableError, find_library, library
from djl_python.engine.reading.recipe.primitives import ACTIVATIONS


def test_the_header_is_what_the_descriptions_make() -> None:
    assert HEADER.read_text() == header(), "python -m djl_python.engine.native.abi writes it anew"


def test_loaded_kernels_have_everything_where_it_is_described() -> None:
    assert differences(find_library()) == []


def test_kernels_of_other_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    others = field_offsets() | {"LinearOp.k": (4, 8)}
    del others["Output.softcap"]
    monkeypatch.setattr(lying, "field_offsets", lambda: others)
    with pytest.raises(
        KernelsUnavailableError, match=r"built from other sources .*: LinearOp\.k, Output\.softcap differ"
    ):
        find_library()
    monkeypatch.undo()
    library()


def test_each_kind_is_one_operation() -> None:
    assert [operation.KIND for operation in OPERATIONS] == list(Kind)
    assert all(operation.__name__ == re.sub(r"(^|_)(.)", lambda m: m[2].upper(), kind.name.lower()) + "Op"
               for kind, operation in zip(Kind, OPERATIONS, strict=True))  # fmt: skip


@pytest.mark.parametrize("cls", structures(), ids=lambda cls: cls.__name__)
def test_descriptions_name_what_there_is(cls: Any) -> None:
    """Each field that a description explains is one."""
    explained = re.findall(r"^    (\w+(?:, \w+)*): ", (cls.__doc__ or "").partition("Attributes:\n")[2], re.M)
    assert {name for names in explained for name in names.split(", ")} <= set(cls.types)


def test_numbers_that_others_have_too() -> None:
    assert quantization.GROUP == enums.GROUP
    assert enums.NO_TOKEN == NO_TOKEN


def test_recipes_name_all_activations_and_norms() -> None:
    assert {Activation.named(name) for name in (None, *ACTIVATIONS)} == set(Activation)
    assert {NormKind.named(name) for name in ("rms", "layer", None)} == set(NormKind)


def test_fields_have_their_defaults_or_must_be_given() -> None:
    linear = LinearOp(n=3, k=4, weight=PackedWeight(format=WeightFormat.INT8, panels=64))
    assert (linear.kind, linear.late, linear.output.scale, linear.output.out) == (Kind.LINEAR, 0, 1.0, None)
    assert (linear.weight.format, linear.weight.panels, linear.weight.scales) == (WeightFormat.INT8, 64, None)
    with pytest.raises(TypeError, match="EmbedOp: missing or unknown: out"):
        EmbedOp(n=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Output: missing or unknown: pitched"):
        Output(pitched=3)  # type: ignore[call-arg]


def test_an_array_is_changed_through_views() -> None:
    given: list[Operation] = [GatherOp(n=1, in_=8, out=16), NormOp(n=5, in_=8, out=16, norm=NormKind.RMS)]
    array = OperationArray(given)
    array.view(-1, NormOp).mode = Mode.ADD
    assert (len(array), array.view(1, NormOp).mode, array.view(1, NormOp).n) == (2, Mode.ADD, 5)
    assert given[1].mode == Mode.STORE
    second = Op.from_address(array.address + ctypes.sizeof(Op))
    assert (second.norm.kind, second.norm.mode) == (Kind.NORM, Mode.ADD)
    with pytest.raises(AssertionError, match="NormOp 1 is no GatherOp"):
        array.view(1, GatherOp)
