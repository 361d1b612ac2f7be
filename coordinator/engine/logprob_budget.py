"""Log-probabilities of whole vocabularies: how many a request gets, and all open ones together.

They come by the million, in a step's result as in an answer, and would fill either without a bound.
"""

from collections.abc import Iterable

from common.errors import InvalidRequest, Overloaded
from common.requests import Request
from coordinator.engine.generation import ServedModel
from coordinator.engine.limits import MAX_LOGPROBS, MAX_WHOLE_VOCABULARY_LOGPROBS

MAX_OPEN_LOGPROBS = 4 * MAX_WHOLE_VOCABULARY_LOGPROBS


class LogprobBudget:
    """Counts what open requests may still get; those that ask for a few per token cost nothing."""

    def __init__(self, num_values: int = MAX_OPEN_LOGPROBS) -> None:
        """num_values: of all open requests together."""
        self._num_left = num_values

    def take(self, num_values: int) -> None:
        """Open a request that gets so many; raises Overloaded while others hold too many."""
        if num_values > self._num_left:
            raise Overloaded(
                "other requests are being told the log-probabilities of whole vocabularies; "
                "try again later"
            )
        self._num_left -= num_values

    def give_back(self, num_values: int) -> None:
        """Close a request that took so many."""
        self._num_left += num_values


def count_whole_vocabularies(requests: Iterable[Request], *, model: ServedModel) -> int:
    """Log-probabilities that outputs of one request get; raises InvalidRequest where that is too many.

    Those of a few tokens a position count nothing.
    """
    num_values = 0
    for request in requests:
        for field, asked, num_positions in (
            ("logprobs", request.sampling.num_logprobs, request.stopping.max_tokens),
            (
                "prompt_logprobs",
                request.sampling.num_prompt_logprobs,
                len(request.prompt_token_ids),
            ),
        ):
            if asked is None or asked <= MAX_LOGPROBS:
                continue
            num_values += num_positions * model.vocab_size
            if num_values > MAX_WHOLE_VOCABULARY_LOGPROBS:
                raise InvalidRequest(
                    f"{field}: tokens of all prompts and outputs x {model.vocab_size} tokens of the "
                    f"vocabulary are more than {MAX_WHOLE_VOCABULARY_LOGPROBS} log-probabilities; "
                    f"ask for fewer tokens, or at most {MAX_LOGPROBS} alternatives",
                    param=field,
                )
    return num_values
