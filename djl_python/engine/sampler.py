"""Draws the next token of every sequence of the batch at once. Runs in the engine process.

Each rule works on the rows that ask for it, in the order `SamplingParams` gives. What is drawn for a row depends on
that row's logits, parameters, seed and position only, never on the rest of the batch: one uniform number per row and
token comes from a counter-based generator (a hash of seed and position), so a preempted or retried request draws what
it would have drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..types import SamplingParams
from .sequence import PromptEntry, Sequence

# Candidates that are looked at before a row's whole vocabulary is sorted.
CANDIDATES = 1024
_NO_TOP: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Sampled:
    """One row's draw; `top` are (id, logprob), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = _NO_TOP


class Sampler:
    """Sampling state that outlives a step: token counts of the sequences with penalties.

    Args:
        eos_ids: tokens that a minimum length forbids.
    """

    def __init__(self, vocabulary: int, eos_ids: frozenset[int], device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = eos_ids
        self._device = device
        self._penalties = _PenaltyTable(vocabulary, device)
        self._plan: _Plan | None = None

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._penalties.drop(sequence.id)

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> list[Sampled]:
        """Draw for each row of `logits` (N, vocabulary)."""
        raw = logits.float()
        plan = self._plan_for(sequences)
        scores = self._rule_out(raw, sequences, plan)
        tokens = scores.argmax(-1)
        if plan.sampled:
            rows = plan.sampled_rows
            picked = scores if plan.all_sampled else scores[rows]
            drawn = _draw(picked / plan.temperature, plan, _uniforms(sequences, plan))
            tokens = tokens.index_copy(0, rows, drawn)
        normalizer = raw.logsumexp(-1)
        logprobs = raw.gather(1, tokens[:, None])[:, 0] - normalizer
        self._penalties.count(plan.penalized, sequences, tokens)
        tops = _top(raw, normalizer, plan)
        return [
            Sampled(token, logprob, tops.get(row, _NO_TOP))
            for row, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True))
        ]

    def _plan_for(self, sequences: list[Sequence]) -> _Plan:
        ids = [sequence.id for sequence in sequences]
        if self._plan is None or self._plan.ids != ids:
            self._plan = _Plan(ids, [sequence.sampling for sequence in sequences], self._vocabulary, self._device)
        return self._plan

    def _rule_out(self, raw: Tensor, sequences: list[Sequence], plan: _Plan) -> Tensor:
        """Bad words, minimum length and penalties; `raw` itself stays as it is."""
        banned = [
            (row, token)
            for row in plan.restricted
            for token in _banned(sequences[row], self._eos_ids, self._vocabulary)
        ]
        if not banned and not plan.penalized:
            return raw
        scores = raw.clone()
        if banned:
            rows, ids = torch.tensor(banned, device=self._device).T
            scores[rows, ids] = float("-inf")
        if plan.penalized:
            self._penalties.apply(scores, plan, sequences)
        return scores


class _Plan:
    """The batch's parameters as tensors; kept for as long as the batch has the same members."""

    def __init__(self, ids: list[int], params: list[SamplingParams], vocabulary: int, device: torch.device) -> None:
        self.ids = ids
        self.restricted = [row for row, p in enumerate(params) if p.bad_words_ids or p.min_new_tokens]
        self.penalized = [
            row
            for row, p in enumerate(params)
            if p.repetition_penalty != 1 or p.presence_penalty or p.frequency_penalty
        ]
        self.penalized_rows = torch.tensor(self.penalized, device=device)
        penalties = [
            (params[row].repetition_penalty, params[row].presence_penalty, params[row].frequency_penalty)
            for row in self.penalized
        ]
        self.repetition, self.presence, self.frequency = (
            torch.tensor(penalties, dtype=torch.float32, device=device).reshape(-1, 3).T[:, :, None]
        )
        self.sampled = [row for row, p in enumerate(params) if p.do_sample and p.temperature > 0]
        self.all_sampled = len(self.sampled) == len(params)
        self.sampled_rows = torch.tensor(self.sampled, dtype=torch.long, device=device)
        chosen = [params[row] for row in self.sampled]
        self.seeds = np.array([p.seed for p in chosen], np.uint64)
        numbers = [
            (p.temperature, min(p.top_k or vocabulary, vocabulary), p.top_p, p.min_p, p.typical_p) for p in chosen
        ]
        self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p = (
            torch.tensor(numbers, dtype=torch.float32, device=device).reshape(-1, 5).T[:, :, None]
        )
        self.filtered = [i for i, p in enumerate(chosen) if p.top_k or p.top_p < 1 or p.min_p > 0 or p.typical_p < 1]
        self.unfiltered = sorted(set(range(len(chosen))) - set(self.filtered))
        self.tops = [(row, p.top_logprobs) for row, p in enumerate(params) if p.top_logprobs]


