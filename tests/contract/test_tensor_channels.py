"""One suite for all tensor channels, and what only ZMQ can get wrong."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import zmq

from common.channels.channel import CancelToken, InMemoryHub, TensorChannels
from common.channels.zmq_channel import ZmqChannels, advertised
from common.codecs.channel_codec import (
    HelloHeader,
    TensorsHeader,
    decode_channel_header,
    encode_channel_header,
)
from common.errors import (
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    TensorError,
    Unavailable,
    WrongState,
)
from common.step import Phase, StepId, StepKey
from common.tensors import DType, WireTensor, wire_tensor
from common.worker_api import Peer, Rank

FIRST, SECOND = Rank(stage=0), Rank(stage=1)
SOON, LONG = 0.05, 5.0


def key(step: int, *, epoch: int = 1, generation: int = 1) -> StepKey:
    """The execute phase of a step."""
    step_id = StepId(epoch=epoch, generation=generation, step=step)
    return StepKey(step_id=step_id, phase=Phase.EXECUTE)


def tensor(*values: float, name: str = "hidden_states") -> WireTensor:
    """A float32 vector."""
    array = np.array(values, dtype="<f4")
    return wire_tensor(
        name=name, dtype=DType.FLOAT32, shape=(len(values),), buffer=memoryview(array)
    )


def floats(wire: WireTensor) -> list[float]:
    """The values of a float32 wire tensor."""
    return np.frombuffer(wire.buffer, dtype="<f4").tolist()


@dataclass
class Pair:
    """Channels of two stages in one generation; `sender` leads from the first to the second."""

    first: TensorChannels
    second: TensorChannels

    def begin(self, *, epoch: int = 1, generation: int = 1, capacity: int = 4) -> None:
        """Bring both into a generation and connect them."""
        for channels, rank in ((self.first, FIRST), (self.second, SECOND)):
            channels.begin(epoch=epoch, generation=generation, rank=rank, capacity=capacity)
        self.sender = self.first.connect(Peer(rank=SECOND, tensor_endpoint=self.second.endpoint))

    def receive(
        self, step_key: StepKey, *, cancel: CancelToken | None = None, timeout: float = LONG
    ) -> tuple[WireTensor, ...]:
        """Receive at the second stage."""
        return self.second.receiver().receive(
            step_key, cancel=cancel or CancelToken(), timeout=timeout
        )


def memory_pair() -> Pair:
    """Two channels of one hub."""
    hub = InMemoryHub()
    return Pair(hub.channels("first"), hub.channels("second"))


def zmq_pair() -> Pair:
    """Two channels over loopback TCP."""
    return Pair(ZmqChannels(("127.0.0.1", 0)), ZmqChannels(("127.0.0.1", 0)))


@pytest.fixture(params=[memory_pair, zmq_pair], ids=["memory", "zmq"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both kinds, in generation 1."""
    made = request.param()
    made.begin()
    yield made
    made.first.close()
    made.second.close()


@pytest.fixture
def zmq_only() -> Iterator[Pair]:
    """The ZMQ kind, in generation 1."""
    made = zmq_pair()
    made.begin()
    yield made
    made.first.close()
    made.second.close()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Start work in a thread; what it raises lands in the list."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except (Cancelled, TensorError, DeadlineExceeded) as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def eventually(is_true: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    tick = threading.Event()
    for _ in range(int(LONG / 0.01)):
        if is_true():
            return
        tick.wait(0.01)
    assert is_true()


# Every kind.


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


# ZMQ.


def test_large_tensors_outlive_their_sender(zmq_only):
    """Zero-copy buffers arrive whole though the sender dropped them, and are freed in the end."""
    arrays = [np.full((1 << 20,), step, dtype="<f4") for step in range(3)]
    freed = [weakref.ref(array) for array in arrays]
    for step in range(3):
        array = arrays[step]
        wire = wire_tensor(
            name="hidden_states",
            dtype=DType.FLOAT32,
            shape=array.shape,
            buffer=memoryview(array),
        )
        zmq_only.sender.send(key(step + 1), (wire,))
    del array, wire
    arrays.clear()
    for step in range(3):
        (received,) = zmq_only.receive(key(step + 1))
        values = np.frombuffer(received.buffer, dtype="<f4")
        assert values.min() == values.max() == step
    eventually(lambda: gc.collect() >= 0 and all(array() is None for array in freed))


def test_received_buffers_are_aligned(zmq_only):
    """Every received tensor starts at a multiple of 8 bytes and can be written in place."""
    for step, size in enumerate([1, 3, 100, 5000, 70_000], start=1):
        zmq_only.sender.send(key(step), (tensor(*range(size)), tensor(1.0, name="other")))
        for received in zmq_only.receive(key(step)):
            array = np.frombuffer(received.buffer, dtype="<f4")
            assert array.ctypes.data % 8 == 0
            assert array.flags.writeable


def test_peer_that_binds_later():
    """HELLO and messages wait for a peer not reachable yet, as many as may be in flight."""
    first, probe = ZmqChannels(("127.0.0.1", 0)), ZmqChannels(("127.0.0.1", 0))
    endpoint = probe.endpoint
    probe.close()
    first.begin(epoch=1, generation=1, rank=FIRST, capacity=2)
    sender = first.connect(Peer(rank=SECOND, tensor_endpoint=endpoint))
    for step in (1, 2):
        sender.send(key(step), (tensor(float(step)),))
    with pytest.raises(TensorError, match="has not taken"):
        sender.send(key(3), (tensor(3.0),))
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.bind(f"tcp://{endpoint}")
        headers = [decode_channel_header(pull.recv_multipart()[0]) for _ in range(3)]
    assert headers[0] == HelloHeader(epoch=1, generation=1, sender=FIRST)
    assert [header.key for header in headers[1:]] == [key(1), key(2)]
    first.close()


