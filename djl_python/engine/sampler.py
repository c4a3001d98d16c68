"""Draws the next token of every sequence of the batch at once. Runs in the engine process.

Each rule works on the rows that ask for it, in the order `SamplingParams` gives. What is drawn for a row depends on
that row's logits, parameters, seed and position only, never on the rest of the batch: one uniform number per row and
token comes from a counter-based generator (a hash of seed and position), so a preempted or retried request draws what
it would have drawn.

A vocabulary can be 150 000 tokens long, so whatever costs more than one pass over a row is done on a part of it: the
best tokens are looked for in the blocks that have the greatest maxima, the drawn one in the block that it falls into,
and penalties touch the tokens that have occurred.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..types import SamplingParams
from .grammar import MaskComputer, forbid
from .penalties import PenaltyTable
from .sequence import PromptEntry, Sequence

# How many of a row's best tokens are looked at, one number after the other, before its whole vocabulary is sorted.
CANDIDATES = (64, 1024, 8192)
# Tokens that are summed up, or compared, together.
_BLOCK = 64
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
        self._penalties = PenaltyTable(device)
        self._masks = MaskComputer(torch.get_num_threads())
        # What each byte of a grammar's mask adds to the logits of its eight tokens, lowest bit first.
        allowed = (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)) & 1
        self._of_mask_byte = torch.where(allowed.bool(), 0.0, float("-inf"))
        self._plan: _Plan | None = None

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._penalties.drop(sequence.id)
        self._plan = None  # it has the sequence in it

    def sample(self, logits: Tensor, sequences: list[Sequence], ahead: list[int] | None = None) -> list[Sampled]:
        """Draw for each row of `logits` (N, vocabulary).

        Args:
            sequences: whose row it is; a sequence whose drafts are being checked has several.
            ahead: how many drafts precede each row; none anywhere if left out.
        """
        raw = logits.float()
        plan = self._plan_for(sequences)
        scores = self._rule_out(raw, sequences, plan)
        tokens = torch.empty(len(sequences), dtype=torch.long, device=raw.device)
        if plan.greedy:
            tokens[plan.greedy_rows] = _best(_pick(scores, plan.greedy_rows), 1)[1][:, 0]
        if plan.sampled:
            picked = _pick(scores, plan.sampled_rows)
            tokens[plan.sampled_rows] = _draw(picked / plan.temperature, plan, _uniforms(sequences, ahead, plan))
        logprobs = raw.log_softmax(-1)
        own = logprobs.gather(1, tokens[:, None])[:, 0]
        token_ids = tokens.tolist()
        for row in plan.penalized:
            self._penalties.count(sequences[row], token_ids[row])
        tops = _top(logprobs, plan)
        return [
            Sampled(token, logprob, tops.get(row, _NO_TOP))
            for row, (token, logprob) in enumerate(zip(token_ids, own.tolist(), strict=True))
        ]

    def _plan_for(self, sequences: list[Sequence]) -> _Plan:
        ids = [sequence.id for sequence in sequences]
        if self._plan is None or self._plan.ids != ids:
            self._plan = _Plan(ids, [sequence.sampling for sequence in sequences], self._vocabulary, self._device)
        return self._plan

    def _rule_out(self, raw: Tensor, sequences: list[Sequence], plan: _Plan) -> Tensor:
        """Bias, grammars, bad words, minimum length and penalties; `raw` itself stays as it is."""
        banned = {
            row: tokens
            for row in plan.restricted
            if (tokens := _banned(sequences[row], self._eos_ids, self._vocabulary))
        }
        if not (plan.biased or plan.constrained or banned or plan.penalized):
            return raw
        scores = raw.clone()
        if plan.biased:
            scores.index_put_((plan.biased_rows, plan.biased_ids), plan.bias, accumulate=True)
        if plan.constrained:
            self._constrain(scores, sequences, plan, banned)
        pairs = [(row, token) for row, tokens in banned.items() for token in tokens]
        if pairs:
            rows, ids = torch.tensor(pairs, device=self._device).T
            scores[rows, ids] = float("-inf")
        if plan.penalized:
            penalized = [sequences[row] for row in plan.penalized]
            self._penalties.apply(scores, plan.penalized_rows, penalized, *plan.penalties)
        return scores

    def _constrain(self, scores: Tensor, sequences: list[Sequence], plan: _Plan, banned: dict[int, list[int]]) -> None:
        """Rule out in place what the grammars don't allow, and what else is banned from their rows."""
        matchers = [matcher for row in plan.constrained if (matcher := sequences[row].matcher)]
        masks = self._masks.masks(matchers)
        for mask, row in zip(masks, plan.constrained, strict=True):
            forbid(mask, banned.pop(row, []))
        octets = torch.from_numpy(masks.view(np.uint8)).to(self._device)
        added = self._of_mask_byte.index_select(0, octets.flatten().int()).view(len(masks), -1)
        scores.index_add_(0, plan.constrained_rows, added[:, : self._vocabulary])


