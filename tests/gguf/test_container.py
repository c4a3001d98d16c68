"""The reader of GGUF files agrees with gguf-py's, and refuses damaged ones before anything large is allocated."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from djl_python.gguf.container import GgufFile, read_file
from djl_python.gguf.errors import GgufError
from djl_python.gguf.files import parts_of
from djl_python.gguf.shards import read_model
from djl_python.gguf.types import TENSOR_TYPES

_FUZZED = 1000


def written(path: Path, change: Callable[[gguf.GGUFWriter], None] = lambda writer: None) -> Path:
    """A small file with a value of every type, and three tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("own.uint8", 200)
    writer.add_int8("own.int8", -100)
    writer.add_uint16("own.uint16", 60000)
    writer.add_int16("own.int16", -30000)
    writer.add_uint32("own.uint32", 4_000_000_000)
    writer.add_int32("own.int32", -2_000_000_000)
    writer.add_uint64("own.uint64", 1 << 63)
    writer.add_int64("own.int64", -(1 << 62))
    writer.add_float32("own.float32", 1.5)
    writer.add_float64("own.float64", 1e300)
    writer.add_bool("own.bool", True)
    writer.add_string("own.string", "Größe ▁")
    writer.add_array("own.strings", ["a", "", "ü"])
    writer.add_array("own.numbers", [1, 2, 3])
    writer.add_array("own.flags", [True, False])
    rng = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", rng.standard_normal((4, 64), np.float32))
    half = rng.standard_normal(5, np.float32).astype(np.float16)
    writer.add_tensor("output_norm.weight", half)
    codes = gguf.quantize(rng.standard_normal((3, 64), np.float32), gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("output.weight", codes, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refused(path: Path, data: bytes, match: str) -> None:
    path.write_bytes(data)
    with pytest.raises(GgufError, match=match):
        read_file(path)


class Raw:
    """A file made byte by byte."""

    def __init__(self, *, tensors: int = 0, entries: int = 0, version: int = 3) -> None:
        self.data = b"GGUF" + struct.pack("<IQQ", version, tensors, entries)

    def text(self, text: bytes, length: int | None = None) -> Raw:
        self.data += struct.pack("<Q", len(text) if length is None else length) + text
        return self

    def pack(self, layout: str, *values: Any) -> Raw:
        self.data += struct.pack(layout, *values)
        return self

    def tensor(self, name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> Raw:
        self.text(name).pack("<I", len(shape))
        return self.pack(f"<{len(shape)}Q", *shape).pack("<IQ", kind, offset)

    def ending(self, size: int) -> bytes:
        """The file with `size` bytes of tensors."""
        return self.data + bytes(-len(self.data) % 32 + size)


class TestAgainstGgufPy:
    def test_metadata_and_tensors_are_the_same(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.gguf")
        file, expected = read_file(path), gguf.GGUFReader(path)
        for key, field in expected.fields.items():
            if not key.startswith("GGUF."):
                value = file.metadata[key]
                assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents(), key
        assert [tensor.name for tensor in expected.tensors] == list(file.tensors)
        for tensor in expected.tensors:
            own = file.tensors[tensor.name]
            assert own.shape == tuple(int(size) for size in tensor.shape)[::-1]
            assert own.type.name == tensor.tensor_type.name
            assert own.start == tensor.data_offset
            assert file.stored(own).tobytes() == tensor.data.tobytes()

    def test_types_are_as_large_as_there(self) -> None:
        for number, kind in TENSOR_TYPES.items():
            other = gguf.GGMLQuantizationType(number)
            assert (other.name, gguf.GGML_QUANT_SIZES[other]) == (kind.name, (kind.numbers, kind.size))


class TestRefusals:
    def test_another_file(self, tmp_path: Path) -> None:
        refused(tmp_path / "a", b"", "0 bytes; expected a GGUF file")
        refused(tmp_path / "a", b"PK\x03\x04" * 10, "begins with b'PK.*'; expected a GGUF file")

    def test_other_versions(self, tmp_path: Path) -> None:
        refused(tmp_path / "a", Raw(version=1).data, "GGUF version 1; expected 2 or 3")
        refused(tmp_path / "a", Raw(version=3 << 24).data, "big-endian; expected a little-endian")

    @pytest.mark.parametrize("tensors, entries", [(1 << 63, 0), (0, 1 << 63), (1000, 0), (0, 1000)])
    def test_counts_beyond_the_file(self, tmp_path: Path, tensors: int, entries: int) -> None:
        refused(tmp_path / "a", Raw(tensors=tensors, entries=entries).data, "expected at most 0, since the file has 24")

    def test_strings_beyond_the_file(self, tmp_path: Path) -> None:
        raw = Raw(entries=1).text(b"key").pack("<I", 8).text(b"value", length=1 << 63)
        refused(tmp_path / "a", raw.data, "expected 9223372036854775808 bytes, and the file ends after 5")

    @pytest.mark.parametrize(
        "last, match",
        [
            (Raw().text(b"\xff").data[24:], "key at byte .*: expected UTF-8"),
            (Raw().text(b"c", length=1 << 63).data[24:], "key at byte .*: expected 9223372036854775808 bytes"),
            (b"\x01\x00\x00", "key at byte .*: expected 8 bytes, and the file ends after 3"),
        ],
        ids=["no UTF-8", "beyond the file", "cut off"],
    )
    def test_the_damaged_string_of_many_is_named(self, tmp_path: Path, last: bytes, match: str) -> None:
        raw = Raw(entries=1).text(b"key").pack("<IIQ", 9, 8, 3).text(b"a" * 8).text(b"b" * 8)
        refused(tmp_path / "a", raw.data + last, match)

    def test_more_entries_and_strings_than_models_have(self, tmp_path: Path) -> None:
        """Each is an object: the file may be as long as it says, and its reader would take minutes and gigabytes."""
        entries = Raw(entries=1 << 15)
        entries.data += bytes(13 << 15)
        refused(tmp_path / "a", entries.data, "32768 metadata entries at byte 24: expected at most 16384")
        strings = Raw(entries=3)
        for key in (b"a", b"b", b"c"):
            strings.text(key).pack("<IIQ", 9, 8, 1 << 20)
            strings.data += bytes(8 << 20)
        refused(tmp_path / "a", strings.data, "3145728 strings, with those of c; expected at most 2097152")
        template = Raw(entries=1).text(b"tokenizer.chat_template").pack("<I", 8).text(bytes((1 << 24) + 1))
        refused(tmp_path / "a", template.data, "16777217 bytes long; expected at most 16777216")

    def test_arrays_beyond_the_file(self, tmp_path: Path) -> None:
        for kind in (0, 8):
            raw = Raw(entries=1).text(b"key").pack("<IIQ", 9, kind, 1 << 60)
            refused(tmp_path / "a", raw.data, "1152921504606846976 (numbers|strings) of key .*: expected at most 0")

    def test_values_of_no_type(self, tmp_path: Path) -> None:
        refused(tmp_path / "a", Raw(entries=1).text(b"key").pack("<IQ", 13, 0).data, "key: type 13 .*; expected one of")
        nested = Raw(entries=1).text(b"key").pack("<IIQ", 9, 9, 1).pack("<IQ", 0, 0)
        refused(tmp_path / "a", nested.data, "an array of type 9 .*; expected strings, numbers or booleans")
        refused(
            tmp_path / "a", Raw(entries=1).text(b"key").pack("<IB", 7, 2).data, "a boolean of 2 .*; expected 0 or 1"
        )

    def test_keys_that_come_twice(self, tmp_path: Path) -> None:
        raw = Raw(entries=2)
        for _ in range(2):
            raw.text(b"key").pack("<IB", 0, 1)
        refused(tmp_path / "a", raw.data, "the metadata has 'key' twice")

    @pytest.mark.parametrize("alignment", [0, 1, 33, 1 << 31])
    def test_alignments(self, tmp_path: Path, alignment: int) -> None:
        raw = Raw(entries=1).text(b"general.alignment").pack("<II", 4, alignment)
        refused(tmp_path / "a", raw.data, rf"general.alignment is {alignment}; expected a power of two from 8")

    def test_tensors_beyond_the_file(self, tmp_path: Path) -> None:
        refused(tmp_path / "a", Raw(tensors=1).tensor(b"t", (9,)).ending(32), "tensor t: 36 bytes from 64 on.*has 96")
        far = Raw(tensors=1).tensor(b"t", (8,), offset=1 << 63)
        refused(tmp_path / "a", far.ending(32), "tensor t: 32 bytes from 9223372036854775872 on")
        refused(tmp_path / "a", Raw(tensors=1).tensor(b"t", (8,), offset=5).ending(64), "multiple of the alignment, 32")

    def test_tensors_that_overlap(self, tmp_path: Path) -> None:
        raw = Raw(tensors=2).tensor(b"a", (16,)).tensor(b"b", (8,), offset=32)
        refused(tmp_path / "a", raw.ending(96), "tensors a and b overlap")

    def test_shapes(self, tmp_path: Path) -> None:
        refused(tmp_path / "a", Raw(tensors=1).tensor(b"t", (0, 4)).ending(32), r"shape \(4, 0\); expected 1 to 2\^62")
        refused(tmp_path / "a", Raw(tensors=1).tensor(b"t", (1 << 40, 1 << 40)).ending(32), r"expected 1 to 2\^62")
        refused(tmp_path / "a", Raw(tensors=1).tensor(b"t", (1,) * 5).ending(32), "5 dimensions; expected at most 4")
        refused(tmp_path / "a", Raw(tensors=1).tensor(b"t", (33,), kind=2).ending(32), "Q4_0 has blocks of 32")

    def test_tensor_types(self, tmp_path: Path) -> None:
        refused(tmp_path / "a", Raw(tensors=1).tensor(b"t", (32,), kind=99).ending(32), "type 99 is unknown .*2 .Q4_0.")


class TestFuzz:
    def test_damaged_files_cost_an_error_and_little_else(self, tmp_path: Path) -> None:
        """Seeded: bytes changed, numbers made enormous, pieces cut out or doubled."""
        data = written(tmp_path / "whole.gguf").read_bytes()
        header = data.index(b"output.weight") + 64
        rng, path, refusals = random.Random(57), tmp_path / "damaged.gguf", 0
        read_file(tmp_path / "whole.gguf")
        tracemalloc.start()
        begun = time.process_time()
        for _ in range(_FUZZED):
            path.write_bytes(_damaged(data, header, rng))
            try:
                made = read_file(path)
                for tensor in made.tensors.values():
                    made.stored(tensor)
            except GgufError as refusal:
                assert str(path) in refusal.message
                refusals += 1
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
        assert time.process_time() - begun < 60
        assert _FUZZED // 3 < refusals < _FUZZED  # a changed number in a tensor is no damage that can be seen


def _damaged(data: bytes, header: int, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(header, len(made)))
        match rng.randrange(5):
            case 0:
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at : at + 8] = struct.pack("<Q", rng.choice((0, 1 << 63, (1 << 64) - 1, 1 << 32, 1 << 62)))
            case 2:
                made = made[:at] or made
            case 3:
                del made[at : at + rng.randint(1, 16)]
            case 4:
                made[at:at] = made[at : at + rng.randint(1, 16)]
    return bytes(made)


class TestParts:
    def split(self, tmp_path: Path, **changes: int) -> list[Path]:
        """A model in two files, as llama.cpp's gguf-split names and numbers them."""
        stated = {"count": 2, "tensors": 2, "first": 0, "second": 1, **changes}
        paths = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
        for path, number in zip(paths, (stated["first"], stated["second"]), strict=True):
            writer = gguf.GGUFWriter(path, "llama")
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", stated["count"])
            writer.add_int32("split.tensors.count", stated["tensors"])
            writer.add_tensor(f"blk.{paths.index(path)}.attn_norm.weight", np.full(4, number, np.float32))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
        return paths

    def test_any_part_names_the_model(self, tmp_path: Path) -> None:
        paths = self.split(tmp_path)
        for path in paths:
            model = read_model(path)
            assert model.path == paths[0]
            assert list(model.tensors) == ["blk.0.attn_norm.weight", "blk.1.attn_norm.weight"]
            numbers = [file.stored(tensor).view("<f4").tolist() for file, tensor in model.tensors.values()]
            assert numbers == [[0.0] * 4, [1.0] * 4]

    def test_a_missing_part_is_named(self, tmp_path: Path) -> None:
        paths = self.split(tmp_path)
        paths[1].unlink()
        with pytest.raises(GgufError, match=r"m-00002-of-00002.gguf is missing, of 2 parts"):
            read_model(paths[0])

    @pytest.mark.parametrize(
        "changes, match",
        [
            ({"second": 0}, "split.no and split.count are 0 and 2; expected 1 and 2"),
            ({"count": 3}, "split.no and split.count are 0 and 3; expected 0 and 2"),
            ({"tensors": 5}, "2 tensors in all parts; expected 5"),
        ],
    )
    def test_parts_that_do_not_fit(self, tmp_path: Path, changes: dict[str, int], match: str) -> None:
        with pytest.raises(GgufError, match=match):
            read_model(self.split(tmp_path, **changes)[0])

    def test_names_of_parts(self, tmp_path: Path) -> None:
        assert parts_of(Path("a.gguf")) == [Path("a.gguf")]
        assert len(parts_of(Path("m-00002-of-00003.gguf"))) == 3
        for name in ("m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-99999.gguf"):
            with pytest.raises(GgufError, match="expected 1 to 1000 parts"):
                parts_of(tmp_path / name)


def test_a_file_without_metadata_or_tensors_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(Raw().data)
    file: GgufFile = read_file(tmp_path / "a")
    assert (dict(file.metadata), dict(file.tensors), file.version) == ({}, {}, 3)
    (tmp_path / "a").write_bytes(Raw(version=2).data)
    assert read_file(tmp_path / "a").version == 2
