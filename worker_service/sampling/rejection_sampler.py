"""The rejection sampler: drafts and the target's own tokens -> what a row emits.

The target's token at a position is a pure function of the logits there, the request's seed and the
position, since that is what the noise of the draw is made of. So a draft is accepted exactly where it
equals the token the target draws with the drafts before it, and the first one that differs is replaced
by the target's. What a row emits is, token for token, what it would emit without drafts, whoever
proposed them: Daliri, Musco and Suresh, "Coupling without Communication and Drafter-Invariant
Speculative Decoding", arXiv:2408.07978.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.step import Int32s, Int64s, Logprobs, Ragged
from worker_service.sampling.sampler import SamplerOutput

# S rows that sample, N logits rows: 1 + drafts of each, E tokens emitted in all

AcceptanceRule = Callable[[Int32s, Int32s], NDArray[np.bool_]]
"""Whether each draft may stand, given the drafts and the target's tokens at their positions."""


def equals_target(drafts: Int32s, target_tokens: Int32s) -> NDArray[np.bool_]:
    """A draft stands where it is what the target draws."""
    return drafts == target_tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmittedTokens:
    """What S rows emit, on the host.

    is_sampled bool [S]: a row that would emit a token where none could be drawn emits none, and errors
    say why, by row. Of the others, one after the other: token_ids, at least one each; logits_rows int64
    [E], the logits row each was drawn from; their log-probabilities when any row asked for them.
    """

    is_sampled: NDArray[np.bool_]
    token_ids: Ragged
    logits_rows: Int64s
    logprobs: Logprobs | None
    errors: Mapping[int, str]


def accept_drafts(
    sampled: SamplerOutput, drafts: Ragged, *, may_stand: AcceptanceRule = equals_target
) -> EmittedTokens:
    """Emit each row's drafts up to the first that may not stand, and the target's token after them.

    sampled: N logits rows, of each row its last known token and then its drafts.
    """
    if not len(drafts.values):
        return _one_each(sampled)
    num_logits_rows = len(sampled.is_sampled)
    lengths_S = drafts.lengths + 1
    firsts_S = np.cumsum(lengths_S) - lengths_S
    tokens_N = np.zeros(num_logits_rows, dtype=np.int32)
    tokens_N[sampled.is_sampled] = sampled.token_ids
    # A draft is compared with what is drawn one logits row before its own; the last row of each has
    # none and ends what may stand.
    has_draft_N = np.ones(num_logits_rows, dtype=np.bool_)
    has_draft_N[firsts_S + lengths_S - 1] = False
    stands_N = np.zeros(num_logits_rows, dtype=np.bool_)
    stands_N[has_draft_N] = may_stand(drafts.values, tokens_N[has_draft_N])
    index_N = np.arange(num_logits_rows)
    ends_S = np.minimum.reduceat(np.where(stands_N, num_logits_rows, index_N), firsts_S)
    num_emitted_S = 1 + ends_S - firsts_S
    is_accepted_N = index_N < np.repeat(ends_S, lengths_S)
    tokens_N[has_draft_N] = np.where(
        is_accepted_N[has_draft_N], drafts.values, tokens_N[has_draft_N]
    )
    is_emitted_N = index_N <= np.repeat(ends_S, lengths_S)
    row_of_N = np.repeat(np.arange(drafts.num_rows), lengths_S)
    # Of a row the first logits row counts from which nothing could be drawn.
    failed = np.flatnonzero(~sampled.is_sampled & is_emitted_N)[::-1].tolist()
    errors = {int(row_of_N[each]): sampled.errors[each] for each in failed}
    is_sampled_S = np.ones(drafts.num_rows, dtype=np.bool_)
    is_sampled_S[list(errors)] = False
    is_emitted_N &= is_sampled_S[row_of_N]
    logits_rows = np.flatnonzero(is_emitted_N)
    return EmittedTokens(
        is_sampled=is_sampled_S,
        token_ids=Ragged.from_lengths(tokens_N[logits_rows], num_emitted_S[is_sampled_S]),
        logits_rows=logits_rows,
        logprobs=_take_logprobs(sampled, is_emitted_N),
        errors=errors,
    )


def _one_each(sampled: SamplerOutput) -> EmittedTokens:
    """Without drafts a row emits what was drawn from its one logits row."""
    num_tokens = len(sampled.token_ids)
    return EmittedTokens(
        is_sampled=sampled.is_sampled,
        token_ids=Ragged(sampled.token_ids, np.arange(num_tokens + 1, dtype=np.uint32)),
        logits_rows=np.flatnonzero(sampled.is_sampled),
        logprobs=sampled.logprobs,
        errors=sampled.errors,
    )


def _take_logprobs(sampled: SamplerOutput, is_emitted_N: NDArray[np.bool_]) -> Logprobs | None:
    """Those of the emitted tokens; the sampler has them of all it could draw from."""
    logprobs = sampled.logprobs
    if logprobs is None or is_emitted_N.all():
        return logprobs
    kept = is_emitted_N[sampled.is_sampled]
    return Logprobs(
        token_ids=logprobs.token_ids[kept],
        logprobs=logprobs.logprobs[kept],
        ranks=logprobs.ranks[kept],
    )
