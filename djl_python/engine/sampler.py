"""Draws the next token of every sequence of the batch at once. Runs in the engine process.

Each rule works on the rows that ask for it, in the order `SamplingParams` gives. What is drawn for a row depends on
that row's logits, parameters, seed and position only, never on the rest of the batch: one uniform number per row and
token comes from a counter-based generator (a hash of seed and position), so a preempted or retried request draws what
it would have drawn.

Most rows draw from the model's own scores, which are read once and left as they are (`row_scan`, `draws`). Rows whose
scores a rule changes get a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .draws import draw
from .grammar import MaskComputer, forbid
from .penalties import PenaltyTable
from .row_scan import RowScanner, Scan, TorchScanner, mix
from .sampling_plan import Changes, Group, Plan
from .sequence import PromptEntry, Sequence

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
        scanner: what reads whole rows of logits.
        threads: that compute grammars' masks.
    """

    def __init__(
        self,
        vocabulary: int,
        eos_ids: frozenset[int],
        device: torch.device,
        scanner: RowScanner | None = None,
        threads: int = 1,
    ) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = eos_ids
        self._device = device
        self._scanner = scanner or TorchScanner()
        self._penalties = PenaltyTable(device)
        self._masks = MaskComputer(threads)
        # What each byte of a grammar's mask adds to the logits of its eight tokens, lowest bit first.
        allowed = (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)) & 1
        self._of_mask_byte = torch.where(allowed.bool(), 0.0, float("-inf"))
        self._plan: Plan | None = None

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
        raw = logits.float().contiguous()
        plan = self._plan_for(sequences)
        tokens = torch.empty(len(sequences), dtype=torch.long, device=raw.device)
        scan = self._scanner.scan(raw, plan.inverse_temperature)
        self._draw(raw, scan, plan.plain, tokens, sequences, ahead)
        changed = plan.changed.batch_rows
        if changed:
            scores = raw.index_select(0, plan.changed.batch_index)  # twice as fast as indexing
            self._change(scores, [sequences[row] for row in changed], plan.changes)
            changed_scan = self._scanner.scan(scores, plan.changed_inverse_temperature)
            self._draw(scores, changed_scan, plan.changed, tokens, sequences, ahead)
        own = _own_logprobs(raw, scan, tokens)
        token_ids = tokens.tolist()
        for row in plan.changes.penalized:
            self._penalties.count(sequences[changed[row]], token_ids[changed[row]])
        tops = self._tops(raw, scan, plan)
        return [
            Sampled(token, logprob, tops.get(row, _NO_TOP))
            for row, (token, logprob) in enumerate(zip(token_ids, own.tolist(), strict=True))
        ]

    def _plan_for(self, sequences: list[Sequence]) -> Plan:
        ids = [sequence.id for sequence in sequences]
        if self._plan is None or self._plan.ids != ids:
            self._plan = Plan(ids, [sequence.sampling for sequence in sequences], self._vocabulary, self._device)
        return self._plan

    def _draw(
        self,
        scores: Tensor,
        scan: Scan,
        group: Group,
        tokens: Tensor,
        sequences: list[Sequence],
        ahead: list[int] | None,
    ) -> None:
        """Put the tokens that a group draws into their places in `tokens`."""
        if len(group.greedy):
            tokens[group.greedy] = self._scanner.best(scores, scan, group.greedy_rows, 1)[1][:, 0]
        if group.draws is not None:
            positions = [sequences[row].generated + (ahead[row] if ahead else 0) for row in group.draw_rows]
            states = mix(mix(group.draws.seeds) + np.array(positions, np.uint64))
            tokens[group.draw_rows] = draw(self._scanner, scores, scan, group.draws, states)

    def _tops(self, raw: Tensor, scan: Scan, plan: Plan) -> dict[int, tuple[tuple[int, float], ...]]:
        """The best alternatives of the rows that asked."""
        if not plan.tops:
            return {}
        rows = torch.tensor([row for row, _ in plan.tops], device=raw.device)
        found = _alternatives(self._scanner, raw, scan, rows, max(n for _, n in plan.tops))
        return {row: top[:n] for (row, n), top in zip(plan.tops, found, strict=True)}

    def _change(self, scores: Tensor, sequences: list[Sequence], changes: Changes) -> None:
        """Bias, grammars, bad words, minimum length and penalties, in place."""
        banned = {
            row: tokens
            for row in changes.restricted
            if (tokens := _banned(sequences[row], self._eos_ids, self._vocabulary))
        }
        if len(changes.bias):
            scores.index_put_((changes.biased_rows, changes.biased_ids), changes.bias, accumulate=True)
        if changes.constrained:
            self._constrain(scores, sequences, changes, banned)
        pairs = [(row, token) for row, tokens in banned.items() for token in tokens]
        if pairs:
            rows, ids = torch.tensor(pairs, device=self._device).T
            scores[rows, ids] = float("-inf")
        if changes.penalized:
            penalized = [sequences[row] for row in changes.penalized]
            self._penalties.apply(scores, changes.penalized_rows, penalized, *changes.penalties)

    def _constrain(
        self, scores: Tensor, sequences: list[Sequence], changes: Changes, banned: dict[int, list[int]]
    ) -> None:
        """Rule out in place what the grammars don't allow, and what else is banned from their rows."""
        matchers = [matcher for row in changes.constrained if (matcher := sequences[row].matcher)]
        masks = self._masks.masks(matchers)
        for mask, row in zip(masks, changes.constrained, strict=True):
            forbid(mask, banned.pop(row, []))
        octets = torch.from_numpy(masks.view(np.uint8)).to(self._device)
        added = self._of_mask_byte.index_select(0, octets.flatten().int()).view(len(masks), -1)
        scores.index_add_(0, changes.constrained_rows, added[:, : self._vocabulary])


def prompt_entries(scanner: RowScanner, logits: Tensor, next_ids: list[int], alternatives: int) -> list[PromptEntry]:
    """Log-probabilities of prompt tokens: row i of `logits` (n, vocabulary) predicts `next_ids[i]`."""
    raw = logits.float().contiguous()
    scan = scanner.scan(raw, None)
    own = _own_logprobs(raw, scan, torch.tensor(next_ids, device=raw.device))
    rows = torch.arange(len(raw), device=raw.device)
    tops = _alternatives(scanner, raw, scan, rows, alternatives) if alternatives else [_NO_TOP] * len(raw)
    return list(zip(own.tolist(), tops, strict=True))


def _own_logprobs(raw: Tensor, scan: Scan, tokens: Tensor) -> Tensor:
    """(R,) of one token in each row."""
    return scan.logprobs(raw.gather(1, tokens[:, None]), torch.arange(len(raw), device=raw.device))[:, 0]


def _alternatives(
    scanner: RowScanner, raw: Tensor, scan: Scan, rows: Tensor, count: int
) -> list[tuple[tuple[int, float], ...]]:
    """(id, logprob) of some rows' most likely tokens, best first."""
    values, ids = scanner.best(raw, scan, rows, min(count, raw.shape[1]))
    logprobs = scan.logprobs(values, rows)
    return [tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]


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
