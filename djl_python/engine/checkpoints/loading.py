"""Loads a checkpoint with transformers: device, precision, quantization and limits. Runs in the engine process."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ...core.cpu_limit import available_cpus
from ...core.errors import ModelLoadError
from ...core.types import DecoderTokens
from ..attention.lookup import PAGED, register, set_attention
from ..devices.device import SlowFormat, pick_device, prepare_device, slow_format
from ..devices.divided_linears import take_additions_
from ..devices.pipeline_parallel import keep_stage_
from ..devices.placement import Placed, placement_of
from ..interface import Progress
from ..settings import BuiltInSettings
from ..transformers_private import newer_than_tried
from .blocks import UnpackBlocks
from .deferred_loading import deferring_config, unpack_linears_
from .directory import ROUNDED, contexts, method_of, quantization_fault
from .expert_stacks import unpack_experts_
from .leaving import gguf_checkpoint, plain_experts, quantized_checkpoint, rounding
from .preparing import preparing_config
from .progress_bars import ReportingBar
from .rope import attends_in_chunks
from .rounding import Quantize
from .stored.gguf_checkpoint import GgufCheckpoint
from .stored.quantized_checkpoint import METHODS, QuantizedCheckpoint
from .weights import check_weights

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
    """A causal language model, which may take images, on its device, with facts from its checkpoint.

    Or an encoder-decoder model that generates text.

    Attributes:
        context, longest: most tokens of a sequence, by default and with option.max_model_len.
        method: what its linears were quantized with, if they are `DequantizingLinear`s.
        offloaded, keeps_one_text, is_whole: `Placed`'s.
        decoder: how an encoder-decoder model's decoder begins and ends; None: the model is a decoder alone.
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
    decoder: DecoderTokens | None = None

    @property
    def weight_bytes(self) -> int:
        """Bytes that a decode step has to read at least, except for the embedding table's unused rows."""
        return sum(map(bytes_of, (*self.model.parameters(), *self.model.buffers())))


def bytes_of(tensor: torch.Tensor) -> int:
    """A tensor's size. DeepSpeed's ZeRO leaves an empty tensor, which has the number of the weight's elements."""
    numbers: int = getattr(tensor, "ds_numel", tensor.numel())
    return numbers * tensor.itemsize


def threads_of(settings: BuiltInSettings) -> int:
    """CPU threads that a step may use."""
    return max(1, (settings.threads or available_cpus()) // settings.ranks)


def load_model(settings: BuiltInSettings, progress: Progress, unpack: UnpackBlocks | None = None) -> LoadedModel:
    """Load `settings.model_path` with transformers.

    Args:
        unpack: makes numbers of a GGUF file's codes; None: numpy does.

    Raises:
        ModelLoadError: the model does not generate text, or a setting does not fit it.
    """
    device = pick_device(settings.device)
    prepare_device(device)
    torch.set_num_threads(threads_of(settings))
    progress("importing transformers", 0, 0)
    from transformers import AutoConfig, __version__
    from transformers.utils import logging as transformers_logging

    if warning := newer_than_tried(__version__):
        log.warning("%s", warning)

    transformers_logging.set_tqdm_hook(lambda factory, args, kwargs: ReportingBar(progress, args, kwargs))
    register()
    path = Path(settings.model_path)
    config = AutoConfig.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
    if config.is_encoder_decoder:
        _check_encoder_decoder(settings)
    else:
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
    gguf = gguf_checkpoint(path, device, settings, unpack)
    checkpoint: QuantizedCheckpoint | GgufCheckpoint | None = gguf if gguf is not None and gguf.linears else None
    checkpoint = checkpoint or quantized_checkpoint(path, quantization, device)
    if checkpoint is not None:
        config.quantization_config = deferring_config(checkpoint)
    elif experts := plain_experts(path, config, device, settings):
        config.quantization_config = deferring_config(experts)
    elif settings.pipeline_parallel_degree > 1:
        config.quantization_config = preparing_config(keep_stage_)
    elif settings.enable_lora and settings.ranks > 1:
        config.quantization_config = preparing_config(take_additions_)
    loader = _Loader(settings, device, path, config, checkpoint, gguf)
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
            " and ".join(METHODS.get(checkpoint.method, ())),
            model.dtype,
        )
        checkpoint = None
    # From an encoder-decoder's, transformers would make a copy that has other names.
    text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
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
        decoder=_decoder_tokens(path, model) if config.is_encoder_decoder else None,
    )


