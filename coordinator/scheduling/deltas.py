"""One row of a step's result becomes the TokenDelta its request gets."""

from common.requests import FinishReason, TokenDelta, TokenLogprobs
from common.step import Logprobs


def token_delta(
    token_id: int,
    *,
    finish_reason: FinishReason | None,
    logprobs: Logprobs | None,
    row: int,
    num_logprobs: int | None,
    num_cached_tokens: int,
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None,
) -> TokenDelta:
    """The delta of one sampled token; num_logprobs is what its request asked for.

    A token that ends the output, EOS included, is part of the delta: the text layer hides it.
    """
    positions = None
    if num_logprobs is not None and logprobs is not None:
        positions = (token_logprobs(logprobs, row, num_logprobs),)
    return TokenDelta(
        token_ids=(token_id,),
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
