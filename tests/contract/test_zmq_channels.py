"""What only tensor channels over ZMQ can get wrong: sockets, foreign bytes, buffers, addresses."""

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

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
)
from common.tensors import DType, WireTensor, wire_tensor
from common.worker_api import Peer
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
    tensor,
    zmq_pair,
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The ZMQ kind, in generation 1."""
    made = zmq_pair()
    made.begin()
    yield made
    made.first.close()
    made.second.close()


def test_large_tensors_outlive_their_sender(pair):
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
        pair.sender.send(key(step + 1), (wire,))
    del array, wire
    arrays.clear()
    for step in range(3):
        (received,) = pair.receive(key(step + 1))
        values = np.frombuffer(received.buffer, dtype="<f4")
        assert values.min() == values.max() == step
    eventually(lambda: gc.collect() >= 0 and all(array() is None for array in freed))


def test_received_buffers_are_aligned(pair):
    """Every received tensor starts at a multiple of 8 bytes and can be written in place."""
    for step, size in enumerate([1, 3, 100, 5000, 70_000], start=1):
        pair.sender.send(key(step), (tensor(*range(size)), tensor(1.0, name="other")))
        for received in pair.receive(key(step)):
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


def test_link_that_cannot_be_opened_leaves_the_others(pair):
    """The call that asked for it fails; what comes in is still received, and the next link opens."""
    peer = Peer(rank=SECOND, tensor_endpoint=pair.second.endpoint)
    pair.first.begin(epoch=1, generation=1, rank=FIRST, capacity=-1)
    with pytest.raises(Unavailable, match=r"no tensor link to tcp://.*Invalid argument"):
        pair.first.connect(peer)
    pair.first.begin(epoch=1, generation=1, rank=FIRST, capacity=2)
    pair.first.connect(peer).send(key(1), (tensor(1.0),))
    assert floats(pair.receive(key(1))[0]) == [1.0]


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


def test_garbage_does_not_stop_the_channel(pair):
    """Messages that are no tensors are counted, and the next good one is received."""
    header = tensors_header(1, tensor(1.0))
    send_raw(
        pair.second.endpoint,
        [b""],
        [b"\xff" * 40],
        [header[:-7], b"1234"],
        [b"\x00" * (1 << 17)],
        [encode_channel_header(HelloHeader(epoch=9, generation=9, sender=FIRST))],
    )
    pair.sender.send(key(2), (tensor(2.0),))
    assert floats(pair.receive(key(2))[0]) == [2.0]
    eventually(lambda: pair.second.num_malformed == 4)
    eventually(lambda: pair.second.num_refused == 1)


@pytest.mark.parametrize("parts", [[], [b"12345678"], [b"123"], [b"1234", b"1234"]])
def test_wrong_parts_reach_the_reader(pair, parts):
    """Parts that do not fit their descriptors fail the step's receive at once, not at its deadline."""
    send_raw(pair.second.endpoint, [tensors_header(1, tensor(1.0)), *parts])
    with pytest.raises(TensorError, match=r"instead of 4|for 1 tensors"):
        pair.receive(key(1))
    assert pair.second.num_malformed == 1


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


def test_deadline_says_whether_the_peer_connected(pair):
    """The message of a missed deadline tells a silent peer from one that never came."""
    pair.sender.send(key(1), (tensor(1.0),))
    pair.receive(key(1))
    with pytest.raises(DeadlineExceeded, match="which is connected"):
        pair.receive(key(2), timeout=SOON)
    pair.second.begin(epoch=1, generation=2, rank=SECOND, capacity=4)
    with pytest.raises(DeadlineExceeded, match="which never connected"):
        pair.receive(key(1, generation=2), timeout=SOON)


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
