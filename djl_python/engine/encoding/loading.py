"""Has transformers load an encoder: its class, device, number format, and how long texts may be.

Runs in the engine process.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from ...core.cpu_limit import available_cpus
from ...core.errors import ModelLoadError
from ..checkpoints.directory import context_fault, contexts
from ..checkpoints.loading import DTYPES
from ..checkpoints.progress_bars import ReportingBar
from ..checkpoints.weights import check_weights
from ..devices.device import pick_device, prepare_device
from ..interface import Progress
from ..transformers_private import kept_in_fp32
from .settings import EncoderSettings, Head

#: transformers' class for each head.
_CLASSES: Final[Mapping[Head, str]] = {
    Head.EMBEDDING: "AutoModel",
    Head.CLASSES: "AutoModelForSequenceClassification",
    Head.TOKEN_CLASSES: "AutoModelForTokenClassification",
    Head.SPANS: "AutoModelForQuestionAnswering",
    Head.MASKED: "AutoModelForMaskedLM",
}
#: The one for embeddings of models that decode too: T5's encoder alone.
_ENCODER_ALONE: Final = "AutoModelForTextEncoding"
#: Weights of an embedding model that its hidden states don't depend on, and that checkpoints may lack.
_UNUSED: Final = "pooler."


@dataclass(frozen=True)
class LoadedEncoder:
    """A model on its device, and what it takes.

    Attributes:
        context: most tokens of a sequence.
        vocabulary: how many token ids there are.
        takes_types: whether it tells the two texts of a pair apart by `token_type_ids`.
        is_causal: whether tokens attend to earlier ones only: a decoder.
        pad_id: the id that batches are filled up with.
    """

    model: Any
    device: torch.device
    dtype: torch.dtype
    context: int
    vocabulary: int
    takes_types: bool
    is_causal: bool
    pad_id: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights."""
        return sum(tensor.numel() * tensor.itemsize for tensor in self.model.parameters())


def load_encoder(settings: EncoderSettings, progress: Progress) -> LoadedEncoder:
    """Load `settings.model_path` with transformers.

    Raises:
        ModelLoadError: the checkpoint has no such head or lacks weights, or a setting does not fit it.
    """
    device = pick_device(settings.device)
    prepare_device(device)
    torch.set_num_threads(settings.threads or available_cpus())
    progress("importing transformers", 0, 0)
    import transformers
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_tqdm_hook(lambda factory, args, kwargs: ReportingBar(progress, args, kwargs))
    path = Path(settings.model_path)
    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
    alone = settings.head is Head.EMBEDDING and _has_encoder_alone(config)
    name = _ENCODER_ALONE if alone else _CLASSES[settings.head]
    kind = getattr(transformers, name)
    dtype = _format(settings.dtype, config, device)
    try:
        model, report = kind.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            trust_remote_code=settings.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which are refused below, in words
        )
    except ValueError as exc:
        if "Unrecognized configuration class" not in str(exc):
            raise
        raise ModelLoadError(f"{path}: transformers has no {name} of model type {config.model_type!r}") from exc
    unused = _UNUSED if settings.head is Head.EMBEDDING else None
    check_weights(path, model, report, unused=unused)
    _cast_parameters(model, dtype)
    model = model.to(device).eval()
    text = config.get_text_config(encoder=True) if alone else config.get_text_config(decoder=True)
    longest = _longest(model, text)
    if fault := context_fault(settings.max_model_len, longest):
        raise ModelLoadError(fault)
    parameters = inspect.signature(model.forward).parameters
    return LoadedEncoder(
        model=model,
        device=device,
        dtype=model.dtype,
        context=settings.max_model_len or longest,
        vocabulary=model.get_input_embeddings().weight.shape[0],
        takes_types="token_type_ids" in parameters and getattr(text, "type_vocab_size", 0) > 1,
        is_causal=_is_causal(model, text),
        pad_id=getattr(text, "pad_token_id", None) or 0,
    )


def _has_encoder_alone(config: Any) -> bool:
    """Whether the encoder is but a part of the model, or of the one that it was taken from."""
    return bool(config.is_encoder_decoder) or any(name.endswith("EncoderModel") for name in config.architectures or ())


def _format(asked: str, config: Any, device: torch.device) -> torch.dtype:
    """What the model computes in: `option.dtype`; unset, the checkpoint's, and on a CPU fp32 unless it has bf16."""
    dtype = DTYPES[asked]
    if dtype == "auto":
        dtype = getattr(config, "dtype", None) or torch.float32
    if device.type == "cpu" and dtype is not torch.float32 and (asked in ("auto", "fp16")):
        return torch.bfloat16 if _multiplies_bf16() else torch.float32
    torch_dtype: torch.dtype = dtype
    return torch_dtype


def _cast_parameters(model: Any, dtype: torch.dtype) -> None:
    """Give parameters in fp32 the number format that the model is loaded in, unless transformers keeps them by name.

    A parameter whose class names fp32 (biases in DeBERTa's attention) is loaded in that, and meets others in products.
    A checkpoint that is stored quantized has scales in a format of their own.
    """
    if dtype is torch.float32 or getattr(model.config, "quantization_config", None) is not None:
        return
    kept = kept_in_fp32(model, is_fp16=dtype is torch.float16)
    for name, parameter in model.named_parameters():
        if parameter.dtype is torch.float32 and not any(part in name for part in kept):
            parameter.data = parameter.data.to(dtype)


def _multiplies_bf16() -> bool:
    """Whether this CPU has products of bf16 numbers."""
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def _longest(model: Any, config: Any) -> int:
    """Most tokens of a sequence: as many as there are positions. RoBERTa's begin behind the one of the padding."""
    context, longest = contexts(config)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings") and module.padding_idx is not None:
            return min(longest, module.num_embeddings - module.padding_idx - 1)
    return max(context, longest)


def _is_causal(model: Any, config: Any) -> bool:
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        return False
    attentions = [module for _, module in model.named_modules() if isinstance(getattr(module, "is_causal", None), bool)]
    return any(module.is_causal for module in attentions)
