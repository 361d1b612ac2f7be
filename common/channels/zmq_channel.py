"""Tensor channels over ZMQ: multipart messages of a header and the raw bytes of each tensor.

The header is a ChannelHeader (`common.codecs.channel_codec`), the parts after it hold the bytes of
one tensor each, and the first message of a link is HELLO. The sockets are the transport's.
"""

import socket
from collections.abc import Callable
from functools import partial

import numpy as np
import zmq

from common.channels.link_traffic import LinkTraffic
from common.channels.mailbox import ChannelMember, Mailbox, MailboxReceiver
from common.channels.zmq_transport import Link, ZmqTransport
from common.codecs.channel_codec import (
    HelloHeader,
    TensorsHeader,
    decode_channel_header,
    encode_channel_header,
)
from common.codecs.tensor_codec import pair_with_buffers
from common.config import join_address, split_address
from common.errors import Cancelled, TensorError, Unavailable, WrongState
from common.logs import get_logger
from common.step import StepKey
from common.tensors import MAX_TENSOR_BYTES, WireTensor
from common.worker_api import Peer, Rank

MAX_HEADER_BYTES = 64 << 10
# Bytes. libzmq places parts of small messages anywhere in its receive buffer of 8 KiB, larger ones
# in memory of their own, aligned for every dtype.
ALIGNMENT = 8

WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})

logger = get_logger(__name__)


def advertised(host: str, port: int, advertise: str | None) -> str:
    """HOST:PORT at which peers reach a socket bound to host and port.

    `advertise` is HOST (the bound port is meant) or HOST:PORT. Without it the bound host is taken,
    or this machine's name when that host means every interface.
    """
    if advertise is None:
        return join_address(socket.gethostname() if host in WILDCARD_HOSTS else host, port)
    is_host_alone = ":" not in advertise or advertise.endswith("]") or advertise.count(":") > 1
    if is_host_alone and "]:" not in advertise:
        return join_address(advertise.removeprefix("[").removesuffix("]"), port)
    return join_address(*split_address("tensor_advertise", advertise))


