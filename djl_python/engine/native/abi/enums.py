"""The enumerations and constants of the kernels. No torch."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """The kind of an operation."""

    EMBED = 0
    NORM = 1
    LINEAR = 2
    ROPE_KV_CACHE = 3
    ATTENTION = 4
    GATHER = 5
    QUANTIZE = 6
    SAMPLE = 7
    PACK = 8
    ROUTE = 9
    SORT = 10
    DISPATCH = 11
    COMBINE = 12
    DELTA_RULE = 13
    CLEAR_VALUES = 14
    CAUSAL_CONV = 15
    MAMBA2_SCAN = 16
    GROUP_NORM = 17
    CAUSAL_CONV_SPANS = 18
    DELTA_RATES = 19
    GATE = 20
    STEP_SIZES = 21
    MAMBA1_SCAN = 22
    LATENTS = 23
    RESCORE = 24
    ROUND_WEIGHTS = 25
    EMBED_TEXT = 26
    LOW_RANK = 27
    LOW_RANK_EMBED = 28
    PACK_BLOCKS = 29
    UNPACK_BLOCKS = 30
    ROUND_BLOCKS = 31


class WeightFormat(IntEnum):
    """How a weight's panels are stored.

    PLAIN: the activations' format; TWELVE_BIT: bf16 in 12 bits (bf16_12bit.h); INT: integer codes with scales, of each
    column, or of each group of its rows; BLOCKS: codes of so many bits, or of 4 bits that a table has the numbers of,
    in blocks of 32 (block_codes.h).
    """

    PLAIN = 0
    TWELVE_BIT = 1
    INT8 = 2
    INT4_BY_GROUP = 3
    INT8_BY_GROUP = 4
    BLOCKS_2 = 5
    BLOCKS_3 = 6
    BLOCKS_4 = 7
    BLOCKS_5 = 8
    BLOCKS_6 = 9
    BLOCKS_8 = 10
    BLOCKS_TABLE = 11


class BlockScaling(IntEnum):
    """What the scales of a block's codes are.

    HALVES: fp16 numbers; EXPONENTS: powers of two; STEPS: 8-bit integers times an fp16 number of eight blocks, NIBBLES:
    of 4 bits. With LEAST, and with NIBBLES, a block has a least number of the same kind, else a code that stands for 0.
    """

    HALVES = 0
    HALVES_AND_LEAST = 1
    STEPS = 2
    STEPS_AND_LEAST = 3
    NIBBLES = 4
    EXPONENTS = 5


class BlockType(IntEnum):
    """A type of tensors in GGUF files, by its name there, that is multiplied with its own codes."""

    Q4_0 = 0
    Q4_1 = 1
    Q5_0 = 2
    Q5_1 = 3
    Q8_0 = 4
    Q2_K = 5
    Q3_K = 6
    Q4_K = 7
    Q5_K = 8
    Q6_K = 9
    IQ4_NL = 10
    IQ4_XS = 11
    MXFP4 = 12


class Activation(IntEnum):
    """An activation function."""

    NONE = 0
    SILU = 1
    GELU_TANH = 2
    GELU = 3
    RELU = 4
    RELU_SQUARED = 5
    CLAMPED_SWIGLU = 6
    QUICK_GELU = 7
    XIELU = 8

    @classmethod
    def named(cls, name: str | None) -> Activation:
        """The one that a recipe gives this name."""
        return cls.NONE if name is None else cls[name.upper()]


class NormKind(IntEnum):
    """A norm. COPY: none, only the format changes."""

    RMS = 0
    LAYER = 1
    COPY = 2

    @classmethod
    def named(cls, name: str | None) -> NormKind:
        """The one that a recipe gives this name; None: no norm."""
        return cls.COPY if name is None else cls[name.upper()]


class Mode(IntEnum):
    """What is done with results.

    They are stored as T, multiplied by a scale and added to fp32, or stored in fp32; or only each panel's statistics
    are kept.
    """

    STORE = 0
    ADD = 1
    STORE_FP32 = 2
    STATISTICS = 3


class SamplingMode(IntEnum):
    """How a row's token is found: it is given, the likeliest one, or drawn."""

    GIVEN = 0
    BEST = 1
    DRAW = 2


ENUMS: Final = (Kind, WeightFormat, BlockScaling, BlockType, Activation, NormKind, Mode, SamplingMode)

#: Columns of a packed weight panel: four vectors.
PANEL: Final = 64
#: Numbers of a row that are quantized with one scale: `GROUP` of checkpoints/quantization.
GROUP: Final = 64
#: Keys of a cache group, one vector of scores; block sizes are multiples of it.
KEYS_PER_GROUP: Final = 16
#: (query, head) pairs that share one walk over the keys.
QUERIES_PER_WALK: Final = 24
#: Most experts of a layer.
MAX_EXPERTS: Final = 1024
#: Bytes of one step (128 weights) of a TWELVE_BIT panel, and the high bytes that a panel's table has.
STEP_BYTES: Final = 192
HIGH_BYTES: Final = 16
#: Tokens with the same adapter that share a pass over its weights.
ADAPTER_ROWS: Final = 4
#: A row's token where scores are NaN: `NO_TOKEN` of batch/sequence.
NO_TOKEN: Final = -1
#: A row's token where only all logits tell it.
UNDECIDED: Final = -2

CONSTANTS: Final = {
    name: globals()[name]
    for name in (
        "PANEL", "GROUP", "KEYS_PER_GROUP", "QUERIES_PER_WALK", "MAX_EXPERTS", "STEP_BYTES", "HIGH_BYTES",
        "ADAPTER_ROWS", "NO_TOKEN", "UNDECIDED",
    )
}  # fmt: skip