class _Plan:
    """The batch's parameters as tensors; kept for as long as the batch has the same members."""

    def __init__(self, ids: list[int], params: list[SamplingParams], vocabulary: int, device: torch.device) -> None:
        self.ids = ids
        self.biased = [(row, token, bias) for row, p in enumerate(params) for token, bias in p.logit_bias.items()]
        self.biased_rows, self.biased_ids = _indices([entry[:2] for entry in self.biased], device).view(-1, 2).T
        self.bias = torch.tensor([bias for _, _, bias in self.biased], dtype=torch.float32, device=device)
        self.constrained = [row for row, p in enumerate(params) if p.grammar is not None]
        self.constrained_rows = _indices(self.constrained, device)
        self.restricted = [
            row for row, p in enumerate(params) if p.bad_words_ids or p.min_new_tokens or (p.grammar and p.ignore_eos)
        ]
        self.penalized = [
            row
            for row, p in enumerate(params)
            if p.repetition_penalty != 1 or p.presence_penalty or p.frequency_penalty
        ]
        self.penalized_rows = _indices(self.penalized, device)
        penalties = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params]
        self.penalties = _columns([penalties[row] for row in self.penalized], 3, device)
        self.sampled = [row for row, p in enumerate(params) if p.do_sample and p.temperature > 0]
        self.sampled_rows = _indices(self.sampled, device)
        self.greedy = sorted(set(range(len(params))) - set(self.sampled))
        self.greedy_rows = _indices(self.greedy, device)
        chosen = [params[row] for row in self.sampled]
        self.seeds = np.array([p.seed for p in chosen], np.uint64)
        numbers = [
            (p.temperature, min(p.top_k or vocabulary, vocabulary), p.top_p, p.min_p, p.typical_p) for p in chosen
        ]
        self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p = _columns(numbers, 5, device)
        likeliest = [bool(p.top_k) or p.top_p < 1 or p.min_p > 0 for p in chosen]
        self.filtered = _indices([i for i, limited in enumerate(likeliest) if limited], device)
        others = [(i, p.typical_p < 1) for i, p in enumerate(chosen) if not likeliest[i]]
        self.typical = _indices([i for i, typical in others if typical], device)
        self.unfiltered = _indices([i for i, typical in others if not typical], device)
        self.tops = [(row, p.top_logprobs) for row, p in enumerate(params) if p.top_logprobs]


def _indices(numbers: Sized, device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long, device=device)


def _columns(rows: Sized, width: int, device: torch.device) -> Tensor:
    """(width, R, 1): one number per row, to be broadcast along the vocabulary, of each parameter."""
    return torch.tensor(rows, dtype=torch.float32, device=device).view(-1, width).T[:, :, None]


def _pick(scores: Tensor, rows: Tensor) -> Tensor:
    """These rows, which are in order; a copy only where some are left out."""
    return scores if len(rows) == len(scores) else scores[rows]