def _draw(scores: Tensor, plan: _Plan, uniforms: Tensor) -> Tensor:
    """Token ids (R,) for the sampled rows' scores (R, vocabulary), already divided by temperature."""
    drawn = torch.empty(scores.shape[0], dtype=torch.long, device=scores.device)
    if plan.unfiltered:
        rows = torch.tensor(plan.unfiltered, device=scores.device)
        drawn[rows] = _invert(scores[rows].softmax(-1), uniforms[rows])
    vocabulary = scores.shape[1]
    open_rows = torch.tensor(plan.filtered, dtype=torch.long, device=scores.device)
    for width in sorted({min(CANDIDATES, vocabulary), vocabulary}):
        if not len(open_rows):
            break
        picked = scores[open_rows]
        values, ids = picked.topk(width, dim=-1)  # best first
        probabilities = (values - picked.logsumexp(-1, keepdim=True)).exp()
        kept, certain = _filter(probabilities, plan, open_rows, vocabulary)
        choice = ids.gather(1, _invert(probabilities * kept, uniforms[open_rows])[:, None])[:, 0]
        drawn[open_rows[certain]] = choice[certain]
        open_rows = open_rows[~certain]
    return drawn


def _filter(probabilities: Tensor, plan: _Plan, rows: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Which candidates stay, and for which rows that is certain without seeing the rest of the vocabulary.

    Args:
        probabilities: (R, K), falling along K; they sum to less than 1 where candidates were cut off.
    """
    width = probabilities.shape[1]
    top_k, top_p, typical_p = plan.top_k[rows], plan.top_p[rows], plan.typical_p[rows]
    kept = torch.arange(width, device=probabilities.device) < top_k
    # top_p takes its share of what top_k left, the token that crosses it included
    left = probabilities * kept
    mass = torch.where(top_k < vocabulary, left.sum(-1, keepdim=True), 1.0)
    kept &= (left.cumsum(-1) - left < top_p * mass) | (top_p >= 1)
    kept &= probabilities >= plan.min_p[rows] * probabilities[:, :1]
    kept[:, 0] = True
    certain = (top_k <= width) | ((top_k >= vocabulary) & ~kept[:, -1:])
    if (typical_p < 1).any():
        kept = torch.where(typical_p < 1, _typical(probabilities * kept, typical_p), kept)
    return kept, certain[:, 0]


def _typical(probabilities: Tensor, typical_p: Tensor) -> Tensor:
    """Locally typical sampling: keep the tokens whose information is nearest the entropy, up to a mass of typical_p."""
    normal = probabilities / probabilities.sum(-1, keepdim=True)
    log = normal.log()
    entropy = -(normal * log).nansum(-1, keepdim=True)
    order = (-log - entropy).abs().argsort(dim=-1, stable=True)
    ordered = normal.gather(1, order)
    kept = (ordered.cumsum(-1) - ordered < typical_p) & (ordered > 0)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter(1, order, kept)


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The index where the running sum passes uniform * total. Never one of probability 0."""
    sums = probabilities.cumsum(-1)
    total = sums[:, -1:]
    # strictly below the total, so that the last index found has a probability
    target = torch.minimum(uniforms[:, None] * total, total * (1 - 2**-23))
    return torch.searchsorted(sums, target, right=True)[:, 0].clamp(max=probabilities.shape[1] - 1)


def _uniforms(sequences: list[Sequence], plan: _Plan) -> Tensor:
    """One number in [0, 1) per sampled row."""
    positions = np.array([sequences[row].generated for row in plan.sampled], np.uint64)
    mixed = _mix(_mix(plan.seeds) + positions)
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53).float().to(plan.temperature.device)


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's step and finalizer: 64 well-mixed bits of each 64-bit state."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _top(raw: Tensor, normalizer: Tensor, plan: _Plan) -> dict[int, tuple[tuple[int, float], ...]]:
    """The best alternatives of the rows that asked."""
    if not plan.tops:
        return {}
    rows = torch.tensor([row for row, _ in plan.tops], device=raw.device)
    values, ids = raw[rows].topk(min(max(n for _, n in plan.tops), raw.shape[1]), dim=-1)
    logprobs = (values - normalizer[rows, None]).tolist()
    return {
        row: tuple(zip(token_ids[:n], row_logprobs[:n], strict=True))
        for (row, n), token_ids, row_logprobs in zip(plan.tops, ids.tolist(), logprobs, strict=True)
    }


