"""Extractive question answering, which transformers 5 has models for and no pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..core.errors import PayloadError

#: The logit of tokens where no answer can begin or end, as in the pipeline of transformers 4.
_NEVER: Final = -1e4


class QuestionAnswering:
    """`pipeline([{"question": ..., "context": ...}])` -> for each the best span of the context.

    A span is `{"score", "start", "end", "answer"}`, with `start` and `end` in characters; with `top_k` above 1, a list
    of them. A context that the model can't take at once is read in overlapping windows of `doc_stride` tokens. Answers
    begin and end with whole words unless `align_to_words` is false. With `handle_impossible_answer`, an empty answer is
    among them, whose score is that of the first token. Scores are those of transformers 4's pipeline.
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
        self,
        inputs: Any,
        *,
        top_k: int = 1,
        max_answer_len: int = 15,
        doc_stride: int = 128,
        align_to_words: bool = True,
        handle_impossible_answer: bool = False,
        **_: Any,
    ) -> list[Any]:
        items = inputs if isinstance(inputs, list) else [inputs]
        answers = [
            self._spans(
                *_question(item),
                *(top_k, max_answer_len, doc_stride),
                whole_words=align_to_words,
                may_have_none=handle_impossible_answer,
            )
            for item in items
        ]
        return [spans[0] if top_k == 1 else spans for spans in answers]

    def _spans(
        self,
        question: str,
        context: str,
        top_k: int,
        longest: int,
        stride: int,
        *,
        whole_words: bool,
        may_have_none: bool,
    ) -> list[dict[str, Any]]:
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
        spans, nothing = [], 1.0
        for index, offsets in enumerate(windows["offset_mapping"].tolist()):
            of_context = torch.tensor([part == 1 for part in windows.sequence_ids(index)])
            allowed = of_context | (windows["input_ids"][index] == self.tokenizer.cls_token_id)
            starts, ends = (
                logits[index].float().cpu().masked_fill(~allowed, _NEVER).softmax(-1)
                for logits in (output.start_logits, output.end_logits)
            )
            nothing = min(nothing, float(starts[0] * ends[0]))
            starts[0] = ends[0] = 0
            scores = torch.triu(starts[:, None] * ends[None, :]).tril(longest - 1)
            best = scores.flatten().topk(min(top_k, scores.numel()))
            for score, at in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                first, last = divmod(at, len(offsets))
                if first > last or not (of_context[first] and of_context[last]):
                    continue
                start, end = offsets[first][0], offsets[last][1]
                if whole_words:
                    start, end = _word(windows, index, first, offsets)[0], _word(windows, index, last, offsets)[1]
                spans.append({"score": score, "start": start, "end": end, "answer": context[start:end]})
        if may_have_none:
            spans.append({"score": nothing, "start": 0, "end": 0, "answer": ""})
        return sorted(spans, key=lambda span: -span["score"])[:top_k]


def _word(windows: Any, index: int, at: int, offsets: Any) -> tuple[int, int]:
    """The characters of the word that a token of the context is of; of the token where nobody knows its word."""
    word = windows.token_to_word(index, at)
    span: tuple[int, int] = offsets[at] if word is None else windows.word_to_chars(index, word, sequence_index=1)
    return span


def _question(item: Any) -> tuple[str, str]:
    if isinstance(item, Mapping) and all(isinstance(item.get(name), str) for name in ("question", "context")):
        return item["question"], item["context"]
    raise PayloadError("expected an object with the texts question and context", "inputs")
