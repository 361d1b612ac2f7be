"""Sampling parameters of the live requests, in slot-indexed columns on the host."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.requests import SamplingParams
from common.step import Float32s, Int32s, Int64s

NO_LOGPROBS = -1
"""num_logprobs of a row that asked for no log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingRows:
    """Parameters of the S rows that sample, on the host.

    temperature, top_p and min_p float32 [S]; top_k int32 [S]; seeds int64 [S], 64 bits without a
    sign; num_logprobs int32 [S], NO_LOGPROBS where not asked for; positions int64 [S]: index in its
    sequence of the token to be drawn.
    """

    temperature: Float32s
    top_k: Int32s
    top_p: Float32s
    min_p: Float32s
    seeds: Int64s
    num_logprobs: Int32s
    positions: Int64s

    def take(self, rows: Int64s | NDArray[np.bool_]) -> "SamplingRows":
        """Only the given rows."""
        return SamplingRows(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            num_logprobs=self.num_logprobs[rows],
            positions=self.positions[rows],
        )


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
        records = self._records[slots]
        return SamplingRows(
            temperature=records["temperature"].copy(),
            top_k=records["top_k"].copy(),
            top_p=records["top_p"].copy(),
            min_p=records["min_p"].copy(),
            seeds=records["seed"].copy().view(np.int64),
            num_logprobs=records["num_logprobs"].copy(),
            positions=positions,
        )
