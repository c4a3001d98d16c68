"""Loads a checkpoint with transformers: device, precision, quantization and limits. Runs in the engine process."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ...core.cpu_limit import available_cpus
from ...core.errors import ModelLoadError
from ..attention.lookup import PAGED, register, set_attention
from ..devices.device import SlowFormat, pick_device, prepare_device, slow_format
from ..devices.pipeline_parallel import keep_stage_
from ..devices.placement import Placed, placement_of
from ..interface import Progress
from ..settings import BuiltInSettings
from .deferred_loading import deferring_config, unpack_linears_
from .directory import contexts, method_of, quantization_fault
from .expert_stacks import unpack_experts_
from .plain_checkpoint import PlainCheckpoint
from .preparing import preparing_config
from .progress_bars import ReportingBar
from .quantization import Quantize
from .quantized_checkpoint import METHODS, QuantizedCheckpoint, UnsupportedFormatError
from .rope import attends_in_chunks

log = logging.getLogger(__name__)

DTYPES: Final[dict[str, Any]] = {
    "auto": "auto",
    "fp32": torch.float32,
    "float32": torch.float32,
    "fp16": torch.float16,
    "float16": torch.float16,
    "half": torch.float16,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model, which may take images, on its device, and what its checkpoint says about it.

    Attributes:
        context, longest: most tokens of a sequence, by default and with option.max_model_len.
        method: what its linears were quantized with, if they are `CodedLinear`s.
        offloaded, keeps_one_text, is_whole: `Placed`'s.
    """

    model: Any
    device: torch.device
    dtype: torch.dtype
    vocabulary: int
    context: int
    longest: int
    eos_ids: frozenset[int]
    method: str | None = None
    offloaded: str = ""
    keeps_one_text: bool = False
    is_whole: bool = True

    @property
    def weight_bytes(self) -> int:
        """Bytes that a decode step has to read at least, except for the embedding table's unused rows."""
        return sum(map(bytes_of, (*self.model.parameters(), *self.model.buffers())))


def bytes_of(tensor: torch.Tensor) -> int:
    """A tensor's size. Where DeepSpeed has a weight elsewhere (ZeRO), an empty one tells how many numbers it has."""
    numbers: int = getattr(tensor, "ds_numel", tensor.numel())
    return numbers * tensor.itemsize


