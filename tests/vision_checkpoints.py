"""Small random vision-language checkpoints with their processors, loaded by the real loading code."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.version import Version
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    Gemma3TextConfig,
    Idefics3Config,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlamaConfig,
    LlavaConfig,
    LlavaProcessor,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2VLConfig,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    Qwen3VLConfig,
    Qwen3VLProcessor,
    SiglipVisionConfig,
)

from tests.checkpoints import RELEASE

_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 24,
    "patch_size": 6,
    "initializer_range": 0.5,
}
#: Text and images of the user's in the order they come; every message ends with "\\n". Knows lists of parts only.
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def _tokenizer(**special: str) -> Any:
    """One token for each byte, and the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "</s>"]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate([*names, *alphabet])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", extra_special_tokens=special
    )


def _llava(text: dict[str, Any]) -> tuple[PretrainedConfig, ProcessorMixin]:
    tokenizer = _tokenizer(image_token="<image>")
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_VISION, projection_dim=32),
        text_config=LlamaConfig(**text, vocab_size=len(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="default",
    )
    images = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    processor = LlavaProcessor(
        images,
        tokenizer,
        patch_size=6,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
    )
    return config, processor


def _idefics3(text: dict[str, Any]) -> tuple[PretrainedConfig, ProcessorMixin]:
    tokenizer = _tokenizer(
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
        end_of_utterance_token="<end_of_utterance>",
    )
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 48}, max_image_size={"longest_edge": 24}, do_image_splitting=True
    )
    processor = Idefics3Processor(
        images, tokenizer, image_seq_len=4, chat_template=TEMPLATE.replace("IMAGE", "<image>")
    )
    config = Idefics3Config(
        vision_config={**_VISION, "model_type": "idefics3_vision"},
        text_config=LlamaConfig(**text, vocab_size=len(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    return config, processor


class _Stills:
    """A processor of Qwen's without its videos, which need torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return type(argument)

    def save_pretrained(self, save_directory: str | Path, **_: Any) -> None:
        self.tokenizer.save_pretrained(save_directory)  # type: ignore[attr-defined]


class Qwen2VLStills(_Stills, Qwen2VLProcessor):  # type: ignore[misc]
    """Qwen2-VL's."""


class Qwen3VLStills(_Stills, Qwen3VLProcessor):  # type: ignore[misc]
    """Qwen3-VL's."""


def _qwen_vl(
    config_class: type[PretrainedConfig],
    processor_class: type[ProcessorMixin],
    vision: dict[str, Any],
    text: dict[str, Any],
) -> tuple[PretrainedConfig, ProcessorMixin]:
    tokenizer = _tokenizer(
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_bos_token="<|vision_start|>",
        vision_eos_token="<|vision_end|>",
    )
    images = Qwen2VLImageProcessorPil(
        patch_size=6, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 24 * 24, "longest_edge": 48 * 48}
    )
    vision = {
        "num_heads": 2,
        "patch_size": 6,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "initializer_range": 0.5,
        **vision,
    }
    eighth = text["head_dim"] // 8
    sections = [eighth, eighth * 3 // 2, eighth * 3 // 2]
    rope = {"rope_type": "default", "mrope_section": sections, "rope_theta": 10000.0}
    config = config_class(
        vision_config=vision,
        text_config={**text, "vocab_size": len(tokenizer), "rope_parameters": rope},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    template = TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    return config, processor_class(images, tokenizer, chat_template=template)


def _qwen2_vl(text: dict[str, Any]) -> tuple[PretrainedConfig, ProcessorMixin]:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    return _qwen_vl(Qwen2VLConfig, Qwen2VLStills, vision, text)


def _qwen3_vl(text: dict[str, Any]) -> tuple[PretrainedConfig, ProcessorMixin]:
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    return _qwen_vl(Qwen3VLConfig, Qwen3VLStills, vision, text)


def _gemma3(text: dict[str, Any]) -> tuple[PretrainedConfig, ProcessorMixin]:
    tokenizer = _tokenizer(boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>")
    images = Gemma3ImageProcessorPil(size={"height": 24, "width": 24}, do_pan_and_scan=False)
    processor = Gemma3Processor(
        images, tokenizer, image_seq_length=4, chat_template=TEMPLATE.replace("IMAGE", "<start_of_image>")
    )
    config = Gemma3Config(
        vision_config=SiglipVisionConfig(**_VISION, vision_use_head=False),
        text_config=Gemma3TextConfig(**text, sliding_window=24, vocab_size=len(tokenizer), query_pre_attn_scalar=16),
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<end_of_image>"),
        image_token_index=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
    )
    return config, processor


#: What each stands for.
VISION_ARCHITECTURES: dict[str, Callable[[dict[str, Any]], tuple[PretrainedConfig, ProcessorMixin]]] = {
    "llava": _llava,  # one run of placeholders an image
    "idefics3": _idefics3,  # an image in tiles, text between them, a mask on the pixels
    "qwen2_vl": _qwen2_vl,  # positions in three dimensions, as many tokens as the image is large
    "qwen3_vl": _qwen3_vl,  # an image enters at several layers: it can't be paged
    "gemma3": _gemma3,  # an image's tokens see each other: it can't be paged either
}

if Version("5.16") > RELEASE:  # where its processor needs torchvision
    del VISION_ARCHITECTURES["idefics3"]


def build_vision_checkpoint(path: Path, architecture: str, head_dim: int = 16) -> ProcessorMixin:
    """Save a random model of this architecture, the same one every time, with its processor; gives the processor.

    Args:
        head_dim: of the language model's attention.
    """
    config, processor = VISION_ARCHITECTURES[architecture]({**_TEXT, "head_dim": head_dim})
    torch.manual_seed(7)
    model = AutoModelForImageTextToText.from_config(config).to(torch.float32)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return processor


def picture(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """A picture that is like no other."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(noise)


def png(image: Image.Image) -> bytes:
    """A PNG file of it."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def data_url(image: Image.Image) -> str:
    """A data URL of it."""
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"
