"""The tokens of a step's result become part of their sequences. Frees nothing and tells nobody."""

from common.requests import FinishReason, TokenDelta
from common.step import ModelRunnerOutput
from coordinator.scheduling.deltas import token_delta
from coordinator.scheduling.sequence import Sequence, SequenceState

Committed = tuple[Sequence, TokenDelta]


def commit_prompt_logprobs(sequences: dict[int, Sequence], result: ModelRunnerOutput) -> None:
    """Keep the log-probabilities of prompts until the first token is there to go with them."""
    for part in result.prompt_logprobs:
        # One that has ended since is nobody's.
        if (sequence := sequences.get(part.handle)) is not None:
            sequence.add_prompt_logprobs(part)


def commit_tokens(
    sampling: list[Sequence], result: ModelRunnerOutput
) -> tuple[list[Committed], list[tuple[Sequence, str]]]:
    """Append a token to each sequence that sampled and has not ended; what their requests get.

    Second, sequences whose token cannot be theirs, with the reason: a bug of ours.
    """
    committed: list[Committed] = []
    failed: list[tuple[Sequence, str]] = []
    token_ids = result.sampled_token_ids.values.tolist()
    logprobs = result.logprobs
    for row, (sequence, token_id) in enumerate(zip(sampling, token_ids, strict=True)):
        if sequence.state is SequenceState.FINISHED:
            continue  # ended while in flight
        if sequence.matcher is not None and not sequence.matcher.advance(token_id):
            failed.append((sequence, f"token {token_id} is not one its grammar allows"))
            continue
        finish_reason = sequence.append(token_id)
        params = sequence.request.sampling
        if params.num_logprobs is None and params.num_prompt_logprobs is None:
            delta = _plain_delta(sequence, token_id, finish_reason)
        else:
            delta = token_delta(
                token_id,
                finish_reason=finish_reason,
                logprobs=logprobs,
                row=row,
                num_logprobs=params.num_logprobs,
                num_cached_tokens=sequence.num_cached_tokens,
                prompt_logprobs=sequence.take_prompt_logprobs(),
            )
        committed.append((sequence, delta))
    return committed, failed


def _plain_delta(
    sequence: Sequence, token_id: int, finish_reason: FinishReason | None
) -> TokenDelta:
    return TokenDelta(
        token_ids=(token_id,),
        finish_reason=finish_reason,
        num_cached_tokens=sequence.num_cached_tokens,
    )
