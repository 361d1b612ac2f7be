"""What a client asks for, after the edge has checked it. Plain values, no text handling."""

from dataclasses import dataclass
from enum import Enum

from common.trace_context import TraceContext


class FinishReason(Enum):
    """Why an output ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn; every value is resolved, also the seed.

    temperature 0 is greedy; top_k 0 keeps all; top_p in (0, 1]; min_p in [0, 1];
    num_logprobs None: no log-probabilities, n: the chosen token's and those of the n best.
    num_prompt_logprobs: the same of the prompt's tokens, each in its place.
    The penalties are those of `worker_service.kernels.logit_edits`; repetition_penalty is above 0.
    end_token_ids cannot be drawn while the output has fewer than min_tokens tokens; logit_bias:
    (token id, addend), each token once; allowed_token_ids: empty allows all; bad_words: sequences
    of tokens, none empty, that are never drawn to their end. extra_args: (name, JSON) for custom
    logits processors.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    extra_args: tuple[tuple[str, str], ...] = ()

    @property
    def edits_logits(self) -> bool:
        """Whether anything but temperature and filters changes the logits of its tokens."""
        return bool(
            self.repetition_penalty != 1
            or self.frequency_penalty
            or self.presence_penalty
            or self.min_tokens
            or self.logit_bias
            or self.allowed_token_ids
            or self.bad_words
            or self.extra_args
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopParams:
    """When an output ends: the token-level rules go to the scheduler, `stop` to the text layer."""

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One accepted request: at least one prompt token, and room for one more in the model's length.

    priority counts where the scheduler has priorities: the smaller, the sooner. trace: the span it
    belongs to, if any. leader_id: a request with the same prompt, accepted before, that computes it
    for this one as well.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stopping: StopParams
    priority: int = 0
    trace: TraceContext | None = None
    leader_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position: the chosen token, its 1-based rank, and the best ones."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDelta:
    """What one committed step adds to a request; `finish_reason` is set on the last delta.

    num_cached_tokens: prompt tokens of the request that were found in the prefix cache.
    prompt_logprobs: of every prompt token but the first, with the first delta, when asked for.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