def _best(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Values and ids (R, width) of each row's greatest scores, best first."""
    rows, vocabulary = scores.shape
    blocks = vocabulary // _BLOCK
    if width * 4 > blocks:  # most blocks would be looked into
        return scores.topk(width, dim=-1)
    whole = blocks * _BLOCK
    greatest = scores[:, :whole].view(rows, blocks, _BLOCK).amax(-1).topk(width, dim=-1).indices
    ids = (greatest[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=scores.device)).view(rows, -1)
    rest = torch.arange(whole, vocabulary, device=scores.device).expand(rows, -1)
    ids = torch.cat([ids, rest], dim=1)
    values, places = scores.gather(1, ids).topk(width, dim=-1)
    return values, ids.gather(1, places)


def _draw(scores: Tensor, plan: _Plan, uniforms: Tensor) -> Tensor:
    """Token ids (R,) for the sampled rows' scores (R, vocabulary), already divided by temperature."""
    drawn = torch.empty(scores.shape[0], dtype=torch.long, device=scores.device)
    whole = scores.softmax(-1)
    if len(plan.unfiltered):
        drawn[plan.unfiltered] = _invert_blocks(_pick(whole, plan.unfiltered), uniforms[plan.unfiltered])
    vocabulary = scores.shape[1]

    def among_likeliest(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        probabilities, ids = _best(_pick(whole, rows), width)
        kept, certain = _filter(probabilities, plan, rows, vocabulary)
        return ids.gather(1, _invert(probabilities * kept, uniforms[rows])[:, None])[:, 0], certain

    def among_typical(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        picked = _pick(whole, rows)
        ids = _best(-_atypicality(picked), width)[1]
        probabilities = picked.gather(1, ids)
        kept = _leading(probabilities, plan.typical_p[rows])
        choice = ids.gather(1, _invert(probabilities * kept, uniforms[rows])[:, None])[:, 0]
        return choice, ~kept[:, -1] | (width == vocabulary)

    _widen(plan.filtered, vocabulary, drawn, among_likeliest)
    _widen(plan.typical, vocabulary, drawn, among_typical)
    return drawn


def _widen(
    rows: Tensor, vocabulary: int, drawn: Tensor, attempt: Callable[[Tensor, int], tuple[Tensor, Tensor]]
) -> None:
    """Draw for these rows, from more and more candidates until what is drawn is certain."""
    for width in sorted({min(candidates, vocabulary) for candidates in (*CANDIDATES, vocabulary)}):
        if not len(rows):
            break
        choice, certain = attempt(rows, width)
        drawn[rows[certain]] = choice[certain]
        rows = rows[~certain]


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
    order = _atypicality(normal).argsort(dim=-1, stable=True)
    return torch.zeros_like(normal, dtype=torch.bool).scatter(1, order, _leading(normal.gather(1, order), typical_p))


def _atypicality(probabilities: Tensor) -> Tensor:
    """How far a token's information is from the entropy; infinite for what has no probability."""
    log = probabilities.log()
    entropy = -(probabilities * log).nansum(-1, keepdim=True)
    return (-log - entropy).abs()


def _leading(ordered: Tensor, mass: Tensor) -> Tensor:
    """Which of a row's probabilities, taken in order, make up this mass, the one that crosses it included."""
    kept = (ordered.cumsum(-1) - ordered < mass) & (ordered > 0)
    kept[:, 0] = True
    return kept


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The index where the running sum passes uniform * total. Never one of probability 0."""
    sums = probabilities.cumsum(-1)
    total = sums[:, -1:]
    # strictly below the total, so that the last index found has a probability
    target = torch.minimum(uniforms[:, None] * total, total * (1 - 2**-23))
    return torch.searchsorted(sums, target, right=True)[:, 0].clamp(max=probabilities.shape[1] - 1)


def _invert_blocks(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """`_invert` for a whole vocabulary: first the block, then the index in it."""
    rows, vocabulary = probabilities.shape
    blocks = vocabulary // _BLOCK
    whole = blocks * _BLOCK
    masses = probabilities[:, :whole].view(rows, blocks, _BLOCK).sum(-1)
    masses = torch.cat([masses, probabilities[:, whole:].sum(-1, keepdim=True)], dim=1)
    block = _invert(masses, uniforms)[:, None]
    sums = masses.cumsum(-1)
    mass = masses.gather(1, block)
    inside = (uniforms[:, None] * sums[:, -1:] - (sums.gather(1, block) - mass)) / mass
    ids = block * _BLOCK + torch.arange(_BLOCK, device=probabilities.device)
    candidates = probabilities.gather(1, ids.clamp(max=vocabulary - 1)) * (ids < vocabulary)
    return block[:, 0] * _BLOCK + _invert(candidates, inside[:, 0].clamp(0, 1))


def _uniforms(sequences: list[Sequence], ahead: list[int] | None, plan: _Plan) -> Tensor:
    """One number in [0, 1) per sampled row."""
    positions = np.array([sequences[row].generated + (ahead[row] if ahead else 0) for row in plan.sampled], np.uint64)
    mixed = _mix(_mix(plan.seeds) + positions)
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53).float().to(plan.temperature.device)


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's step and finalizer: 64 well-mixed bits of each 64-bit state."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _top(logprobs: Tensor, plan: _Plan) -> dict[int, tuple[tuple[int, float], ...]]:
    """The best alternatives of the rows that asked."""
    if not plan.tops:
        return {}
    picked = logprobs[[row for row, _ in plan.tops]]
    found = _alternatives(picked, max(n for _, n in plan.tops))
    return {row: top[:n] for (row, n), top in zip(plan.tops, found, strict=True)}


def _alternatives(logprobs: Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """(id, logprob) of each row's most likely tokens, best first."""
    values, ids = _best(logprobs, min(count, logprobs.shape[1]))
    return [tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]


def prompt_entries(logits: Tensor, next_ids: list[int], alternatives: int) -> list[PromptEntry]:
    """Log-probabilities of prompt tokens: row i of `logits` (n, vocabulary) predicts `next_ids[i]`."""
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(next_ids, device=logprobs.device)[:, None])[:, 0].tolist()
    tops = _alternatives(logprobs, alternatives) if alternatives else [_NO_TOP] * len(chosen)
    return list(zip(chosen, tops, strict=True))


def _banned(sequence: Sequence, eos_ids: frozenset[int], vocabulary: int) -> list[int]:
    """Tokens that this sequence must not draw now."""
    sampling = sequence.sampling
    banned: list[int] = []
    early = sequence.generated < sampling.min_new_tokens
    if early or (sampling.grammar and sampling.ignore_eos):
        banned += [i for i in eos_ids if i < vocabulary]
    if early:
        banned += [i for i in sampling.stop_token_ids if i < vocabulary]
    for word in sampling.bad_words_ids:
        head = len(word) - 1
        if not head or (len(sequence.tokens) >= head and tuple(sequence.tokens[-head:]) == word[:-1]):
            banned.append(word[-1])
    return banned
