"""The check of one request's sampling parameters as a worker receives them."""

import math
from collections.abc import Iterable

from common.errors import InvalidStep
from common.requests import SamplingParams


def check_sampling(params: SamplingParams, *, place: str, vocab_size: int) -> None:
    """Raise InvalidStep, naming place and field, for a value that no sampler could follow."""

    def is_count(num_logprobs: int | None) -> bool:
        return num_logprobs is None or 0 <= num_logprobs <= vocab_size

    def are_tokens(token_ids: Iterable[int]) -> bool:
        return all(0 <= token_id < vocab_size for token_id in token_ids)

    biased = [token_id for token_id, _ in params.logit_bias]
    is_right_by_field = {
        "temperature": math.isfinite(params.temperature) and params.temperature >= 0,
        "top_k": 0 <= params.top_k < 1 << 31,
        "top_p": 0 < params.top_p <= 1,
        "min_p": 0 <= params.min_p <= 1,
        "seed": 0 <= params.seed < 1 << 64,
        "num_logprobs": is_count(params.num_logprobs),
        "num_prompt_logprobs": is_count(params.num_prompt_logprobs),
        "repetition_penalty": 0 < params.repetition_penalty < math.inf,
        "frequency_penalty": math.isfinite(params.frequency_penalty),
        "presence_penalty": math.isfinite(params.presence_penalty),
        "end_token_ids": are_tokens(params.end_token_ids),
        "logit_bias": are_tokens(biased)
        and len(set(biased)) == len(biased)
        and all(math.isfinite(bias) for _, bias in params.logit_bias),
        "allowed_token_ids": are_tokens(params.allowed_token_ids),
        "bad_words": all(word and are_tokens(word) for word in params.bad_words),
    }
    for field, is_right in is_right_by_field.items():
        if not is_right:
            raise InvalidStep(f"{place}: sampling.{field} is {getattr(params, field)}")
