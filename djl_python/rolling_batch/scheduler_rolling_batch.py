"""The rolling batch of `HuggingFaceService`: transformers' `generate` for each request, their tokens in turns.

Runs in the worker. It is for a `model.py` that wraps the service; many requests are better served by the built-in
handler, whose engine batches them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from ..compat.request import Request
from ..compat.request_io import Token
from ..pipelines.loading import load_model, load_tokenizer
from ..pipelines.text_generation import TextGeneration
from ..properties_manager.scheduler_rb_properties import SchedulerRbProperties
from .rolling_batch import RollingBatch, stop_on_any_exception


class SchedulerRollingBatch(RollingBatch):
    """Each request has a generation of its own; a step takes the next token of each.

    Attributes:
        model, tokenizer: transformers' own.
    """

    def __init__(self, model_id_or_path: str, properties: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(SchedulerRbProperties(**{**properties, "model_id_or_path": model_id_or_path}))
        self.model = load_model(model_id_or_path, self.configs, "AutoModelForCausalLM")
        self.tokenizer = load_tokenizer(model_id_or_path, self.configs, for_decoder=True)
        self._pipeline = TextGeneration(self.model, self.tokenizer)
        self._generations: dict[int, Generator[tuple[Token, str | None], None, None]] = {}

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    def reset(self) -> None:
        super().reset()
        for generation in self._generations.values():
            generation.close()
        self._generations = {}

    @stop_on_any_exception
    def inference(self, requests: list[Request]) -> list[dict[str, Any]]:
        self.preprocess_requests(self.get_new_requests(requests))
        for request in self.active_requests:
            token, reason = next(self._generations[request.id])
            request.set_next_token(token, last_token=reason is not None, finish_reason=reason)
            if reason is not None:
                del self._generations[request.id]
        return self.postprocess_results()

    def preprocess_requests(self, requests: list[Request]) -> None:
        for request in requests:
            self._generations[request.id] = self._pipeline.tokens(request.input_text or "", request.parameters)
