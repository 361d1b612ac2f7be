"""How much a coordinator did in the last minutes, from the states it was in; reads no clock."""

from collections import deque
from dataclasses import dataclass

from coordinator.engine.cluster_status import ClusterStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """The load at a moment, in seconds of whichever clock; rates are per second since the last sample."""

    at: float
    generated_rate: float
    prompt_rate: float
    num_running: int
    num_waiting: int
    kv_usage: float


class LoadHistory:
    """The samples of the last states, oldest first."""

    def __init__(self, *, max_samples: int) -> None:
        """Remember so many."""
        self._samples: deque[LoadSample] = deque(maxlen=max_samples)
        self._num_generated = 0
        self._num_prompt = 0

    @property
    def samples(self) -> tuple[LoadSample, ...]:
        """All that are remembered."""
        return tuple(self._samples)

    def note(self, status: ClusterStatus, *, at: float) -> LoadSample:
        """Take the next sample; the rates of the first are 0, and so are those of counts that fell."""
        seconds = at - self._samples[-1].at if self._samples else 0.0
        sample = LoadSample(
            at=at,
            generated_rate=_rate(status.num_generated_tokens - self._num_generated, seconds),
            prompt_rate=_rate(status.num_prompt_tokens - self._num_prompt, seconds),
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            kv_usage=status.kv_usage,
        )
        self._num_generated = status.num_generated_tokens
        self._num_prompt = status.num_prompt_tokens
        self._samples.append(sample)
        return sample


def _rate(count: int, seconds: float) -> float:
    """A coordinator that was started anew counts from 0 again."""
    return count / seconds if seconds > 0 and count > 0 else 0.0
