"""Draws the next token of every sequence of the batch at once. Runs in the engine process.

Each rule works on the rows that ask for it, in the order `SamplingParams` gives. The token of a row depends on that
row's logits, parameters, seed and position only, never on the rest of the batch: random numbers come from a
counter-based generator (a hash of seed and position), so a preempted or retried request draws the same tokens again.

Most rows choose from the model's own logits, which are left as they are. Rows whose scores a rule changes get a copy. A
`RowSampler` then picks a token for each row.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..batch.sequence import PromptEntry, Sequence
from ..devices.transfers import indices, upload
from .grammar import MaskComputer, forbid
from .penalties import PenaltyTable
from .row_sampler import RowSampler, SampledTokens, SamplingRequest, Top
from .sampling_plan import Changes, SamplingPlan
from .torch_row_sampler import TorchRowSampler


class Sampled(NamedTuple):
    """One row's draw, and the alternatives that were asked for."""

    token_id: int
    logprob: float
    top: Top = ()


class Sampler:
    """Sampling state that outlives a step: token counts of the sequences with penalties.

    Args:
        eos_ids: tokens that a minimum length forbids.
        row_sampler: reads whole rows of logits.
        threads: how many compute grammars' masks.
    """

    def __init__(
        self,
        vocabulary: int,
        eos_ids: frozenset[int],
        device: torch.device,
        row_sampler: RowSampler | None = None,
        threads: int = 1,
    ) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = eos_ids
        self._device = device
        self._row_sampler = row_sampler or TorchRowSampler()
        self._penalties = PenaltyTable()
        self._masks = MaskComputer(threads)
        # The additions of each byte of a grammar's mask to the logits of its eight tokens, lowest bit first.
        allowed = (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)) & 1
        self._of_mask_byte = torch.where(allowed.bool(), 0.0, float("-inf"))
        self._plan: SamplingPlan | None = None

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""
        self._penalties.drop(sequence.id)
        self._plan = None  # it was made with this sequence

    def ask(self, sequences: list[Sequence], ahead: list[int] | None = None) -> SamplingRequest:
        """The sampling of these rows.

        Args:
            sequences: the sequence of each row; one whose drafts are being checked has several rows.
            ahead: how many drafts precede each row; none anywhere if left out.
        """
        ids = [sequence.id for sequence in sequences]
        if self._plan is None or self._plan.ids != ids:
            self._plan = SamplingPlan(ids, [sequence.sampling for sequence in sequences], self._device)
        generated = [sequence.generated for sequence in sequences]
        positions = list(map(operator.add, generated, ahead)) if ahead else generated
        return SamplingRequest(
            self._plan, positions, [self._penalties.of(sequences[row]) for row in self._plan.penalized]
        )

    def sample(self, logits: Tensor, sequences: list[Sequence], asked: SamplingRequest | None = None) -> list[Sampled]:
        """Draw for each row of `logits` (N, vocabulary).

        Args:
            asked: what `ask` has returned for these sequences, if it was asked.
        """
        raw = logits.float().contiguous()
        asked = asked or self.ask(sequences)
        plan, changed = asked.plan, None
        if plan.changed:
            changed = raw.index_select(0, plan.changed_index)  # twice as fast as indexing
            self._change(changed, [sequences[row] for row in plan.changed], plan.changes)
        return sampled(self._row_sampler.choose(raw, changed, asked))

    def _change(self, scores: Tensor, sequences: list[Sequence], changes: Changes) -> None:
        """Apply bias, grammars, bad words and minimum length in place."""
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
            rows, ids = indices(pairs, self._device).T
            scores[rows, ids] = float("-inf")

    def _constrain(
        self, scores: Tensor, sequences: list[Sequence], changes: Changes, banned: dict[int, list[int]]
    ) -> None:
        """Rule out in place the tokens that grammars don't allow or that are banned from their rows."""
        matchers = [matcher for row in changes.constrained if (matcher := sequences[row].matcher)]
        masks = self._masks.masks(matchers)
        for mask, row in zip(masks, changes.constrained, strict=True):
            forbid(mask, banned.pop(row, []))
        octets = upload(masks.view(np.uint8), self._device)
        added = self._of_mask_byte.index_select(0, octets.flatten().int()).view(len(masks), -1)
        scores.index_add_(0, changes.constrained_rows, added[:, : self._vocabulary])


def sampled(chosen: SampledTokens) -> list[Sampled]:
    """A draw for each row of the chosen tokens."""
    return list(map(Sampled, chosen.token_ids, chosen.logprobs, chosen.tops))


def prompt_entries(
    row_sampler: RowSampler, logits: Tensor, next_ids: list[int], alternatives: int
) -> list[PromptEntry]:
    """Log-probabilities of prompt tokens: row i of `logits` (n, vocabulary) predicts `next_ids[i]`."""
    looked_up = row_sampler.look_up(logits.float().contiguous(), next_ids, alternatives)
    return list(zip(looked_up.logprobs, looked_up.tops, strict=True))


def ranks_of(logits: Tensor, token_ids: list[int]) -> list[int]:
    """How many tokens of row i of `logits` (n, vocabulary) are at least as likely as `token_ids[i]`, which is one."""
    own = logits.gather(1, indices(token_ids, logits.device)[:, None])
    ranks: list[int] = (logits >= own).sum(-1).tolist()
    return ranks


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
        begin = max(len(sequence.tokens) - head, sequence.decoder_start)
        if not head or tuple(sequence.tokens[begin:]) == word[:-1]:
            banned.append(word[-1])
    return banned
