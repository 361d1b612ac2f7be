"""Sampling parameters of the live requests, in slot-indexed columns on the host."""

from collections.abc import Mapping
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
        ("num_prompt_logprobs", np.int32),
        ("edits_logits", np.bool_),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingRows:
    """Parameters of the S rows that sample, on the host, taken out of their records when asked for.

    slots int64 [S]; positions int64 [S]: index in its sequence of the token to be drawn; params: of
    the slots whose requests edit logits, all of them.
    """

    records: NDArray[np.void]
    slots: Int64s
    positions: Int64s
    params: Mapping[int, SamplingParams]

    @property
    def is_greedy(self) -> bool:
        """Whether no row draws at random."""
        return not np.count_nonzero(self.records["temperature"])

    @property
    def most_logprobs(self) -> int:
        """Most alternatives a row asked for, NO_LOGPROBS when none asked for log-probabilities."""
        return int(self.records["num_logprobs"].max(initial=NO_LOGPROBS))

    @property
    def edited(self) -> Int64s:
        """The rows whose requests edit logits, int64."""
        return np.flatnonzero(self.records["edits_logits"])

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
        return SamplingRows(
            records=self.records[rows],
            slots=self.slots[rows],
            positions=self.positions[rows],
            params=self.params,
        )


class SamplingStates:
    """One record per slot; a slot's record is replaced when the slot gets a new request."""

    def __init__(self, *, num_slots: int) -> None:
        self._records = np.zeros(num_slots, dtype=_RECORD)
        self._params: dict[int, SamplingParams] = {}

    def replace(self, slot: int, params: SamplingParams) -> None:
        """Make `params` those of a slot; slots grow on demand."""
        if slot >= len(self._records):
            added = np.zeros(max(slot + 1, 2 * len(self._records)) - len(self._records), _RECORD)
            self._records = np.concatenate([self._records, added])
        self._params.pop(slot, None)
        if params.edits_logits:
            self._params[slot] = params
        self._records[slot] = (
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seed,
            _count(params.num_logprobs),
            _count(params.num_prompt_logprobs),
            params.edits_logits,
        )

    def rows(self, slots: Int64s, *, positions: Int64s) -> SamplingRows:
        """Parameters of the given slots for drawing the tokens at the given positions."""
        return SamplingRows(
            records=self._records[slots], slots=slots, positions=positions, params=self._params
        )

    def num_prompt_logprobs(self, slots: Int64s) -> Int32s:
        """Alternatives that the slots' requests want for their prompts' tokens, or NO_LOGPROBS."""
        return self._records["num_prompt_logprobs"][slots]


def _count(num_logprobs: int | None) -> int:
    return NO_LOGPROBS if num_logprobs is None else num_logprobs