def prompt_entries(logits: Tensor, next_ids: list[int], alternatives: int) -> list[PromptEntry]:
    """Log-probabilities of prompt tokens: row i of `logits` (n, vocabulary) predicts `next_ids[i]`."""
    raw = logits.float()
    normalizer = raw.logsumexp(-1)
    chosen = raw.gather(1, torch.tensor(next_ids, device=raw.device)[:, None])[:, 0] - normalizer
    if not alternatives:
        return [(logprob, _NO_TOP) for logprob in chosen.tolist()]
    values, ids = raw.topk(min(alternatives, raw.shape[1]), dim=-1)
    tops = zip(ids.tolist(), (values - normalizer[:, None]).tolist(), strict=True)
    return [
        (logprob, tuple(zip(top_ids, top_logprobs, strict=True)))
        for logprob, (top_ids, top_logprobs) in zip(chosen.tolist(), tops, strict=True)
    ]


def _banned(sequence: Sequence, eos_ids: frozenset[int], vocabulary: int) -> list[int]:
    """Tokens that this sequence must not draw now."""
    sampling = sequence.sampling
    banned: list[int] = []
    if sequence.generated < sampling.min_new_tokens:
        banned += [i for i in (*eos_ids, *sampling.stop_token_ids) if i < vocabulary]
    for word in sampling.bad_words_ids:
        head = len(word) - 1
        if not head or (len(sequence.tokens) >= head and tuple(sequence.tokens[-head:]) == word[:-1]):
            banned.append(word[-1])
    return banned


class _PenaltyTable:
    """How often each token has occurred, for the sequences that are penalized for it. Grows as needed."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._counts = torch.zeros(0, vocabulary, dtype=torch.int32, device=device)  # generated
        self._seen = torch.zeros(0, vocabulary, dtype=torch.bool, device=device)  # prompt and generated

    def apply(self, scores: Tensor, plan: _Plan, sequences: list[Sequence]) -> None:
        """Penalize the plan's rows in place."""
        table_rows = torch.tensor([self._row(sequences[row]) for row in plan.penalized], device=self._device)
        counts, seen = self._counts[table_rows], self._seen[table_rows]
        picked = scores[plan.penalized_rows]
        repeated = torch.where(picked > 0, picked / plan.repetition, picked * plan.repetition)
        picked = torch.where(seen, repeated, picked)
        picked = picked - plan.frequency * counts - plan.presence * (counts > 0)
        scores[plan.penalized_rows] = picked

    def count(self, rows: list[int], sequences: list[Sequence], tokens: Tensor) -> None:
        """Count the tokens just drawn."""
        if not rows:
            return
        table_rows = torch.tensor([self._row(sequences[row]) for row in rows], device=self._device)
        drawn = tokens[rows]
        self._counts[table_rows, drawn] += 1
        self._seen[table_rows, drawn] = True

    def drop(self, sequence_id: int) -> None:
        """Give a row back."""
        row = self._row_of.pop(sequence_id, None)
        if row is not None:
            self._free.append(row)

    def _row(self, sequence: Sequence) -> int:
        row = self._row_of.get(sequence.id)
        if row is None:
            if not self._free:
                self._grow()
            row = self._row_of[sequence.id] = self._free.pop()
            tokens = torch.tensor(sequence.tokens, device=self._device)
            generated = tokens[sequence.prompt_length :]
            self._seen[row] = False
            self._seen[row, tokens] = True
            self._counts[row] = torch.bincount(generated, minlength=self._vocabulary).int()
        return row

    def _grow(self) -> None:
        rows = self._counts.shape[0]
        more = max(4, rows)
        self._counts = torch.cat([self._counts, self._counts.new_zeros(more, self._vocabulary)])
        self._seen = torch.cat([self._seen, self._seen.new_zeros(more, self._vocabulary)])
        self._free += range(rows, rows + more)