def send_raw(endpoint: str, *messages: list[bytes]) -> None:
    """Send messages as a stranger would."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.connect(f"tcp://{endpoint}")
        for message in messages:
            push.send_multipart(message)


def tensors_header(step: int, *tensors: WireTensor) -> bytes:
    """The header the first stage would send."""
    descriptors = tuple(each.descriptor for each in tensors)
    return encode_channel_header(
        TensorsHeader(sender=FIRST, key=key(step), descriptors=descriptors)
    )


def test_garbage_does_not_stop_the_channel(zmq_only):
    """Messages that are no tensors are counted, and the next good one is received."""
    header = tensors_header(1, tensor(1.0))
    send_raw(
        zmq_only.second.endpoint,
        [b""],
        [b"\xff" * 40],
        [header[:-7], b"1234"],
        [b"\x00" * (1 << 17)],
        [encode_channel_header(HelloHeader(epoch=9, generation=9, sender=FIRST))],
    )
    zmq_only.sender.send(key(2), (tensor(2.0),))
    assert floats(zmq_only.receive(key(2))[0]) == [2.0]
    eventually(lambda: zmq_only.second.num_malformed == 4)
    eventually(lambda: zmq_only.second.num_refused == 1)


@pytest.mark.parametrize("parts", [[], [b"12345678"], [b"123"], [b"1234", b"1234"]])
def test_wrong_parts_reach_the_reader(zmq_only, parts):
    """Parts that do not fit their descriptors fail the step's receive at once, not at its deadline."""
    send_raw(zmq_only.second.endpoint, [tensors_header(1, tensor(1.0)), *parts])
    with pytest.raises(TensorError, match=r"instead of 4|for 1 tensors"):
        zmq_only.receive(key(1))
    assert zmq_only.second.num_malformed == 1


def test_oversized_part_is_not_accepted():
    """A part beyond the limit never reaches the process; the receive runs into its deadline."""
    pair = Pair(
        ZmqChannels(("127.0.0.1", 0)), ZmqChannels(("127.0.0.1", 0), max_part_bytes=1 << 12)
    )
    pair.begin()
    pair.sender.send(key(1), (tensor(*range(2000)),))
    with pytest.raises(DeadlineExceeded):
        pair.receive(key(1), timeout=0.2)
    assert pair.second.num_malformed == 0
    pair.first.close()
    pair.second.close()


def test_deadline_says_whether_the_peer_connected(zmq_only):
    """The message of a missed deadline tells a silent peer from one that never came."""
    zmq_only.sender.send(key(1), (tensor(1.0),))
    zmq_only.receive(key(1))
    with pytest.raises(DeadlineExceeded, match="which is connected"):
        zmq_only.receive(key(2), timeout=SOON)
    zmq_only.second.begin(epoch=1, generation=2, rank=SECOND, capacity=4)
    with pytest.raises(DeadlineExceeded, match="which never connected"):
        zmq_only.receive(key(1, generation=2), timeout=SOON)


def test_close_frees_threads_and_wakes_receivers():
    """close() joins the transport thread; a receive in another thread ends with Cancelled."""
    before = set(threading.enumerate())
    pair = zmq_pair()
    pair.begin()
    thread, raised = in_thread(lambda: pair.receive(key(1)))
    pair.first.close()
    pair.second.close()
    thread.join(LONG)
    assert [type(error) for error in raised] == [Cancelled]
    assert not [each for each in set(threading.enumerate()) - before if each.is_alive()]


def test_taken_port():
    """A port in use is a ConfigError of one line that names it, and nothing stays open."""
    channels = ZmqChannels(("127.0.0.1", 0))
    port = int(channels.endpoint.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use"):
        ZmqChannels(("127.0.0.1", port))
    channels.close()


def test_unknown_bind_host():
    """A host that is no address of this machine is a ConfigError."""
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        ZmqChannels(("192.0.2.1", 0))


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_host_names_and_ipv6(host):
    """A socket bound by name or IPv6 address is reached at the endpoint it publishes."""
    pair = Pair(ZmqChannels((host, 0)), ZmqChannels((host, 0)))
    pair.begin()
    pair.sender.send(key(1), (tensor(1.0),))
    assert floats(pair.receive(key(1))[0]) == [1.0]
    pair.first.close()
    pair.second.close()


@pytest.mark.parametrize(
    ("host", "advertise", "endpoint"),
    [
        ("10.0.0.1", None, "10.0.0.1:7"),
        ("::1", None, "[::1]:7"),
        ("0.0.0.0", "worker-1", "worker-1:7"),
        ("0.0.0.0", "worker-1:9", "worker-1:9"),
        ("::", "fe80::1", "[fe80::1]:7"),
        ("::", "[fe80::1]", "[fe80::1]:7"),
        ("::", "[fe80::1]:9", "[fe80::1]:9"),
    ],
)
def test_advertised(host, advertise, endpoint):
    """The published endpoint is the advertised one, completed by the bound port."""
    assert advertised(host, 7, advertise) == endpoint


def test_wildcard_advertises_the_machine():
    """A socket on every interface publishes a name, since no peer can reach 0.0.0.0."""
    assert not advertised("0.0.0.0", 7, None).startswith("0.0.0.0")
