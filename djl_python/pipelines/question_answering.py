"""Extractive question answering, which transformers 5 has models for and no pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..core.errors import PayloadError

_NOTHING: Final = -1e9


class QuestionAnswering:
    """`pipeline([{"question": ..., "context": ...}])` -> for each the best span of the context.

    A span is `{"score", "start", "end", "answer"}`, with `start` and `end` in characters; with `top_k` above 1, a list
    of them. A context that the model can't take at once is read in overlapping windows of `doc_stride` tokens.
    """

    task = "question-answering"

    def __init__(self, model: Any, tokenizer: Any) -> None:
        if not tokenizer.is_fast:
            raise ValueError(
                f"question answering needs a tokenizer with tokenizer.json, {tokenizer.name_or_path} has none"
            )
        self.model = model
        self.tokenizer = tokenizer

    def __call__(
        self, inputs: Any, *, top_k: int = 1, max_answer_len: int = 15, doc_stride: int = 128, **_: Any
    ) -> list[Any]:
        items = inputs if isinstance(inputs, list) else [inputs]
        found = [self._spans(*_question(item), top_k, max_answer_len, doc_stride) for item in items]
        return [spans[0] if top_k == 1 else spans for spans in found]

    def _spans(self, question: str, context: str, top_k: int, longest: int, stride: int) -> list[dict[str, Any]]:
        import torch

        most = min(self.tokenizer.model_max_length, getattr(self.model.config, "max_position_embeddings", 512))
        windows = self.tokenizer(
            *(question, context),
            truncation="only_second",
            max_length=min(most, 384),
            stride=min(stride, most // 4),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=True,
            return_tensors="pt",
        )
        taken = {name: windows[name] for name in self.tokenizer.model_input_names if name in windows}
        with torch.inference_mode():
            output = self.model(**{name: tensor.to(self.model.device) for name, tensor in taken.items()})
        spans = []
        for index, offsets in enumerate(windows["offset_mapping"].tolist()):
            of_context = torch.tensor([part == 1 for part in windows.sequence_ids(index)])
            starts, ends = (
                logits[index].float().cpu().masked_fill(~of_context, _NOTHING).softmax(-1)
                for logits in (output.start_logits, output.end_logits)
            )
            scores = torch.triu(starts[:, None] * ends[None, :]).tril(longest - 1)
            best = scores.flatten().topk(min(top_k, scores.numel()))
            for score, at in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                start, end = offsets[at // len(offsets)][0], offsets[at % len(offsets)][1]
                spans.append({"score": score, "start": start, "end": end, "answer": context[start:end]})
        return sorted(spans, key=lambda span: -span["score"])[:top_k]


def _question(item: Any) -> tuple[str, str]:
    if isinstance(item, Mapping) and all(isinstance(item.get(name), str) for name in ("question", "context")):
        return item["question"], item["context"]
    raise PayloadError("expected an object with the texts question and context", "inputs")