@dataclass(frozen=True)
class _Loader:
    """Has transformers load a checkpoint, whose quantized weights may stay in its files (`checkpoint`)."""

    settings: BuiltInSettings
    device: torch.device
    path: Path
    config: Any
    checkpoint: QuantizedCheckpoint | GgufCheckpoint | None
    gguf: GgufCheckpoint | None

    def load(self, slow: SlowFormat | None) -> Placed:
        """Load the model in the format that the settings ask for, or in another if that one is `slow` on this device.

        Raises:
            ModelLoadError: it does not generate text, or the checkpoint lacks weights.
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
        import transformers
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

        if self.config.is_encoder_decoder:
            kind = AutoModelForSeq2SeqLM
        else:
            kind = AutoModelForCausalLM if self.settings.image_example is None else AutoModelForImageTextToText
        state = None if self.gguf is None else self.gguf.state(dtype)
        source: dict[str, Any] = {"pretrained_model_name_or_path": self.path}
        if state is not None:  # with weights given one by one, transformers' classes for any model want files
            kind = getattr(transformers, self.config.architectures[0])
            source = {"pretrained_model_name_or_path": None, "state_dict": state}
        try:
            model, report = kind.from_pretrained(
                **source,
                config=self.config,
                dtype=dtype,
                trust_remote_code=self.settings.trust_remote_code,
                **_attention(self.config),
                **where,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # which are refused below, in words
            )
        except ValueError as exc:
            if "Unrecognized configuration class" in str(exc):
                raise ModelLoadError(
                    f"{self.path}: model type {self.config.model_type!r} is not a model of transformers that generates "
                    "text"
                ) from exc
            raise
        if state is not None:
            model.config.name_or_path = str(self.path)
            model.generation_config = transformers.GenerationConfig.from_pretrained(self.path)
        check_weights(self.path, model, report, None if self.checkpoint is None else self.checkpoint.method)
        return model


def _attention(config: Any) -> dict[str, Any]:
    """Arguments of `from_pretrained`: attention that caps the scores where the model does.

    transformers' sdpa leaves the cap out, and before 5.22 is taken for such models all the same.
    """
    capped = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    return {"attn_implementation": "eager"} if capped else {}


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


def products_rounding(settings: BuiltInSettings, loaded: LoadedModel) -> Quantize | None:
    """The format of integer products: weights and activations are rounded, in a quantized checkpoint only the
    activations.
    """
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
    """Give the model paged attention, if it looks attention up by name and takes positions; returns whether it does.

    A model that attends in chunks has them in its mask, which paged attention does not get.
    """
    if loaded.decoder is None:
        parameters = inspect.signature(loaded.model.forward).parameters
        if "position_ids" not in parameters or "logits_to_keep" not in parameters:
            return False
        if attends_in_chunks(loaded.model.config.get_text_config(decoder=True)):
            return False
    try:
        if loaded.decoder is None:
            set_attention(loaded.model, PAGED)
        else:
            loaded.model.set_attn_implementation(PAGED)
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


def _decoder_tokens(path: Path, model: Any) -> DecoderTokens:
    """What the model's generation_config, or else its configuration, says of its decoder's first and last tokens.

    Raises:
        ModelLoadError: they don't say what it begins with.
    """
    start = _first_token(model, "decoder_start_token_id", "bos_token_id")
    if start is None:
        raise ModelLoadError(f"{path}: there is no decoder_start_token_id: expected one in generation_config.json")
    forced = _first_token(model, "forced_bos_token_id")
    return DecoderTokens(
        start_ids=(start,) if forced is None else (start, forced),
        forced=int(forced is not None),
        forced_eos=_first_token(model, "forced_eos_token_id"),
    )


def _first_token(model: Any, *names: str) -> int | None:
    """The first of these tokens that is set: where several are named, the first of them."""
    for name in names:
        for source in (model.generation_config, model.config):
            value = getattr(source, name, None)
            if value is not None:
                token: int = value[0] if isinstance(value, list) else value
                return token
    return None


def _check_encoder_decoder(settings: BuiltInSettings) -> None:
    """Refuse settings that encoder-decoder models do not support: several devices, and weights rounded at load.

    Raises:
        ModelLoadError: says which setting it is.
    """
    model = "the model is an encoder-decoder"
    if settings.ranks != 1:
        degrees = f"{settings.tensor_parallel_degree} and {settings.pipeline_parallel_degree}"
        raise ModelLoadError(
            f"option.tensor_parallel_degree and option.pipeline_parallel_degree are {degrees}: {model}, which runs on "
            "one device"
        )
    if settings.quantize in ROUNDED:
        raise ModelLoadError(f"option.quantize={settings.quantize}: {model}, whose weights are not rounded")
