"""Prompts with images in vLLM's form. Imported where vLLM is, in the engine process, by `engine` alone.

vLLM's own processor of a model prepares images and writes as many placeholders into the prompt as an image has tokens.
It gets the prompt as the chat template writes it: it would take further placeholders for further images.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
from PIL import Image
from vllm.exceptions import VLLMClientError
from vllm.inputs import MultiModalInput, TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM

from ...core.errors import ParameterError
from ...core.sequence_request import Pictures
from ...core.types import Array

_FIELD: Final = "messages"


class Renderer:
    """Makes vLLM's inputs of prompts with images.

    Attributes:
        takes_images: whether the model takes any.
    """

    def __init__(self, engine: AsyncLLM) -> None:
        self._renderer = engine.renderer
        config = engine.vllm_config.model_config
        self.takes_images = False
        if config.supports_multimodal_inputs:
            self.takes_images = self._renderer.get_mm_processor().info.allowed_mm_limits.get("image", 0) > 0
        # The worker knows how long a prompt may be, and says it in the words of the client's API.
        self._params = dataclasses.replace(self._renderer.default_cmpl_tok_params, max_total_tokens=None)
        hf_config = config.hf_config
        self._placeholder = getattr(hf_config, "image_token_id", getattr(hf_config, "image_token_index", None))

    async def render(self, pictures: Pictures) -> MultiModalInput:
        """The input of a prompt.

        vLLM caches prepared images under the digest of their files. The cache that it shares with its computing process
            is not used: a client that leaves in between would make the two differ.

        Raises:
            ParameterError: vLLM's processor refuses the images, or the prompt has not a placeholder for each.
        """
        prompt = TokensPrompt(
            prompt_token_ids=list(pictures.written),
            multi_modal_data={"image": [_image(pixels) for pixels in pictures.pixels]},
            multi_modal_uuids={"image": list(pictures.digests)},
        )
        try:
            (made,) = await self._renderer.render_cmpl_async([prompt], self._params, skip_mm_cache=True)
        except (VLLMClientError, ValueError, RuntimeError, LookupError, TypeError) as exc:  # processors raise anything
            raise ParameterError(f"{_FIELD}: vLLM refuses the images: {exc}", _FIELD) from exc
        self._check_placeholders(made)
        return made

    def _check_placeholders(self, made: Any) -> None:
        """Refuse placeholders that stand for no image: somebody has written them into a message's text."""
        ids, taken = made["prompt_token_ids"], set[int]()
        for place in made["mm_placeholders"].get("image", ()):
            taken |= set(range(place.offset, place.offset + place.length))
        if any(token == self._placeholder and index not in taken for index, token in enumerate(ids)):
            raise ParameterError(f"{_FIELD}: a message's text must not have the model's token for an image", _FIELD)


def _image(pixels: Array) -> Image.Image:
    return Image.fromarray(np.frombuffer(pixels.data, np.dtype(pixels.dtype)).reshape(pixels.shape))
