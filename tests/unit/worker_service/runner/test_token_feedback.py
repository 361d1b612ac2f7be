"""Tokens that later steps name by the step that samples them."""

from collections.abc import Sequence

import numpy as np
import pytest

from common.errors import TensorError
from common.requests import SamplingParams
from common.step import CachedRequests, NewRequest, Ragged, SchedulerOutput, StepId
from common.tensors import wire_tensor
from worker_service.batch.request_states import RequestStates
from worker_service.batch.sampled_tokens import SampledTokens
from worker_service.runner.token_feedback import FetchTokens, TokenFeedback

NUM_KNOWN = 3


@pytest.fixture
def states() -> RequestStates:
    """Handles 7, 8 and 9 with NUM_KNOWN tokens each."""
    states = RequestStates(num_slots=1, max_model_len=16, block_size=4)
    for handle in (7, 8, 9):
        _add(states, handle)
    return states


@pytest.fixture
def feedback(states: RequestStates) -> TokenFeedback:
    """Step 5 samples handles 7 and 9."""
    feedback = TokenFeedback(states)
    feedback.expect(5, states.slots(np.array([7, 9], dtype=np.uint64)))
    return feedback


def _add(states: RequestStates, handle: int) -> int:
    return states.add(
        NewRequest(
            handle=handle,
            token_ids=np.arange(NUM_KNOWN, dtype=np.int32),
            num_prompt_tokens=NUM_KNOWN,
            sampling=SamplingParams(),
            block_ids=(np.array([1], dtype=np.int32),),
            num_computed_tokens=0,
        )
    )


def _sampled(tokens: dict[int, int], *, position: int = NUM_KNOWN) -> SampledTokens:
    return SampledTokens(
        handles=np.array(list(tokens), dtype=np.uint64),
        positions=np.full(len(tokens), position, dtype=np.int64),
        token_ids=Ragged.from_rows([[token] for token in tokens.values()]),
        drafts=Ragged.empty(len(tokens)),
    )


def _rows(
    handles: Sequence[int],
    given: list[list[int]],
    sources: Sequence[int],
    *,
    scheduled: Sequence[int] | None = None,
    drafts: list[list[int]] | None = None,
) -> SchedulerOutput:
    return SchedulerOutput(
        step_id=StepId(epoch=1, generation=1, step=9),
        base_step=8,
        cached_requests=CachedRequests(
            handles=np.array(handles, dtype=np.uint64),
            num_computed_tokens=np.full(len(handles), NUM_KNOWN, dtype=np.int32),
            new_block_ids=(Ragged.from_rows([[]] * len(handles)),),
            new_token_ids=Ragged.from_rows(given),
            token_source_steps=np.array(sources, dtype=np.uint64),
            draft_token_ids=None if drafts is None else Ragged.from_rows(drafts),
        ),
        num_scheduled_tokens=np.array(scheduled or [1] * len(handles), dtype=np.int32),
    )


def _new(
    feedback: TokenFeedback, output: SchedulerOutput, *, fetch: FetchTokens | None = None
) -> list[list[int]]:
    tokens, _ = feedback.new_tokens(output, fetch=fetch)
    return _lists(tokens)


def _lists(ragged: Ragged) -> list[list[int]]:
    return [ragged.row(index).tolist() for index in range(ragged.num_rows)]


def test_fed_rows_stand_between_those_that_were_sent(feedback):
    """Each row appends what it brought, or the one token of its source."""
    feedback.put(5, _sampled({7: 70, 9: 90}))
    rows = _rows([9, 8, 7], [[], [1, 2], []], [5, 0, 5])
    assert _new(feedback, rows) == [[90], [1, 2], [70]]


def test_rows_without_a_source_are_as_they_were(feedback):
    """Nothing is copied where nothing is fed."""
    rows = _rows([8], [[1, 2]], [0])
    assert feedback.new_tokens(rows, fetch=None)[0] is rows.cached_requests.new_token_ids


def test_last_steps_tell_who_sampled_where(states, feedback):
    """A request is known by the step that sampled it last; a slot starts anew with its request."""
    slots = states.slots(np.array([7, 8, 9], dtype=np.uint64))
    assert feedback.last_steps(slots).tolist() == [5, 0, 5]
    feedback.expect(6, slots[:1])
    assert feedback.last_steps(slots).tolist() == [6, 0, 5]
    states.remove(9)
    feedback.forget(_add(states, 10))
    assert feedback.last_steps(states.slots(np.array([10], dtype=np.uint64))).tolist() == [0]


def test_slots_that_are_added_have_not_sampled(states, feedback):
    """The books grow with the request states."""
    slots = [_add(states, handle) for handle in range(20, 40)]
    assert feedback.last_steps(np.array(slots)).tolist() == [0] * 20


