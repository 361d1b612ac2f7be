"""One row of a step's result becomes the TokenDelta its request gets."""

from common.requests import FinishReason, TokenDelta, TokenLogprobs
from common.step import Logprobs


def token_delta(
    token_ids: tuple[int, ...],
    *,
    finish_reason: FinishReason | None,
    logprobs: Logprobs | None,
    first_row: int,
    num_logprobs: int | None,
    num_cached_tokens: int,
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None,
) -> TokenDelta:
    """The delta of the tokens a row emitted; num_logprobs is what its request asked for.

    first_row: where the log-probabilities of the first token stand; those of the others follow.
    A token that ends the output, EOS included, is part of the delta: the text layer hides it.
    """
    positions = None
    if num_logprobs is not None and logprobs is not None:
        positions = tuple(
            token_logprobs(logprobs, first_row + index, num_logprobs)
            for index in range(len(token_ids))
        )
    return TokenDelta(
        token_ids=token_ids,
        logprobs=positions,
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        num_cached_tokens=num_cached_tokens,
    )


def token_logprobs(logprobs: Logprobs, row: int, num_logprobs: int) -> TokenLogprobs:
    """Entry 0 of a row is the chosen token; a step holds as many best ones as its greediest row."""
    token_ids = logprobs.token_ids[row, : num_logprobs + 1].tolist()
    values = logprobs.logprobs[row, : num_logprobs + 1].tolist()
    return TokenLogprobs(
        token_id=token_ids[0],
        logprob=values[0],
        rank=int(logprobs.ranks[row]),
        top=tuple(zip(token_ids[1:], values[1:], strict=True)),
    )
