"""The token each live request sampled last: what a row computes that was planned before it was known.

Such a row names the step that samples its token instead of the token. Every stage knows which
requests a step sampled, so a wrong name is found before anything runs. The tokens themselves are known
where they are drawn; the first stage of several receives them, and those between count them.
"""

from collections.abc import Callable

import numpy as np

from common.errors import TensorError
from common.step import CachedRequests, Int32s, Int64s, Ragged
from worker_service.batch.request_states import RequestStates
from worker_service.batch.sampled_tokens import SampledTokens

UNKNOWN = -1
"""In place of a token that was sampled on another rank."""

_UNSEEN = 0
"""In place of a token by a stage that only counts it."""

FetchTokens = Callable[[int], SampledTokens]
"""Waits for the tokens of the step with this number."""


class TokenFeedback:
    """Step and token of each request's last sample, by its slot in the request states."""

    def __init__(self, states: RequestStates) -> None:
        self._states = states
        # int64 [slots], 0 before the first sample; int32 [slots].
        self._steps: Int64s = np.zeros(states.num_slots, dtype=np.int64)
        self._tokens: Int32s = np.zeros(states.num_slots, dtype=np.int32)

    def last_steps(self, slots: Int64s) -> Int64s:
        """Number of the step that sampled each slot's request last, 0 for none; int64 [len(slots)]."""
        self._grow()
        return self._steps[slots]

    def forget(self, slot: int) -> None:
        """Let a slot start anew, with another request."""
        self._grow()
        self._steps[slot] = 0

    def expect(self, step: int, slots: Int64s) -> None:
        """Note that a step samples these; the tokens come later, if ever."""
        self._steps[slots] = step
        self._tokens[slots] = UNKNOWN

    def put(self, step: int, sampled: SampledTokens) -> None:
        """Take the tokens of a step; those of requests that have ended or sampled since are dropped."""
        states = self._states
        for handle, position, token_id in zip(
            sampled.handles.tolist(),
            sampled.positions.tolist(),
            sampled.token_ids.tolist(),
            strict=True,
        ):
            if not states.knows(handle):
                continue
            slot = states.slot(handle)
            if self._steps[slot] == step and states.tokens.lengths[slot] == position:
                self._tokens[slot] = token_id

    def new_token_ids(self, requests: CachedRequests, *, fetch: FetchTokens | None) -> Ragged:
        """What each row appends to its known tokens: as it was sent, or its last sample.

        A token that is not known here is fetched, where there is a way to. Raises TensorError when
        it was not among those of its step.
        """
        given, source_steps = requests.new_token_ids, requests.token_source_steps
        (fed,) = np.nonzero(source_steps)
        if not len(fed):
            return given
        slots = self._states.slots(requests.handles[fed])
        if fetch is not None:
            self._fetch_missing(slots, fetch)
        tokens = self._tokens[slots]
        tokens[tokens == UNKNOWN] = _UNSEEN
        # A row that is fed brings nothing of its own, so it has this one token.
        offsets = given.offsets.copy()
        offsets[1:] += np.cumsum(source_steps > 0, dtype=np.uint32)
        is_fed = np.zeros(offsets[-1], dtype=np.bool_)
        is_fed[offsets[fed]] = True
        values = np.empty(len(is_fed), dtype=np.int32)
        values[is_fed], values[~is_fed] = tokens, given.values
        return Ragged(values, offsets)

    def _fetch_missing(self, slots: Int64s, fetch: FetchTokens) -> None:
        missing = slots[self._tokens[slots] == UNKNOWN]
        for step in np.unique(self._steps[missing]).tolist():
            self.put(step, fetch(step))
        lost = missing[self._tokens[missing] == UNKNOWN]
        if len(lost):
            raise TensorError(
                f"the tokens fed back of step {self._steps[lost[0]]} leave out {len(lost)} requests"
            )

    def _grow(self) -> None:
        added = self._states.num_slots - len(self._steps)
        if added > 0:
            self._steps = np.concatenate([self._steps, np.zeros(added, np.int64)])
            self._tokens = np.concatenate([self._tokens, np.zeros(added, np.int32)])
