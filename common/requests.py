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
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None


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
    belongs to, if any.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stopping: StopParams
    priority: int = 0
    trace: TraceContext | None = None


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
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