def test_missing_tokens_are_fetched_once(feedback):
    """A step's tokens are waited for when the first row names it; the others find them."""
    fetched: list[int] = []

    def fetch(step: int) -> SampledTokens:
        fetched.append(step)
        return _sampled({7: 70, 9: 90, 1000: 1})

    assert _new(feedback, _rows([7], [[]], [5]), fetch=fetch) == [[70]]
    assert _new(feedback, _rows([9], [[]], [5]), fetch=fetch) == [[90]]
    assert fetched == [5]


def test_a_stage_in_between_counts_tokens(feedback):
    """Where tokens are neither drawn nor fetched, each is a zero that nobody reads."""
    assert _new(feedback, _rows([7], [[]], [5]), fetch=None) == [[0]]


def test_tokens_of_an_earlier_sample_are_dropped(states, feedback):
    """What comes late for a request that has sampled since, or is elsewhere, is not its token."""
    feedback.expect(6, states.slots(np.array([7], dtype=np.uint64)))
    feedback.put(5, _sampled({7: 70}))
    feedback.put(6, _sampled({7: 71}, position=NUM_KNOWN + 1))
    with pytest.raises(TensorError, match="step 6 leave out 1 requests"):
        _new(feedback, _rows([7], [[]], [6]), fetch=lambda step: SampledTokens.none())


def test_sampled_tokens_survive_the_wire():
    """Handles of 64 bits, positions and tokens come out as they went in."""
    sent = SampledTokens(
        handles=np.array([2**64 - 1, 1], dtype=np.uint64),
        positions=np.array([1 << 20, 3], dtype=np.int64),
        token_ids=Ragged.from_rows([[49151, 7], [0]]),
        drafts=Ragged.from_rows([[], [5, 6, 7]]),
    )
    received = SampledTokens.from_wire(sent.to_wire())
    for column in ("handles", "positions"):
        before, after = getattr(sent, column), getattr(received, column)
        assert (before.dtype, before.tolist()) == (after.dtype, after.tolist())
    for column in ("token_ids", "drafts"):
        assert _lists(getattr(received, column)) == _lists(getattr(sent, column))


def test_other_tensors_are_no_tokens():
    """Something else under the key is an error that names it."""
    with pytest.raises(TensorError, match=r"fed back \[\]"):
        SampledTokens.from_wire(())


@pytest.fixture
def drafting(states: RequestStates) -> TokenFeedback:
    """Step 5 samples handles 7 and 9, with room for three drafts; it computed two of handle 7."""
    feedback = TokenFeedback(states, most_drafts=3)
    feedback.expect(5, states.slots(np.array([7, 9], dtype=np.uint64)))
    states.num_drafts[states.slot(7)] = 2
    return feedback


def _emitted(tokens: dict[int, list[int]], drafts: list[list[int]]) -> SampledTokens:
    return SampledTokens(
        handles=np.array(list(tokens), dtype=np.uint64),
        positions=np.full(len(tokens), NUM_KNOWN, dtype=np.int64),
        token_ids=Ragged.from_rows(list(tokens.values())),
        drafts=Ragged.from_rows(drafts),
    )


def test_a_fed_row_takes_all_tokens_and_the_drafts_it_has_room_for(drafting):
    """Rows of several tokens, of one, and one that was sent what it computes."""
    drafting.put(5, _emitted({7: [70, 71], 9: [90]}, [[1, 2, 3], [4]]))
    rows = _rows([9, 8, 7], [[], [8], []], [5, 0, 5], scheduled=[4, 3, 3], drafts=[[], [5, 6], []])
    tokens, drafts = drafting.new_tokens(rows, fetch=None)
    assert _lists(tokens) == [[90], [8], [70, 71]]
    assert _lists(drafts) == [[4], [5, 6], [1, 2]]


def test_more_tokens_than_were_computed_are_refused(drafting):
    """A row cannot have emitted more than its drafts and one token; nothing is applied."""
    with pytest.raises(TensorError, match="4 tokens and 0 drafts"):
        drafting.put(5, _emitted({7: [1, 2, 3, 4]}, [[]]))
    with pytest.raises(TensorError, match="2 tokens"):
        drafting.put(5, _emitted({9: [1, 2]}, [[]]))


@pytest.mark.parametrize("cut", [0, 1, 4, -1])
def test_feedback_that_is_cut_is_refused(cut):
    """What announces more numbers than there are is no feedback."""
    (sent,) = _emitted({7: [70, 71]}, [[1]]).to_wire()
    numbers = np.frombuffer(sent.buffer, dtype=np.int64)[:cut]
    tensor = wire_tensor(
        name=sent.descriptor.name,
        dtype=sent.descriptor.dtype,
        shape=numbers.shape,
        buffer=numbers.copy().data,
    )
    with pytest.raises(TensorError, match="fed back"):
        SampledTokens.from_wire((tensor,))
