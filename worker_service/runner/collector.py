"""From emitted tokens to the ModelRunnerOutput of a step, and to what feeds the steps after it."""

import numpy as np

from common.step import (
    Int32s,
    ModelRunnerOutput,
    Phase,
    PromptLogprobs,
    Ragged,
    StepId,
    StepKey,
)
from worker_service.batch.sampled_tokens import SampledTokens
from worker_service.runner.digests import Digests
from worker_service.runner.execute_state import ExecuteModelState
from worker_service.sampling.rejection_sampler import EmittedTokens

_NO_TOKEN = np.zeros(1, dtype=np.int32)


def collect(
    state: ExecuteModelState,
    emitted: EmittedTokens,
    drafts: Ragged,
    *,
    prompt_logprobs: tuple[PromptLogprobs, ...],
    digests: Digests,
) -> ModelRunnerOutput:
    """Tokens and drafts of each row that has some, an error for each of the others, in row order.

    drafts: a row for each row that has tokens.
    """
    return ModelRunnerOutput(
        key=StepKey(step_id=state.step_id, phase=Phase.SAMPLE),
        handles=state.handles[emitted.is_sampled],
        sampled_token_ids=emitted.token_ids,
        drafts=drafts if len(drafts.values) else None,
        logprobs=emitted.logprobs,
        prompt_logprobs=prompt_logprobs,
        request_errors=tuple(
            (int(state.handles[row]), reason) for row, reason in sorted(emitted.errors.items())
        ),
        state_digest=digests.state,
        kv_digest=digests.kv,
    )


def sampled_tokens(
    state: ExecuteModelState, emitted: EmittedTokens, drafts: Ragged
) -> SampledTokens:
    """What each row emitted; one token 0 and no drafts for those without any."""
    token_ids = emitted.token_ids
    if not emitted.is_sampled.all():
        token_ids = _spread(token_ids, emitted, absent=_NO_TOKEN)
        drafts = _spread(drafts, emitted, absent=_NO_TOKEN[:0])
    return SampledTokens(
        handles=state.handles, positions=state.num_known, token_ids=token_ids, drafts=drafts
    )


def _spread(rows: Ragged, emitted: EmittedTokens, *, absent: Int32s) -> Ragged:
    """The given rows at the places of those that are finite, and `absent` at the others."""
    given = iter(range(rows.num_rows))
    return Ragged.from_rows(
        [rows.row(next(given)) if is_sampled else absent for is_sampled in emitted.is_sampled]
    )


def empty_output(step_id: StepId, *, digests: Digests) -> ModelRunnerOutput:
    """The answer of a step without tokens."""
    key = StepKey(step_id=step_id, phase=Phase.EXECUTE)
    return ModelRunnerOutput(key=key, state_digest=digests.state, kv_digest=digests.kv)
