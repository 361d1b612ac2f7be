"""One suite that every kind of tensor channel passes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.channels.cancel import CancelToken
from common.channels.channel import InMemoryHub
from common.errors import (
    Cancelled,
    DeadlineExceeded,
    TensorError,
    Unavailable,
    WrongState,
)
from common.step import Phase, StepKey
from common.tensors import DType, WireTensor, wire_tensor
from common.worker_api import Peer, Rank
from tests.fakes.channel_pair import (
    FIRST,
    LONG,
    SECOND,
    SOON,
    Pair,
    eventually,
    floats,
    in_thread,
    key,
    memory_pair,
    tensor,
    zmq_pair,
)


@pytest.fixture(params=[memory_pair, zmq_pair], ids=["memory", "zmq"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both kinds, in generation 1."""
    made = request.param()
    made.begin()
    yield made
    made.first.close()
    made.second.close()


def test_tensors_arrive_under_their_key(pair):
    """Steps are told apart by key, whatever the order of reading, and tensors keep theirs."""
    pair.sender.send(key(1), (tensor(1.0), tensor(2.0, 3.0, name="residual")))
    pair.sender.send(key(2), (tensor(4.0),))
    assert [floats(each) for each in pair.receive(key(2))] == [[4.0]]
    received = pair.receive(key(1))
    assert [each.descriptor.name for each in received] == ["hidden_states", "residual"]
    assert [floats(each) for each in received] == [[1.0], [2.0, 3.0]]


def test_no_rows(pair):
    """A tensor without elements, and a message without tensors, travel like any other."""
    empty = wire_tensor(
        name="hidden_states", dtype=DType.BFLOAT16, shape=(0, 64), buffer=memoryview(b"")
    )
    pair.sender.send(key(1), (empty,))
    pair.sender.send(key(2), ())
    assert pair.receive(key(1))[0].descriptor == empty.descriptor
    assert pair.receive(key(2)) == ()


def test_receive_waits_for_arrival(pair):
    """A receive that came first returns as soon as the tensors do."""
    got: list[tuple[WireTensor, ...]] = []
    thread, raised = in_thread(lambda: got.append(pair.receive(key(1))))
    pair.sender.send(key(1), (tensor(1.0),))
    thread.join(LONG)
    assert not raised
    assert floats(got[0][0]) == [1.0]


def test_deadline(pair):
    """Nothing within the timeout is DeadlineExceeded, naming the step."""
    with pytest.raises(DeadlineExceeded, match="step 7 execute"):
        pair.receive(key(7), timeout=SOON)


def test_cancel_ends_a_waiting_receive(pair):
    """Cancelling the token wakes the receive, which raises the reason."""
    cancel = CancelToken()
    thread, raised = in_thread(lambda: pair.receive(key(1), cancel=cancel))
    cancel.cancel("generation 2 begins")
    thread.join(LONG)
    assert [str(error) for error in raised] == ["generation 2 begins"]
    assert isinstance(raised[0], Cancelled)


def test_cancelled_before(pair):
    """A token cancelled earlier wins over tensors that are there."""
    cancel = CancelToken()
    cancel.cancel("over")
    pair.sender.send(key(1), (tensor(1.0),))
    with pytest.raises(Cancelled, match="over"):
        pair.receive(key(1), cancel=cancel)


@pytest.mark.parametrize("leave", ["end", "begin"])
def test_leaving_ends_a_waiting_receive(pair, leave):
    """The end of a generation, or the start of the next, ends its receives with Cancelled."""
    thread, raised = in_thread(lambda: pair.receive(key(1)))
    if leave == "end":
        pair.second.end()
    else:
        pair.second.begin(epoch=1, generation=2, rank=SECOND, capacity=4)
    thread.join(LONG)
    assert [type(error) for error in raised] == [Cancelled]


