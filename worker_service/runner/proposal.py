"""The stage propose_drafts: guesses that follow what a step emitted."""

import numpy as np
import torch

from common.step import Ragged
from worker_service.batch.request_states import RequestStates
from worker_service.drafting.drafter import Drafter, SampledRows
from worker_service.runner.execute_state import ExecuteModelState
from worker_service.sampling.rejection_sampler import EmittedTokens


def propose_drafts(
    state: ExecuteModelState, emitted: EmittedTokens, *, drafter: Drafter, states: RequestStates
) -> Ragged:
    """Drafts of each row that emitted, as many as it wants and its longest length allows.

    The emitted tokens are written into the token store behind those known, where the drafter reads
    them; they become known with the next step.
    """
    chosen = emitted.is_sampled
    num_wanted = state.num_wanted[chosen]
    if not num_wanted.any():
        return Ragged.empty(len(num_wanted))
    slots, num_emitted = state.slots[chosen], emitted.token_ids.lengths
    states.tokens.write_behind(slots, emitted.token_ids)
    num_known = state.num_known[chosen] + num_emitted
    num_left = np.maximum(states.tokens.width - 1 - num_known, 0)
    hidden_ND = state.hidden_ND
    if len(emitted.logits_rows) < len(hidden_ND):
        index = torch.from_numpy(emitted.logits_rows).to(hidden_ND.device)
        hidden_ND = hidden_ND[index]
    return drafter.propose(
        SampledRows(
            slots=slots,
            num_known=num_known,
            num_emitted=num_emitted.astype(np.int32),
            num_wanted=np.minimum(num_wanted, num_left).astype(np.int32),
            hidden_ED=hidden_ND,
        )
    )
