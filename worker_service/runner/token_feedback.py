"""What each live request sampled last: what a row computes that was planned before it was known.

Such a row names the step that samples its tokens instead of the tokens. Every stage knows which
requests a step sampled, so a wrong name is found before anything runs. The tokens themselves, and the
drafts behind them, are known where they are drawn; earlier stages receive them. Without drafts every
row samples one token, and only the first stage has to: those between count it.
"""

from collections.abc import Callable

import numpy as np

from common.errors import TensorError
from common.step import Int32s, Int64s, Ragged, SchedulerOutput
from worker_service.batch.request_states import RequestStates
from worker_service.batch.sampled_tokens import SampledTokens

UNKNOWN = -1
"""Number of tokens that were sampled on another rank."""

_UNSEEN = 0
"""In place of a token by a stage that only counts it."""

FetchTokens = Callable[[int], SampledTokens]
"""Waits for the tokens of the step with this number."""


class TokenFeedback:
    """Step, tokens and drafts of each request's last sample, by its slot in the request states."""

    def __init__(self, states: RequestStates, *, most_drafts: int = 0) -> None:
        self._states = states
        num_slots = states.num_slots
        # int64 [slots], 0 before the first sample.
        self._steps: Int64s = np.zeros(num_slots, dtype=np.int64)
        # int32 [slots] and [slots, most]: how many there are, and which.
        self._num_tokens: Int32s = np.zeros(num_slots, dtype=np.int32)
        self._num_drafts: Int32s = np.zeros(num_slots, dtype=np.int32)
        self._tokens: Int32s = np.zeros((num_slots, most_drafts + 1), dtype=np.int32)
        self._drafts: Int32s = np.zeros((num_slots, most_drafts), dtype=np.int32)

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
        self._num_tokens[slots] = UNKNOWN

    def put(self, step: int, sampled: SampledTokens) -> None:
        """Take the tokens of a step; those of requests that have ended or sampled since are dropped."""
        states = self._states
        for row, (handle, position) in enumerate(
            zip(sampled.handles.tolist(), sampled.positions.tolist(), strict=True)
        ):
            if not states.knows(handle):
                continue
            slot = states.slot(handle)
            if self._steps[slot] == step and states.tokens.lengths[slot] == position:
                self._put_row(slot, sampled.token_ids.row(row), sampled.drafts.row(row))

    def _put_row(self, slot: int, token_ids: Int32s, drafts: Int32s) -> None:
        # The first token is there anyway; a draft more than this step has computed cannot be right.
        most = 1 + int(self._states.num_drafts[slot])
        if not 1 <= len(token_ids) <= most or len(drafts) > self._drafts.shape[1]:
            raise TensorError(
                f"{len(token_ids)} tokens and {len(drafts)} drafts were fed back of a row that "
                f"computed {most - 1} drafts"
            )
        self._num_tokens[slot], self._num_drafts[slot] = len(token_ids), len(drafts)
        self._tokens[slot, : len(token_ids)] = token_ids
        self._drafts[slot, : len(drafts)] = drafts

    def new_tokens(
        self, output: SchedulerOutput, *, fetch: FetchTokens | None
    ) -> tuple[Ragged, Ragged]:
        """What each cached row appends to its known tokens, and the drafts it computes behind them.

        Both are what was sent with the row, or its last sample, of whose drafts it takes no more than
        the step has room for. What is not known here is fetched, where there is a way to. Raises
        TensorError when it was not among what that step fed back, or cannot be.
        """
        requests = output.cached_requests
        given, source_steps = requests.new_token_ids, requests.token_source_steps
        drafts = requests.draft_token_ids or Ragged.empty(given.num_rows)
        (fed,) = np.nonzero(source_steps)
        if not len(fed):
            return given, drafts
        slots = self._states.slots(requests.handles[fed])
        if fetch is not None:
            self._fetch_missing(slots, fetch)
        num_tokens, tokens = self._num_tokens[slots], self._tokens[slots]
        tokens[num_tokens == UNKNOWN] = _UNSEEN
        num_planned = output.num_scheduled_tokens[len(output.new_requests) :][fed]
        num_drafts = np.minimum(self._num_drafts[slots], num_planned - 1)
        num_drafts[num_tokens == UNKNOWN] = 0
        # A row that is fed brings nothing of its own.
        return (
            _insert(given, fed, tokens, np.maximum(num_tokens, 1)),
            _insert(drafts, fed, self._drafts[slots], num_drafts),
        )

    def _fetch_missing(self, slots: Int64s, fetch: FetchTokens) -> None:
        missing = slots[self._num_tokens[slots] == UNKNOWN]
        for step in np.unique(self._steps[missing]).tolist():
            self.put(step, fetch(step))
        lost = missing[self._num_tokens[missing] == UNKNOWN]
        if len(lost):
            raise TensorError(
                f"the tokens fed back of step {self._steps[lost[0]]} leave out {len(lost)} requests"
            )

    def _grow(self) -> None:
        added = self._states.num_slots - len(self._steps)
        if added > 0:
            for name in ("_steps", "_num_tokens", "_num_drafts", "_tokens", "_drafts"):
                column = getattr(self, name)
                more = np.zeros((added, *column.shape[1:]), column.dtype)
                setattr(self, name, np.concatenate([column, more]))


def _insert(rows: Ragged, at: Int64s, values: Int32s, lengths: Int32s) -> Ragged:
    """Put into the empty rows `at` the first `lengths` entries of each row of values."""
    all_lengths = rows.lengths
    all_lengths[at] = lengths
    if values.shape[1] == 0 or not lengths.any():
        return rows
    is_inserted = np.zeros(rows.num_rows, dtype=np.bool_)
    is_inserted[at] = True
    takes = np.repeat(is_inserted, all_lengths)
    merged = np.empty(len(takes), dtype=np.int32)
    merged[takes] = values[np.arange(values.shape[1]) < lengths[:, None]]
    merged[~takes] = rows.values
    return Ragged.from_lengths(merged, all_lengths)
