"""Sampling parameters of the live requests, in slot-indexed columns on the host."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.requests import SamplingParams
from common.step import Float32s, Int32s, Int64s

NO_LOGPROBS = -1
"""num_logprobs of a row that asked for no log-probabilities."""


_RECORD = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("seed", np.uint64),
        ("num_logprobs", np.int32),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingRows:
    """Parameters of the S rows that sample, on the host, taken out of their records when asked for.

    positions int64 [S]: index in its sequence of the token to be drawn.
    """

    records: NDArray[np.void]
    positions: Int64s

    @property
    def is_greedy(self) -> bool:
        """Whether no row draws at random."""
        return not np.count_nonzero(self.records["temperature"])

    @property
    def most_logprobs(self) -> int:
        """Most alternatives a row asked for, NO_LOGPROBS when none asked for log-probabilities."""
        return int(self.records["num_logprobs"].max(initial=NO_LOGPROBS))

    @property
    def temperature(self) -> Float32s:
        """float32 [S], 0 is greedy."""
        return self.records["temperature"].copy()

    @property
    def top_k(self) -> Int32s:
        """int32 [S], 0 keeps all."""
        return self.records["top_k"].copy()

    @property
    def top_p(self) -> Float32s:
        """float32 [S], 1 keeps all."""
        return self.records["top_p"].copy()

    @property
    def min_p(self) -> Float32s:
        """float32 [S], 0 keeps all."""
        return self.records["min_p"].copy()

    @property
    def seeds(self) -> Int64s:
        """int64 [S], 64 bits without a sign."""
        return self.records["seed"].copy().view(np.int64)

    @property
    def num_logprobs(self) -> Int32s:
        """int32 [S], NO_LOGPROBS where not asked for."""
        return self.records["num_logprobs"].copy()

    def take(self, rows: Int64s | NDArray[np.bool_]) -> "SamplingRows":
        """Only the given rows."""
        return SamplingRows(records=self.records[rows], positions=self.positions[rows])


class SamplingStates:
    """One record per slot; a slot's record is replaced when the slot gets a new request."""

    def __init__(self, *, num_slots: int) -> None:
        self._records = np.zeros(num_slots, dtype=_RECORD)

    def replace(self, slot: int, params: SamplingParams) -> None:
        """Make `params` those of a slot; slots grow on demand."""
        if slot >= len(self._records):
            added = np.zeros(max(slot + 1, 2 * len(self._records)) - len(self._records), _RECORD)
            self._records = np.concatenate([self._records, added])
        num_logprobs = NO_LOGPROBS if params.num_logprobs is None else params.num_logprobs
        self._records[slot] = (
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seed,
            num_logprobs,
        )

    def rows(self, slots: Int64s, *, positions: Int64s) -> SamplingRows:
        """Parameters of the given slots for drawing the tokens at the given positions."""
        return SamplingRows(records=self._records[slots], positions=positions)
