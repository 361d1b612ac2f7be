"""Log-probabilities of a prompt's own tokens, from the hidden states that a step computes anyway.

The state at position p says how likely the prompt's token p + 1 is, so a chunk of a prompt gives those
behind each of its tokens, but for the prompt's last. Raw logits: nothing that was asked of sampling
changes them. Logits are made of a few positions at a time, as a long prompt's would fill the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.step import Int32s, Int64s, Logprobs, PromptLogprobs
from worker_service.batch.input_batch import InputBatch
from worker_service.batch.request_states import RequestStates
from worker_service.sampling.logprobs import compute_logprobs
from worker_service.sampling.sampling_states import NO_LOGPROBS, SamplingStates

# T tokens of the step, P positions of a prompt, D model size, V vocabulary

_POSITIONS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptPiece:
    """What a step computed of one prompt: hidden_PD, and the tokens int32 [P] that follow each state.

    first_position: index in the prompt of the first of these tokens.
    """

    handle: int
    first_position: int
    hidden_PD: Tensor
    token_ids: Int32s
    num_alternatives: int


def prompt_pieces(
    batch: InputBatch, hidden_TD: Tensor, *, states: RequestStates, sampling: SamplingStates
) -> tuple[PromptPiece, ...]:
    """The pieces of the rows that asked for them and computed some of their prompt."""
    rows = batch.rows
    wanted_R = sampling.num_prompt_logprobs(rows.slots)
    if (wanted_R == NO_LOGPROBS).all():
        return ()
    return tuple(
        _piece(batch, hidden_TD, row, states=states, num_alternatives=int(wanted_R[row]))
        for row in _rows_in_prompt(wanted_R, rows.num_computed, states.num_prompt[rows.slots])
    )


def _rows_in_prompt(wanted_R: Int32s, computed_R: Int32s, prompt_R: Int32s) -> list[int]:
    is_chosen_R = (wanted_R != NO_LOGPROBS) & (computed_R < prompt_R - 1)
    return np.flatnonzero(is_chosen_R).tolist()


def _piece(
    batch: InputBatch,
    hidden_TD: Tensor,
    row: int,
    *,
    states: RequestStates,
    num_alternatives: int,
) -> PromptPiece:
    slot, first = batch.rows.slots[row], int(batch.rows.num_computed[row])
    end = min(int(batch.seq_lens_np[row]), int(states.num_prompt[slot]) - 1)
    start = int(batch.query_lens[:row].sum())
    return PromptPiece(
        handle=int(batch.rows.handles[row]),
        first_position=first + 1,
        hidden_PD=hidden_TD[start : start + end - first],
        token_ids=states.tokens.values[slot, first + 1 : end + 1].copy(),
        num_alternatives=num_alternatives,
    )


def compute_prompt_logprobs(
    piece: PromptPiece, compute_logits: Callable[[Tensor], Tensor]
) -> PromptLogprobs:
    """Log-probabilities of the piece's tokens; compute_logits maps [n, D] to float32 [n, V]."""
    parts: list[Logprobs] = []
    for first in range(0, len(piece.token_ids), _POSITIONS_AT_ONCE):
        end = first + _POSITIONS_AT_ONCE
        logits_PV = compute_logits(piece.hidden_PD[first:end])
        token_ids: Int64s = piece.token_ids[first:end].astype(np.int64)
        chosen_P = torch.from_numpy(token_ids).to(logits_PV.device)
        parts.append(compute_logprobs(logits_PV, chosen_P, num_alternatives=piece.num_alternatives))
    return PromptLogprobs(
        handle=piece.handle,
        first_position=piece.first_position,
        logprobs=Logprobs(
            token_ids=np.concatenate([part.token_ids for part in parts]),
            logprobs=np.concatenate([part.logprobs for part in parts]),
            ranks=np.concatenate([part.ranks for part in parts]),
        ),
    )
