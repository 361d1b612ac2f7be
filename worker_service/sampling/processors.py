"""The edits that requests ask of their logits, one object each, behind one protocol.

Order: allowed tokens, bad words, minimum length, bias, penalties, then custom processors. All work on
the batch at once and loop over rows, never over the vocabulary. What a row has seen so far is read from
its tokens, not counted along, so that drafts, preemptions and replays need nothing more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from common.requests import SamplingParams
from common.step import Int32s
from worker_service.kernels.logit_edits import Penalties, Tokens, add, forbid, keep_only, penalize

# S rows of logits, V vocabulary, R rows that a processor edits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EditedRow:
    """A row of logits with edits: its index, what was asked, and the tokens before the drawn one."""

    row: int
    params: SamplingParams
    prompt_ids: Int32s
    output_ids: Int32s


class LogitsProcessor(Protocol):
    """One kind of edit."""

    def apply(self, logits_SV: Tensor, rows: Sequence[EditedRow]) -> None:
        """Edit float32 logits in place, in those of the rows that ask for it."""
        ...


class AllowedTokens:
    """Only some tokens can be drawn."""

    def apply(self, logits_SV: Tensor, rows: Sequence[EditedRow]) -> None:
        """Forbid the others."""
        chosen = [
            (each.row, each.params.allowed_token_ids)
            for each in rows
            if each.params.allowed_token_ids
        ]
        if chosen:
            keep_only(logits_SV, _pairs(chosen, logits_SV.device))


class BadWords:
    """Sequences of tokens are not drawn to their end."""

    def apply(self, logits_SV: Tensor, rows: Sequence[EditedRow]) -> None:
        """Forbid the last token of every sequence that the output has come to the end of but one."""
        chosen = [
            (each.row, [word[-1] for word in each.params.bad_words if _precede(each, word[:-1])])
            for each in rows
            if each.params.bad_words
        ]
        if chosen:
            forbid(logits_SV, _pairs(chosen, logits_SV.device))


class MinTokens:
    """An output does not end before it has so many tokens."""

    def apply(self, logits_SV: Tensor, rows: Sequence[EditedRow]) -> None:
        """Forbid the tokens that end outputs which are too short."""
        chosen = [
            (each.row, each.params.end_token_ids)
            for each in rows
            if len(each.output_ids) < each.params.min_tokens
        ]
        if chosen:
            forbid(logits_SV, _pairs(chosen, logits_SV.device))


class LogitBias:
    """Tokens are made more or less likely."""

    def apply(self, logits_SV: Tensor, rows: Sequence[EditedRow]) -> None:
        """Add the biases."""
        chosen = [(each.row, each.params.logit_bias) for each in rows if each.params.logit_bias]
        if not chosen:
            return
        device = logits_SV.device
        biases = np.array([bias for _, biased in chosen for _, bias in biased], dtype=np.float32)
        tokens = _pairs([(row, [token for token, _ in biased]) for row, biased in chosen], device)
        add(logits_SV, tokens, torch.from_numpy(biases).to(device))


class RepetitionPenalties:
    """Tokens that were there before are made less likely."""

    def apply(self, logits_SV: Tensor, rows: Sequence[EditedRow]) -> None:
        """Penalize what stands in prompts and outputs."""
        chosen = [each for each in rows if _has_penalty(each.params)]
        if not chosen:
            return
        device = logits_SV.device

        def column(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float32, device=device)

        penalties = Penalties(
            rows_R=torch.tensor([each.row for each in chosen], device=device),
            repetition_R=column(each.params.repetition_penalty for each in chosen),
            frequency_R=column(each.params.frequency_penalty for each in chosen),
            presence_R=column(each.params.presence_penalty for each in chosen),
        )
        prompt = _pairs([(index, each.prompt_ids) for index, each in enumerate(chosen)], device)
        output = _pairs([(index, each.output_ids) for index, each in enumerate(chosen)], device)
        penalize(logits_SV, penalties, prompt=prompt, output=output)


PROCESSORS: tuple[LogitsProcessor, ...] = (
    AllowedTokens(),
    BadWords(),
    MinTokens(),
    LogitBias(),
    RepetitionPenalties(),
)
"""Every edit of our own, in the order in which they are applied."""


def _has_penalty(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )


def _precede(row: EditedRow, tokens: Sequence[int]) -> bool:
    """Whether the output ends with these tokens."""
    if len(tokens) > len(row.output_ids):
        return False
    return not tokens or row.output_ids[-len(tokens) :].tolist() == list(tokens)


def _pairs(chosen: Sequence[tuple[int, "Sequence[int] | Int32s"]], device: torch.device) -> Tokens:
    """Every token of every row, in one transfer."""
    lengths = [len(tokens) for _, tokens in chosen]
    columns = np.empty((2, sum(lengths)), dtype=np.int64)
    columns[0] = np.repeat([row for row, _ in chosen], lengths)
    if lengths:
        columns[1] = np.concatenate([np.asarray(tokens, dtype=np.int64) for _, tokens in chosen])
    on_device = torch.from_numpy(columns).to(device)
    return Tokens(rows=on_device[0], token_ids=on_device[1])
