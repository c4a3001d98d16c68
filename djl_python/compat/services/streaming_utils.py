"""DJL's `StreamingUtils`: text of a transformers model, piece by piece, for `Output.add_stream_content`.

Runs in the worker. Importing this loads neither torch nor transformers.

    generate = StreamingUtils.get_stream_generator("Accelerate")
    return Output().add_stream_content(generate(model, tokenizer, ["a prompt"], device, max_new_tokens=20))
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from ...pipelines.text_generation import GenerationArguments, stream_texts


class HFStreamer:
    """What `model.generate(streamer=...)` calls; iterate over it for the text of each step, a list by sequence.

    The prompts, which `generate` puts first, are not among them.
    """

    def __init__(self, tokenizer: Any, **decode_kwargs: Any) -> None:
        self.tokenizer = tokenizer
        self.decode_kwargs = decode_kwargs
        self.started = False
        self.stop_signal: Any = None
        self.queue: queue.Queue[Any] = queue.Queue()

    def put(self, value: Any) -> None:
        """Take the tokens of a step."""
        if self.started:
            rows = value if value.dim() > 1 else value[:, None]
            self.queue.put([self.tokenizer.decode(row, **self.decode_kwargs) for row in rows])
        self.started = True

    def put_text(self, value: Any) -> None:
        """Take a text as it is."""
        self.queue.put(value)

    def end(self) -> None:
        """End the iteration."""
        self.queue.put(self.stop_signal)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        value = self.queue.get()
        if value is self.stop_signal:
            raise StopIteration
        return value


class StreamingUtils:
    """Functions that generate text step by step. Each yields a list of texts, one for each prompt."""

    DEFAULT_MAX_NEW_TOKENS = 50
    BUILTIN_ENGINES: ClassVar[frozenset[str]] = frozenset({"DeepSpeed", "Accelerate", "transformers-neuronx"})

    @staticmethod
    def get_stream_generator(execution_engine: str) -> Callable[..., Iterator[list[str]]]:
        """The function `generate(model, tokenizer, inputs, device=None, **parameters)` for a backend.

        `inputs` are prompts; parameters are LMI's, or those of transformers' `generate`.

        Raises:
            ValueError: DJL streams with no such backend.
        """
        if execution_engine not in StreamingUtils.BUILTIN_ENGINES:
            expected = ", ".join(sorted(StreamingUtils.BUILTIN_ENGINES))
            raise ValueError(f"{execution_engine} engine is not supported for streaming: expected one of {expected}")
        return StreamingUtils._generate

    @staticmethod
    def use_hf_default_streamer(
        model: Any, tokenizer: Any, inputs: str | Sequence[str], device: Any = None, **kwargs: Any
    ) -> Iterator[list[str]]:
        """Generate with transformers' own `generate`, as all backends do here; `inputs` may be a single prompt."""
        prompts = [inputs] if isinstance(inputs, str) else list(inputs)
        return StreamingUtils._generate(model, tokenizer, prompts, device, **kwargs)

    @staticmethod
    def _generate(
        model: Any, tokenizer: Any, inputs: Sequence[str], device: Any = None, **kwargs: Any
    ) -> Iterator[list[str]]:
        if isinstance(inputs, str) or not inputs or not all(isinstance(prompt, str) for prompt in inputs):
            raise ValueError("a stream generator takes a list of prompts")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        if not model.config.is_encoder_decoder:
            tokenizer.padding_side = "left"
        wanted = GenerationArguments.of(kwargs, max_new_tokens=StreamingUtils.DEFAULT_MAX_NEW_TOKENS)
        return stream_texts(model, tokenizer, inputs, wanted)
