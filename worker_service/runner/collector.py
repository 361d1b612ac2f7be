"""From drawn tokens to the ModelRunnerOutput of a step, and to what feeds the steps after it."""

import numpy as np

from common.step import ModelRunnerOutput, Phase, PromptLogprobs, Ragged, StepId, StepKey
from worker_service.batch.sampled_tokens import SampledTokens
from worker_service.runner.digests import Digests
from worker_service.runner.execute_state import ExecuteModelState
from worker_service.sampling.sampler import SamplerOutput


def collect(
    state: ExecuteModelState,
    sampled: SamplerOutput,
    *,
    prompt_logprobs: tuple[PromptLogprobs, ...],
    digests: Digests,
) -> ModelRunnerOutput:
    """One token for each row that has one, an error for each of the others, in row order."""
    num_tokens = len(sampled.token_ids)
    return ModelRunnerOutput(
        key=StepKey(step_id=state.step_id, phase=Phase.SAMPLE),
        handles=state.handles[sampled.is_sampled],
        sampled_token_ids=Ragged(sampled.token_ids, np.arange(num_tokens + 1, dtype=np.uint32)),
        logprobs=sampled.logprobs,
        prompt_logprobs=prompt_logprobs,
        request_errors=tuple(
            (int(state.handles[row]), reason) for row, reason in sorted(sampled.errors.items())
        ),
        state_digest=digests.state,
        kv_digest=digests.kv,
    )


def sampled_tokens(state: ExecuteModelState, sampled: SamplerOutput) -> SampledTokens:
    """One token for each row, 0 for those without one."""
    token_ids = np.zeros(len(state.handles), dtype=np.int32)
    token_ids[sampled.is_sampled] = sampled.token_ids
    return SampledTokens(
        handles=state.handles, positions=state.sampling.positions, token_ids=token_ids
    )


def empty_output(step_id: StepId, *, digests: Digests) -> ModelRunnerOutput:
    """The answer of a step without tokens."""
    key = StepKey(step_id=step_id, phase=Phase.EXECUTE)
    return ModelRunnerOutput(key=key, state_digest=digests.state, kv_digest=digests.kv)
