"""The check of one request's sampling parameters as a worker receives them."""

import math

from common.errors import InvalidStep
from common.requests import SamplingParams


def check_sampling(params: SamplingParams, *, place: str, vocab_size: int) -> None:
    """Raise InvalidStep, naming place and field, for a value that no sampler could follow."""
    num_logprobs = params.num_logprobs
    is_right_by_field = {
        "temperature": math.isfinite(params.temperature) and params.temperature >= 0,
        "top_k": 0 <= params.top_k < 1 << 31,
        "top_p": 0 < params.top_p <= 1,
        "min_p": 0 <= params.min_p <= 1,
        "seed": 0 <= params.seed < 1 << 64,
        "num_logprobs": num_logprobs is None or 0 <= num_logprobs <= vocab_size,
    }
    for field, is_right in is_right_by_field.items():
        if not is_right:
            raise InvalidStep(f"{place}: sampling.{field} is {getattr(params, field)}")