def test_new_generation_forgets_the_old(pair):
    """Tensors of the former generation are gone, its senders refuse, the new ones work."""
    pair.sender.send(key(1), (tensor(1.0),))
    pair.receive(key(1))
    pair.sender.send(key(2), (tensor(1.0),))
    old_sender = pair.sender
    pair.begin(generation=2)
    with pytest.raises(Cancelled):
        old_sender.send(key(3), (tensor(1.0),))
    with pytest.raises(Cancelled):
        pair.receive(key(2))
    pair.sender.send(key(1, generation=2), (tensor(5.0),))
    assert floats(pair.receive(key(1, generation=2))[0]) == [5.0]


def test_other_generation_is_refused(pair):
    """A sender left behind in an old generation reaches nobody, and is counted."""
    pair.sender.send(key(9), (tensor(1.0),))
    pair.receive(key(9))
    pair.second.begin(epoch=2, generation=1, rank=SECOND, capacity=4)
    refused = pair.second.num_refused
    pair.sender.send(key(1), (tensor(1.0),))
    eventually(lambda: pair.second.num_refused == refused + 1)
    with pytest.raises(Cancelled):
        pair.receive(key(1))


def test_only_the_previous_stage_is_heard(pair):
    """Tensors from a stage that is not the one before are dropped and counted."""
    pair.sender.send(key(9), (tensor(1.0),))
    pair.receive(key(9))
    pair.second.begin(epoch=1, generation=1, rank=Rank(stage=2), capacity=4)
    refused = pair.second.num_refused
    pair.sender.send(key(1), (tensor(1.0),))
    eventually(lambda: pair.second.num_refused == refused + 1)
    with pytest.raises(DeadlineExceeded):
        pair.receive(key(1), timeout=SOON)


def test_the_first_stage_is_fed_by_the_last(pair):
    """Tokens go against the stream as well; what nobody reads makes room for what comes later."""
    sender = pair.second.connect(Peer(rank=FIRST, tensor_endpoint=pair.first.endpoint))
    for step in range(1, 13):
        sampled = StepKey(step_id=key(step).step_id, phase=Phase.SAMPLE)
        sender.send(sampled, (tensor(float(step)),))
        if step % 3 == 0:
            received = pair.first.receiver().receive(sampled, cancel=CancelToken(), timeout=LONG)
            assert floats(received[0]) == [step]


def test_overflow_ends_receives(pair):
    """More unread messages than steps may be in flight is an error, not a silent drop."""
    pair.second.begin(epoch=1, generation=1, rank=SECOND, capacity=2)
    thread, raised = in_thread(lambda: pair.receive(key(9)))
    for step in (1, 2, 3):
        pair.sender.send(key(step), (tensor(1.0),))
    thread.join(LONG)
    assert "mailbox is full" in str(raised[0])
    with pytest.raises(TensorError):
        pair.receive(key(1))


def test_damaged_bytes(pair):
    """A checksum that does not fit the bytes is TensorError."""
    good = tensor(1.0, 2.0)
    pair.sender.send(key(1), (replace(good, buffer=tensor(1.0, 3.0).buffer),))
    with pytest.raises(TensorError, match="damaged"):
        pair.receive(key(1))


def test_connect_needs_a_generation(pair):
    """Outside a generation there is no one to connect as."""
    pair.first.end()
    with pytest.raises(WrongState):
        pair.first.connect(Peer(rank=SECOND, tensor_endpoint=pair.second.endpoint))


def test_close_twice(pair):
    """A second close does nothing."""
    pair.second.close()
    pair.second.close()


def test_unknown_memory_endpoint():
    """A peer that is not in the process is Unavailable."""
    channels = InMemoryHub().channels("first")
    channels.begin(epoch=1, generation=1, rank=FIRST, capacity=1)
    with pytest.raises(Unavailable, match="memory:nobody"):
        channels.connect(Peer(rank=SECOND, tensor_endpoint="memory:nobody"))
