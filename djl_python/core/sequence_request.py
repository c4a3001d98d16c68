"""One sequence that an engine is to generate, and its images. Runs in every process; depends on nothing but msgspec.

A handler makes it, `EngineClient.submit` sends it as it is, and the engine's `add` or `generate` gets it: a further
field is declared here and read where it has an effect, and nothing between the two changes.
"""

from __future__ import annotations

import msgspec

from .turns.precedence import ANY, Precedence
from .types import Array, Images, SamplingParams


class Pictures(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Decoded images, and the prompt that they are for as its chat template writes it: a placeholder for each.

    Attributes:
        pixels: (height, width, 3) of uint8, upright and in RGB, in the order of the placeholders.
        digests: of the files, in hexadecimal: equal files are equal images.
        written: the token ids of that prompt.
        length: how many ids the model gets for it (`AsyncEngine.expand`); 0: nobody has asked yet.
    """

    pixels: tuple[Array, ...]
    digests: tuple[str, ...]
    written: tuple[int, ...]
    length: int = 0


#: The images of a prompt in either form; which one an engine takes, its row says (`Engine.prepares_images`).
AnyImages = Images | Pictures


class SequenceRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A prompt and how to go on from it; a message of `ipc.protocol`.

    Attributes:
        prompt_ids: the prompt's token ids. With `Pictures` they begin with the ids that `AsyncEngine.expand` answered.
            With `encoder_ids`, those that the decoder goes on from.
        sampling: how the tokens after it are drawn.
        id: by this number its events, its cancellation and its errors name it. `EngineClient.submit` assigns it.
        images: those of the prompt, in the form that the engine takes (`Engine.prepares_images`).
        adapter: the name of one of the model's LoRA adapters; "": none.
        http_request_id: of the HTTP request that it belongs to, for log lines.
        encoder_ids: what the encoder of an encoder-decoder model reads; empty for a model that is a decoder alone.
        precedence: whose it is and how urgent.
        adapter_version: which of the adapters that have had this name: 0 is one that the engine was opened with, and
            each that is registered later has another number. All sequences of a call have the same.
        cache_salt: only prompts with an equal one share KV blocks with it (vLLM's `cache_salt`).
    """

    prompt_ids: list[int]
    sampling: SamplingParams
    id: int = 0
    images: AnyImages | None = None
    adapter: str = ""
    http_request_id: str = ""
    encoder_ids: list[int] = []
    precedence: Precedence = ANY
    cache_salt: str = ""
    adapter_version: int = 0