def threads_of(settings: BuiltInSettings) -> int:
    """CPU threads that a step may use."""
    return max(1, (settings.threads or available_cpus()) // settings.ranks)


def load_model(settings: BuiltInSettings, progress: Progress) -> LoadedModel:
    """Load `settings.model_path` with transformers.

    Raises:
        ModelLoadError: it is not a causal language model, or a setting does not fit it.
    """
    device = pick_device(settings.device)
    prepare_device(device)
    torch.set_num_threads(threads_of(settings))
    progress("importing transformers", 0, 0)
    from transformers import AutoConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_tqdm_hook(lambda factory, args, kwargs: ReportingBar(progress, args, kwargs))
    register()
    path = Path(settings.model_path)
    config = AutoConfig.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
    _check_causal(path, config)
    quantization = getattr(config, "quantization_config", None)
    _check_quantization(settings, device, quantization)
    if quantization is not None and (settings.placement or settings.device_map):
        by = settings.placement_name or "option.device_map"
        raise ModelLoadError(f"{path}: a quantized checkpoint is not laid out by {by}, but on one device")
    if settings.placement and settings.image_example is not None:
        raise ModelLoadError(
            f"{path}: a model that takes images is not laid out by {settings.placement_name}, but on one device"
        )
    checkpoint = _quantized_checkpoint(path, quantization, device)
    if checkpoint is not None:
        config.quantization_config = deferring_config(checkpoint)
    elif experts := _plain_experts(path, config, device, settings):
        config.quantization_config = deferring_config(experts)
    elif settings.pipeline_parallel_degree > 1:
        config.quantization_config = preparing_config(keep_stage_)
    loader = _Loader(settings, device, path, config, checkpoint)
    placed = loader.load(
        slow_format(device, settings.dtype) if checkpoint is not None or quantization is None else None
    )
    model = placed.model
    model.eval()
    if checkpoint is not None and device.type != "cpu":
        unpack_experts_(model, device)
        unpack_linears_(model, device)
        log.warning(
            "without %s weights are unpacked to %s: pip install it for kernels that multiply with codes",
            " and ".join(METHODS[checkpoint.method]),
            model.dtype,
        )
        checkpoint = None
    text = config.get_text_config(decoder=True)
    context, longest = contexts(text)
    return LoadedModel(
        model=model,
        device=device,
        dtype=model.dtype,
        vocabulary=getattr(text, "unpadded_vocab_size", None) or text.vocab_size,  # Inkling has no logits beyond it
        context=context,
        longest=longest,
        eos_ids=_eos_ids(model, text),
        method=None if checkpoint is None else checkpoint.method,
        offloaded=placed.offloaded,
        keeps_one_text=placed.keeps_one_text,
        is_whole=placed.is_whole,
    )


@dataclass(frozen=True)
class _Loader:
    """Has transformers load a checkpoint, whose quantized weights may stay in its files (`checkpoint`)."""

    settings: BuiltInSettings
    device: torch.device
    path: Path
    config: Any
    checkpoint: QuantizedCheckpoint | None

    def load(self, slow: SlowFormat | None) -> Placed:
        """Load the model in the format that the settings ask for, or in another if that one is `slow` on this device.

        Raises:
            ModelLoadError: it is not a causal language model, or the checkpoint lacks weights.
        """
        dtype = DTYPES[self.settings.dtype]
        if slow is None:
            return self._load_as(dtype)
        stored = getattr(self.config, "dtype", None) if dtype == "auto" else dtype  # a configuration need not say it
        if stored != slow.dtype:
            placed = self._load_as(dtype)
            if placed.model.dtype != slow.dtype:
                return placed
        log.warning("%s", slow.warning)
        return self._load_as(slow.instead)

    def _load_as(self, dtype: Any) -> Placed:
        stored = getattr(self.config, "dtype", None) if dtype == "auto" else dtype
        return placement_of(self.settings, self.device).place(functools.partial(self._read, dtype), stored)

    def _read(self, dtype: Any, where: Mapping[str, Any]) -> Any:
        """Load the model with `from_pretrained`, and check its weights.

        Args:
            where: further arguments of `from_pretrained`.
        """
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind = AutoModelForCausalLM if self.settings.image_example is None else AutoModelForImageTextToText
        try:
            model, report = kind.from_pretrained(
                self.path,
                config=self.config,
                dtype=dtype,
                trust_remote_code=self.settings.trust_remote_code,
                **where,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # which are refused below, in words
            )
        except ValueError as exc:
            if "Unrecognized configuration class" in str(exc):
                raise ModelLoadError(
                    f"{self.path}: model type {self.config.model_type!r} is not a causal language model of transformers"
                ) from exc
            raise
        self._check_weights(model, report)
        return model

    def _check_weights(self, model: Any, report: Mapping[str, Any]) -> None:
        """Check what transformers reports of the weights.

        Raises:
            ModelLoadError: the checkpoint lacks some, or has some in other shapes.
        """
        if others := sorted(report["mismatched_keys"]):
            name, stored, needed = others[0]
            raise ModelLoadError(
                f"{self.path}: {len(others)} of the weights that {type(model).__name__} needs have other shapes: "
                f"{name} has {tuple(stored)}, expected {tuple(needed)} (config.json)"
            )
        missing = set(report["missing_keys"])
        if self.checkpoint is None:  # buffers may be what the model's code makes them
            missing &= {name for name, _ in model.named_parameters()}
        if missing:
            kind = "" if self.checkpoint is None else f"{self.checkpoint.method} "
            some = ", ".join(sorted(missing)[:3])
            raise ModelLoadError(
                f"{self.path}: {kind}without {len(missing)} of the weights that {type(model).__name__} needs: {some}"
            )


def _check_causal(path: Path, config: Any) -> None:
    """Check that tokens don't attend to later ones; a model of images may have them do so within its prompt.

    Raises:
        ModelLoadError: they do.
    """
    text = config.get_text_config(decoder=True)
    if text is config and getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        raise ModelLoadError(
            f"{path}: its tokens attend to later ones (use_bidirectional_attention in config.json): "
            "such a model embeds text, it does not generate any"
        )


def _quantized_checkpoint(path: Path, config: Any, device: torch.device) -> QuantizedCheckpoint | None:
    """The quantized checkpoint, if its format is read here; None leaves them to libraries, which have GPU kernels.

    Raises:
        ModelLoadError: they can't be read here, and a library for them is missing.
    """
    if not isinstance(config, dict) or config.get("quant_method") not in METHODS:
        return None
    libraries = METHODS[config["quant_method"]]
    missing = any(importlib.util.find_spec(name.replace("-", "_")) is None for name in libraries)
    if device.type != "cpu" and not missing:
        return None
    try:
        return QuantizedCheckpoint(path, config)
    except UnsupportedFormatError as reason:
        if missing:
            raise ModelLoadError(f"{path}: {reason} is read with {' and '.join(libraries)}: pip install it") from reason
        log.info("%s is left to transformers", reason)
        return None


def _plain_experts(path: Path, config: Any, device: torch.device, settings: BuiltInSettings) -> PlainCheckpoint | None:
    """The checkpoint, if native kernels may read its experts one by one; else None."""
    if device.type != "cpu" or settings.kernels == "torch" or settings.image_example is not None:
        return None
    if getattr(config.get_text_config(decoder=True), "quantization_config", None) or hasattr(
        config, "quantization_config"
    ):
        return None
    checkpoint = PlainCheckpoint(path)
    return checkpoint if checkpoint.linears else None


def rounding(settings: BuiltInSettings) -> Quantize | None:
    """What this engine itself rounds the weights to; None if it doesn't."""
    return settings.quantize if settings.quantize in ("int8", "int4") else None


def products_rounding(settings: BuiltInSettings, loaded: LoadedModel) -> Quantize | None:
    """What products of integers round to: weights and activations; of a quantized checkpoint only the activations."""
    return rounding(settings) if loaded.method is None else "int8"


def _check_quantization(settings: BuiltInSettings, device: torch.device, stored: Any) -> None:
    """Check that the checkpoint, whose own setting is `stored`, is or can be quantized as `option.quantize` says."""
    wanted = settings.quantize
    if fault := quantization_fault(wanted, method_of(stored)):
        raise ModelLoadError(fault)
    if rounding(settings) is None:
        return
    if device.type != "cpu":
        raise ModelLoadError(f"option.quantize={wanted} is for CPUs; the model is on {device}")
    if settings.image_example is not None:
        raise ModelLoadError(f"option.quantize={wanted} is not for models that take images")


def can_page(loaded: LoadedModel) -> bool:
    """Give the model paged attention, if it looks attention up by name and is told the positions; returns whether.

    A model that attends in chunks has them in its mask, which paged attention is not given.
    """
    parameters = inspect.signature(loaded.model.forward).parameters
    if "position_ids" not in parameters or "logits_to_keep" not in parameters:
        return False
    if attends_in_chunks(loaded.model.config.get_text_config(decoder=True)):
        return False
    try:
        set_attention(loaded.model, PAGED)
    except ValueError as exc:
        log.info("%s", exc)
        return False
    return True


def _eos_ids(model: Any, config: Any) -> frozenset[int]:
    """generation_config's end tokens, else config's: what `generate` would stop at."""
    for source in (getattr(model, "generation_config", None), config):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
