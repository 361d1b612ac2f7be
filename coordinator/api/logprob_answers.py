"""Log-probabilities of outputs and prompts in the bodies of OpenAI's API and vLLM's additions to it."""

from collections.abc import Sequence
from typing import Any

from coordinator.engine.generation import PositionLogprobs, PromptText, TextDelta, TokenLogprob

Body = dict[str, Any]


def output_positions(deltas: Sequence[TextDelta]) -> list[PositionLogprobs] | None:
    """Log-probabilities of all deltas, None when none were asked for."""
    asked = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    return [position for positions in asked for position in positions] if asked else None


def legacy_logprobs(deltas: Sequence[TextDelta], echo: PromptText | None) -> Body | None:
    """Parallel lists, one entry per token, the echoed prompt's first; alternatives by their text.

    The first token of a prompt has no log-probability: null.
    """
    positions = output_positions(deltas)
    prompt = None if echo is None else echo.logprobs
    if positions is None and prompt is None:
        return None
    shift = 0 if echo is None else len(echo.text)
    body = _parallel_lists(positions or [], shift=shift)
    if echo is None or prompt is None:
        return body
    first: Body = {
        "tokens": [echo.first_token.text],
        "token_logprobs": [None],
        "top_logprobs": [None],
        "text_offset": [0],
    }
    before = _parallel_lists(prompt, shift=0)
    return {name: first[name] + before[name] + body[name] for name in body}


def prompt_logprobs_body(deltas: Sequence[TextDelta]) -> Body:
    """The field prompt_logprobs, by token id; nothing where they were not asked for."""
    prompt = deltas[0].prompt
    if prompt is None or prompt.logprobs is None:
        return {}
    return {"prompt_logprobs": [None, *map(_by_token_id, prompt.logprobs)]}


def _parallel_lists(positions: Sequence[PositionLogprobs], *, shift: int) -> Body:
    return {
        "tokens": [position.chosen.text for position in positions],
        "token_logprobs": [position.chosen.logprob for position in positions],
        "top_logprobs": [
            {token.text: token.logprob for token in reversed(position.top)}
            for position in positions
        ],
        "text_offset": [shift + position.text_offset for position in positions],
    }


def _by_token_id(position: PositionLogprobs) -> Body:
    ranked = [(rank, token) for rank, token in enumerate(position.top, start=1)]
    ranked.append((position.rank, position.chosen))
    return {str(token.token_id): _entry(rank, token) for rank, token in ranked}


def _entry(rank: int, token: TokenLogprob) -> Body:
    return {"logprob": token.logprob, "rank": rank, "decoded_token": token.text}
