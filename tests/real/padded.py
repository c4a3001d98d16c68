"""SmolLM2 in a GGUF file whose rows are whole blocks of 256 numbers, as K types want them: 768 instead of 576.

python -m tests.real.padded TARGET.gguf [--layers N]       in F32, for llama-quantize

The function stays SmolLM2's. The 192 numbers that the residual stream has more are 0, and so is what three more heads
give. A norm divides by the root of a mean over 768 numbers, of which 576 are SmolLM2's: its weights and its epsilon
make up for that.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from djl_python.gguf.shards import read_model
from djl_python.gguf.weights import Weight
from tests.real import gguf_files

WIDTH: Final = 576
PADDED: Final = 768
HEAD: Final = 64
HEADS: Final = 12
KV_HEADS: Final = 4
#: The lengths of the stream, which all heads together have too, and of all keys, and what they become.
_LENGTHS: Final = {WIDTH: PADDED, 3 * HEAD: KV_HEADS * HEAD}
_SHARE: Final = WIDTH / PADDED
_EPSILON: Final = "llama.attention.layer_norm_rms_epsilon"

Floats = np.ndarray[Any, np.dtype[np.float32]]
#: From a tensor's name and its numbers to the numbers' bytes in some type, and the type.
Quantize = Callable[[str, Floats], tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]]


def in_f32(name: str, numbers: Floats) -> tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]:
    """The numbers as they are."""
    return numbers, gguf.GGMLQuantizationType.F32


def write(target: Path, layers: int | None = None, quantize: Quantize = in_f32) -> None:
    """Write the padded model.

    Args:
        layers: how many of the 30; None: all.
        quantize: called for the matrices; norms are F32.
    """
    writer = gguf.GGUFWriter(target, "llama")
    _copy_metadata(writer, layers)
    for name, numbers in _tensors(layers):
        made, of_type = quantize(name, numbers) if numbers.ndim > 1 else in_f32(name, numbers)
        writer.add_tensor(name, made, raw_dtype=of_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(writer: gguf.GGUFWriter, layers: int | None) -> None:
    own = {
        "llama.embedding_length": PADDED,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        **({} if layers is None else {"llama.block_count": layers}),
    }
    for field in gguf.GGUFReader(gguf_files.model()).fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value, of_type = field.contents(), field.types[0]
        if field.name == _EPSILON:
            value *= _SHARE
        of_items = field.types[-1] if of_type == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, own.get(field.name, value), of_type, of_items)


def _tensors(layers: int | None) -> Iterator[tuple[str, Floats]]:
    model = read_model(gguf_files.model())
    for name, (file, tensor) in model.tensors.items():
        if layers is not None and name.startswith("blk.") and int(name.split(".")[1]) >= layers:
            continue
        numbers = Weight(file, tensor, tensor.shape, rows=math.prod(tensor.shape[:-1])).dense()
        if name.endswith("norm.weight"):
            numbers = numbers * np.float32(math.sqrt(_SHARE))
        yield name, np.pad(numbers, [(0, _LENGTHS.get(length, length) - length) for length in numbers.shape])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--layers", type=int)
    arguments = parser.parse_args()
    gguf_files.fetch_files()
    write(arguments.target, arguments.layers)


if __name__ == "__main__":
    main()