class ZmqChannels:
    """TensorChannels on one PULL socket per process and one PUSH socket per peer and generation.

    Binds at once: ConfigError when it cannot. `num_malformed` counts messages that are no tensors
    of a step; they are dropped, and logged, and the process goes on.
    """

    def __init__(
        self,
        bind: tuple[str, int],
        advertise: str | None = None,
        *,
        max_part_bytes: int = MAX_TENSOR_BYTES,
    ) -> None:
        self.num_malformed = 0
        self.traffic = LinkTraffic()
        self._mailbox = Mailbox()
        self._member: ChannelMember | None = None
        self._capacity = 0
        self._failure: TensorError | None = None
        self._links: list[Link] = []
        host, port = bind
        self._transport = ZmqTransport(
            host=host,
            port=port,
            max_part_bytes=max_part_bytes,
            on_message=self._take_in,
            on_failure=self._fail,
        )
        self.endpoint = advertised(host, self._transport.port, advertise)

    @property
    def num_refused(self) -> int:
        """Messages dropped because they belong to another generation or stage."""
        return self._mailbox.num_refused

    def begin(self, *, epoch: int, generation: int, rank: Rank, capacity: int) -> None:
        """Join a generation; TensorError when the transport thread has failed."""
        if self._failure is not None:
            raise self._failure
        self._close_links()
        self._member = ChannelMember(epoch=epoch, generation=generation, rank=rank)
        self._capacity = capacity
        self._mailbox.open(self._member, capacity=capacity)

    def connect(self, peer: Peer) -> "ZmqSender":
        """Open the way to a peer; Unavailable when its host is unknown or its address is none."""
        if self._member is None:
            raise WrongState("connect needs a generation: call begin first")
        try:
            host, port = split_address("tensor_endpoint", peer.tensor_endpoint)
            link = Link(host, port, capacity=self._capacity)
        except OSError as error:
            raise Unavailable(
                f"cannot resolve the tensor endpoint {peer.tensor_endpoint} of {peer.rank}: "
                f"{error.strerror}"
            ) from error
        self._transport.open(link)
        self._links.append(link)
        return ZmqSender(
            self._transport,
            link,
            member=self._member,
            capacity=self._capacity,
            note_sent=partial(self.traffic.note_sent, peer.rank),
        )

    def receiver(self) -> MailboxReceiver:
        """The mailbox."""
        return MailboxReceiver(self._mailbox)

    def end(self) -> None:
        """Leave the generation."""
        self._member = None
        self._mailbox.shut()
        self._close_links()

    def close(self) -> None:
        """Leave the generation and end the transport thread and its sockets."""
        self.end()
        self._transport.close()

    def _close_links(self) -> None:
        self._transport.close_links(self._links)
        self._links.clear()

    # In the transport thread.

    def _take_in(self, parts: list[zmq.Frame]) -> None:
        try:
            header = _read_header(parts[0])
        except TensorError as error:
            self._count_malformed(error)
            return
        if isinstance(header, HelloHeader):
            self._mailbox.greet(
                ChannelMember(epoch=header.epoch, generation=header.generation, rank=header.sender)
            )
        else:
            self._deliver(header, [_aligned(part.buffer) for part in parts[1:]])

    def _deliver(self, header: TensorsHeader, buffers: list[memoryview]) -> None:
        step_id = header.key.step_id
        sender = ChannelMember(
            epoch=step_id.epoch, generation=step_id.generation, rank=header.sender
        )
        try:
            delivery = pair_with_buffers(header.descriptors, buffers)
        except TensorError as error:
            # The key is known, so whoever waits for it hears of the damage at once.
            self._count_malformed(error)
            delivery = error
        num_bytes = sum(buffer.nbytes for buffer in buffers)
        self.traffic.note_received(header.sender, num_bytes)
        self._mailbox.deliver(sender, header.key, delivery)

    def _count_malformed(self, error: TensorError) -> None:
        self.num_malformed += 1
        logger.warning("malformed tensor message dropped", extra={"cause": str(error)})

    def _fail(self, error: Exception) -> None:
        self._failure = TensorError(f"the tensor transport failed: {error}")
        self._mailbox.fail(self._failure)


def _read_header(part: zmq.Frame) -> HelloHeader | TensorsHeader:
    if len(part) > MAX_HEADER_BYTES:
        raise TensorError(f"the header has {len(part)} bytes, the limit is {MAX_HEADER_BYTES}")
    return decode_channel_header(part.bytes)


def _aligned(buffer: memoryview) -> memoryview:
    address = np.frombuffer(buffer, dtype=np.uint8).ctypes.data
    return buffer if address % ALIGNMENT == 0 else memoryview(bytearray(buffer))


class ZmqSender:
    """TensorSender on one link."""

    def __init__(
        self,
        transport: ZmqTransport,
        link: Link,
        *,
        member: ChannelMember,
        capacity: int,
        note_sent: Callable[[int], None],
    ) -> None:
        """note_sent is called with the bytes of the tensors of each message."""
        self._transport = transport
        self._link = link
        self._member = member
        self._capacity = capacity
        self._note_sent = note_sent
        hello = HelloHeader(epoch=member.epoch, generation=member.generation, sender=member.rank)
        transport.send(link, [encode_channel_header(hello)])

    def send(self, key: StepKey, tensors: tuple[WireTensor, ...]) -> None:
        """Hand tensors to the transport thread."""
        if self._link.is_closed:
            raise Cancelled(f"tensors of {key} not sent: the generation has ended")
        # HELLO waits too while the peer is not connected.
        if len(self._link.waiting) > self._capacity:
            raise TensorError(
                f"tensors of {key} not sent: {self._link.target} has not taken the last "
                f"{self._capacity} messages"
            )
        header = TensorsHeader(
            sender=self._member.rank,
            key=key,
            descriptors=tuple(tensor.descriptor for tensor in tensors),
        )
        self._transport.send(
            self._link, [encode_channel_header(header), *(tensor.buffer for tensor in tensors)]
        )
        self._note_sent(sum(tensor.descriptor.num_bytes for tensor in tensors))
