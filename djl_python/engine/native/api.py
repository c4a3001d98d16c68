"""The engine's door to the native kernels, and to `reading`, which only they use.

Runs in the engine process, and in `djl-serving doctor`. Nothing here imports torch before it is called: kernels are
built, and memory is taken, while it is being imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..settings import BuiltInSettings
from .compiling import PROCESSORS, compiler, features_here, processors_here, what_is_missing
from .library import begin_building, lacking, place_of
from .prefault import PrefaultedRegions, begin_prefault, cache_prefault_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..checkpoints.blocks import BlockRows
    from ..checkpoints.loading import LoadedModel
    from ..checkpoints.rounding import Quantize
    from ..runner.opened_model import OpenedModel
    from ..runner.opening_request import OpeningRequest, Refusal
    from ..runner.probe import Probe
    from .opening.parts import NativeParts
    from .program.encoder_program import EncoderProgram

__all__ = [
    "PROCESSORS",
    "PrefaultedRegions",
    "begin_building",
    "begin_prefault",
    "cache_prefault_bytes",
    "compiler",
    "exact_logits",
    "features_here",
    "free_layers",
    "lacking",
    "native_parts",
    "open_native_encoder",
    "open_native_program",
    "place_of",
    "processors_here",
    "unpack_blocks",
    "what_is_missing",
]


def open_native_program(request: OpeningRequest, prefaulted: PrefaultedRegions | None) -> OpenedModel | Refusal:
    """Open a model as a native program, in memory that has been taken for it; see `Candidate.open`."""
    from .opening.native_program import NativeProgram

    return NativeProgram(prefaulted).open(request)


def open_native_encoder(
    model: Any,
    dtype: torch.dtype,
    quantize: Quantize | None,
    *,
    longest: int,
    max_tokens: int,
    threads: int,
) -> EncoderProgram | Refusal:
    """Open an encoder on a CPU as a native program, which gives the model's own hidden states; or say why not.

    Args:
        model: the model without its head; it is unchanged until `free_layers` is called.
        longest: most tokens of a text.
        max_tokens: most tokens of all texts of a run.
    """
    from .opening.encoder_program import EncoderRequest, open_program

    return open_program(EncoderRequest(model, dtype, quantize, longest, max_tokens, threads))


def free_layers(model: Any) -> None:
    """Free the weights of an encoder's layers, which a program has packed; the rest may still run on torch."""
    from .opening.encoder_program import free_layers

    free_layers(model)


def native_parts(settings: BuiltInSettings, loaded: LoadedModel) -> NativeParts | None:
    """The kernels for a model whose other parts torch runs; None where there are none."""
    from .opening.parts import NativeParts

    return NativeParts.of(settings, loaded)


def exact_logits(loaded: LoadedModel, probe: Probe) -> Tensor:
    """A model's own logits in fp32, whatever it is loaded in: (tokens, rows of the probe). For CPUs."""
    from .opening.exact import exact_logits

    return exact_logits(loaded, probe)


def unpack_blocks(rows: BlockRows, k: int, dtype: torch.dtype) -> Tensor | None:
    """The numbers (n, k) of rows of a GGUF file's blocks; None where there are no kernels."""
    from .unpacking import unpack_blocks

    return unpack_blocks(rows, k, dtype)
