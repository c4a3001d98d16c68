"""Generates text with transformers for LMI's generation parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..compat.request_io import Token
from .token_steps import TextOfTokens, end_tokens, token_steps

#: LMI's default.
DEFAULT_MAX_NEW_TOKENS: Final = 30
#: LMI's parameters that are about the answer's shape, or that `generate` has no counterpart of.
_NOT_FOR_GENERATE: Final = frozenset(
    "adapters decoder_input_details details frequency_penalty ignore_eos ignore_eos_token logprobs output_formatter "
    "presence_penalty request_id stream top_logprobs top_n_tokens".split()
)
_STOPS: Final = ("stop_sequences", "stop", "stop_sequence")


@dataclass(frozen=True)
class GenerationArguments:
    """What to generate: the arguments of `generate`, and what is done with the text."""

    arguments: Mapping[str, Any]
    stops: tuple[str, ...] = ()
    full_text: bool = False
    seed: int | None = None

    @classmethod
    def of(
        cls,
        parameters: Mapping[str, Any],
        stops: Sequence[str] = (),
        max_new_tokens: int | None = DEFAULT_MAX_NEW_TOKENS,
    ) -> GenerationArguments:
        """The generation that LMI's parameters ask for; names that LMI does not know are for `generate`.

        Args:
            stops: those of the model, where a request has none of its own.
            max_new_tokens: for requests that do not say; None: as the checkpoint says.
        """
        given = {name: value for name, value in parameters.items() if name not in _NOT_FOR_GENERATE}
        wanted: Any = next((given[name] for name in _STOPS if given.get(name)), stops)
        for name in _STOPS:
            given.pop(name, None)
        if "max_tokens" in given:
            given.setdefault("max_new_tokens", given.pop("max_tokens"))
        if "max_length" not in given and max_new_tokens is not None:
            given.setdefault("max_new_tokens", max_new_tokens)
        full_text, seed = bool(given.pop("return_full_text", False)), given.pop("seed", None)
        manual = given.pop("manual_seed", None)
        seed = manual if seed is None else seed
        given.setdefault("do_sample", False)
        return cls(
            {name: value for name, value in given.items() if value is not None},
            (wanted,) if isinstance(wanted, str) else tuple(wanted),
            full_text,
            None if seed is None else int(seed),
        )


class TextGeneration:
    """A pipeline in transformers' form: `pipeline(prompts, **parameters)` -> a `{"generated_text": ...}` for each.

    Attributes:
        model, tokenizer: transformers' own.
        stopping_criteria_list: the user's, in addition to a request's.
    """

    task = "text-generation"

    def __init__(self, model: Any, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.stops = tuple(stops)
        self.stopping_criteria_list: list[Callable[..., Any]] | None = None

    def __call__(self, inputs: str | Sequence[str], **parameters: Any) -> list[dict[str, str]]:
        import torch

        prompts = [inputs] if isinstance(inputs, str) else list(inputs)
        wanted = GenerationArguments.of(parameters, self.stops)
        _seed(wanted)
        encoded = self.tokenizer(prompts, return_tensors="pt", padding=True).to(self.model.device)
        with torch.inference_mode():
            tokens = self.model.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                **wanted.arguments,
                **({"stop_strings": list(wanted.stops), "tokenizer": self.tokenizer} if wanted.stops else {}),
                stopping_criteria=self.stopping_criteria_list,
            )
        new = tokens[:, encoded["input_ids"].shape[1] :]
        each = len(tokens) // len(prompts)  # num_return_sequences: the first is the best
        texts = self.tokenizer.batch_decode(new[::each], skip_special_tokens=True)
        return [
            {"generated_text": _finished(text, prompt, wanted)} for prompt, text in zip(prompts, texts, strict=True)
        ]

    def stream(self, prompts: Sequence[str], **parameters: Any) -> Iterator[list[str]]:
        """For each step, the text that it adds to each prompt's answer; at the end once more, if text was held back."""
        wanted = GenerationArguments.of(parameters, self.stops)
        yield from stream_texts(self.model, self.tokenizer, prompts, wanted)

    def tokens(self, prompt: str, parameters: Mapping[str, Any]) -> Generator[tuple[Token, str | None], None, None]:
        """The tokens of one prompt's answer, each with the reason to end where it is the last."""
        wanted = GenerationArguments.of(parameters, self.stops)
        _seed(wanted)
        text, ends = TextOfTokens(self.tokenizer, wanted.stops), end_tokens(self.model, self.tokenizer)
        before: tuple[Token, int] | None = None
        with contextlib.closing(token_steps(self.model, self.tokenizer, [prompt], wanted.arguments)) as steps:
            for (step,) in steps:
                if before is not None:
                    yield before[0], None
                is_end = step.token_id in ends
                before = Token(step.token_id, text.add(step.token_id), step.log_prob, is_end or None), step.token_id
                if text.stopped or is_end:
                    break
        if before is None:
            return
        token, token_id = before
        token.text += text.end()
        yield token, "stop_sequence" if text.stopped else "eos_token" if token_id in ends else "length"


def stream_texts(
    model: Any, tokenizer: Any, prompts: Sequence[str], wanted: GenerationArguments
) -> Iterator[list[str]]:
    """Generate, and yield for each step the text that it adds to each prompt's answer."""
    _seed(wanted)
    texts = [TextOfTokens(tokenizer, wanted.stops) for _ in prompts]
    ends, ended = end_tokens(model, tokenizer), [False] * len(prompts)
    with contextlib.closing(token_steps(model, tokenizer, prompts, wanted.arguments)) as generated:
        for steps in generated:
            pieces = []
            for index, (text, step) in enumerate(zip(texts, steps, strict=True)):
                pieces.append("" if ended[index] else text.add(step.token_id))
                ended[index] |= step.token_id in ends or text.stopped
            yield pieces
            if all(ended):
                break
    if any(held := [text.end() for text in texts]):
        yield held


def _finished(text: str, prompt: str, wanted: GenerationArguments) -> str:
    cuts = [at for stop in wanted.stops if (at := text.find(stop)) >= 0]
    text = text[: min(cuts)] if cuts else text
    return prompt + text if wanted.full_text else text


def _seed(wanted: GenerationArguments) -> None:
    if wanted.seed is not None:
        import torch

        torch.manual_seed(wanted.seed)
