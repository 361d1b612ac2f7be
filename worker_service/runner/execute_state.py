"""What the execute phase of the last stage keeps for the sample phase."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from common.step import Int32s, Int64s, Ragged, SchedulerOutput, StepId, Uint64s
from worker_service.batch.input_batch import InputBatch
from worker_service.batch.request_states import RequestStates
from worker_service.sampling.prompt_logprobs import PromptPiece, prompt_pieces
from worker_service.sampling.sampling_states import SamplingRows, SamplingStates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecuteModelState:
    """A forward pass whose tokens are not drawn yet, for S rows that sample.

    handles uint64 [S]; slots int64 [S]; num_known int64 [S], before the draw; drafts: Ragged of S
    rows; hidden_ND: the last layer's output at each row's last known token and at its drafts; how to
    draw from each; num_wanted int32 [S], most drafts to propose next. needs_mask: sampling waits for a
    grammar mask. prompts: of rows whose prompts' log-probabilities are wanted, sampling or not.
    """

    step_id: StepId
    handles: Uint64s
    slots: Int64s
    num_known: Int64s
    drafts: Ragged
    hidden_ND: Tensor
    sampling: SamplingRows
    num_wanted: Int32s
    prompts: tuple[PromptPiece, ...]
    want_state_digest: bool
    needs_mask: bool = False


def keep_rows(
    output: SchedulerOutput,
    batch: InputBatch,
    hidden_TD: Tensor,
    *,
    states: RequestStates,
    sampling: SamplingStates,
) -> ExecuteModelState:
    """What the sample phase needs, of the rows that sample."""
    prompts = prompt_pieces(batch, hidden_TD, states=states, sampling=sampling)
    rows, chosen = batch.rows, batch.sampling_rows
    slots, num_drafts = rows.slots[chosen], rows.num_drafts[chosen]
    num_known = batch.seq_lens_np[chosen].astype(np.int64) - num_drafts
    if len(batch.logits_indices) < batch.num_tokens:
        hidden_TD = hidden_TD[batch.logits_indices]
    # The first token to be drawn stands right behind the known ones, the others behind a draft each.
    slots_N, positions_N = slots, num_known
    drafts = Ragged.empty(len(chosen))
    if num_drafts.any():
        drafts = states.drafts(slots)
        counts = num_drafts.astype(np.int64) + 1
        row_of = np.repeat(np.arange(len(chosen)), counts)
        within = np.arange(len(row_of)) - (np.cumsum(counts) - counts)[row_of]
        slots_N, positions_N = slots[row_of], num_known[row_of] + within
    return ExecuteModelState(
        step_id=output.step_id,
        handles=rows.handles[chosen],
        slots=slots,
        num_known=num_known,
        drafts=drafts,
        hidden_ND=hidden_TD,
        sampling=sampling.rows(slots_N, positions=positions_N),
        num_wanted=rows.num_wanted[chosen],
        prompts=prompts,
        want_state_digest=output.want_state_digest,
        needs_mask=output.grammar_mask_follows,
    )
