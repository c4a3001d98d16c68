"""Tokens of transformers' `generate` as they come, and their text.

`generate` runs in a thread of its own, and stops when nobody reads any more.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from ..text.stop import StopMatcher, StopSequences

_END: Final = object()
#: Tokens that are decoded with a new one, since its text may depend on them.
_CONTEXT: Final = 4


@dataclass(frozen=True)
class PipelineStep:
    """One sequence's next token, with its log-probability before temperature and the like."""

    token_id: int
    log_prob: float


class _Streamer:
    """What `generate` calls: with the prompts, then with each step's tokens."""

    def __init__(self) -> None:
        self.steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._prompts_seen = False
        self._scores: Any = None

    def record(self, _: Any, scores: Any) -> Any:
        """A logits processor that changes nothing."""
        self._scores = scores
        return scores

    def put(self, value: Any) -> None:
        if not self._prompts_seen:
            self._prompts_seen = True
            return
        tokens = value.flatten()
        chosen = self._scores.float().log_softmax(-1).cpu().gather(-1, tokens.cpu()[:, None])[:, 0]
        self.steps.put(
            [PipelineStep(int(token), float(log_prob)) for token, log_prob in zip(tokens, chosen, strict=True)]
        )

    def end(self) -> None:
        """Nothing: the end is that `generate` returns."""


def token_steps(
    model: Any, tokenizer: Any, prompts: Sequence[str], arguments: Mapping[str, Any]
) -> Generator[list[PipelineStep], None, None]:
    """Generate, and yield for each step a `PipelineStep` for each prompt; a finished prompt goes on with padding.

    Args:
        arguments: of `generate`.

    Raises:
        Exception: `generate` raised it.
    """
    streamer, stopped = _Streamer(), threading.Event()

    def stop(input_ids: Any, scores: Any, **_: Any) -> Any:
        return input_ids.new_full((len(input_ids),), stopped.is_set()).bool()

    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True).to(model.device)
    with ThreadPoolExecutor(1, "generate") as executor:
        generating = executor.submit(
            model.generate,
            # Not token_type_ids, which some tokenizers make and decoders do not know.
            **{name: inputs[name] for name in ("input_ids", "attention_mask")},
            **arguments,
            streamer=streamer,
            logits_processor=[streamer.record],
            stopping_criteria=[stop],
        )
        generating.add_done_callback(lambda _: streamer.steps.put(_END))
        try:
            while (step := streamer.steps.get()) is not _END:
                yield step
        finally:
            stopped.set()
        generating.result()


class TextOfTokens:
    """The text of one sequence, token by token. Held back: an unfinished character, and what may begin a stop sequence.

    Attributes:
        stopped: whether a stop sequence has ended the text.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = ""
        self._held = ""
        self._matcher = StopMatcher(StopSequences(stops)) if stops else None
        self.stopped = False

    def add(self, token_id: int) -> str:
        """The text that a token completes."""
        self._ids.append(token_id)
        text = self._decode()
        if text.endswith("\ufffd"):
            return ""
        piece, self._shown = text[len(self._shown) :], text
        if len(self._ids) > 4 * _CONTEXT:
            del self._ids[:-_CONTEXT]
            self._shown = self._decode()
        return self._released(piece)

    def end(self) -> str:
        """What was held back, after the last token."""
        piece = self._decode()[len(self._shown) :]
        released = self._released(piece)
        held, self._held = self._held, ""
        return released if self.stopped else released + held

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._ids, skip_special_tokens=True))

    def _released(self, piece: str) -> str:
        if self.stopped:
            return ""
        if self._matcher is None:
            return piece
        match = self._matcher.feed(piece)
        text = self._held + piece
        if match is not None:
            self.stopped = True
            end, self._held = match[0] + len(self._held), ""
            return text[:end]
        at = len(text) - self._matcher.held
        self._held = text[at:]
        return text[:at]


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a sequence."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    ids = tokenizer.eos_token_id if ids is None else ids
    return frozenset(ids if isinstance(ids, list | tuple) else () if ids is None else (ids,))
