"""Facts of one sequence: its states and what ends it."""

import pytest

from common.errors import WrongState
from common.requests import FinishReason, Request, SamplingParams, StopParams
from coordinator.scheduling.sequence import Sequence, SequenceEvent, SequenceState

EOS = frozenset({7})


def _sequence(*, max_sequence_len: int = 100, **stopping: object) -> Sequence:
    request = Request(
        request_id="a",
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(),
        stopping=StopParams(**{"max_tokens": 4, **stopping}),
    )
    return Sequence(1, request, max_sequence_len=max_sequence_len, eos_token_ids=EOS)


def test_end_of_sequence_token_stops():
    """EOS ends the output and is kept as its last token."""
    sequence = _sequence()
    assert sequence.commit([7])[1] is FinishReason.STOP
    assert list(sequence.token_ids) == [1, 2, 3, 7]


def test_ignored_end_of_sequence_token_does_not_stop():
    """With ignore_eos the EOS token is one like any other."""
    assert _sequence(ignore_eos=True).commit([7])[1] is None


def test_stop_token_stops_also_when_eos_is_ignored():
    """A stop token the client named ends the output."""
    sequence = _sequence(ignore_eos=True, stop_token_ids=frozenset({7}))
    assert sequence.commit([7])[1] is FinishReason.STOP


def test_stopping_goes_before_length():
    """A stop token at the length limit counts as a stop."""
    sequence = _sequence(max_tokens=1, stop_token_ids=frozenset({9}))
    assert sequence.commit([9])[1] is FinishReason.STOP


@pytest.mark.parametrize(("max_tokens", "longest"), [(2, 100), (50, 5)])
def test_length_ends_the_output(max_tokens: int, longest: int):
    """Either limit, max_tokens or the longest sequence, ends the output after its last token."""
    sequence = _sequence(max_tokens=max_tokens, max_sequence_len=longest)
    assert sequence.commit([8])[1] is None
    assert sequence.commit([8])[1] is FinishReason.LENGTH


def test_finished_sequence_cannot_be_admitted():
    """A state change that is not in the table raises."""
    sequence = _sequence()
    sequence.move(SequenceEvent.FINISH)
    assert sequence.state is SequenceState.FINISHED
    with pytest.raises(WrongState):
        sequence.move(SequenceEvent.ADMIT)
