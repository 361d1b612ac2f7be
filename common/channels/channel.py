"""The protocols of tensor channels, and a version of them inside one process.

A channel carries the tensors of one step key from a sender to the mailbox of one receiver. Knows
neither torch nor what the tensors mean.
"""

from threading import Lock
from typing import Protocol

from common.channels.cancel import CancelToken
from common.channels.mailbox import ChannelMember, Mailbox, MailboxReceiver
from common.errors import Cancelled, Unavailable, WrongState
from common.step import StepKey
from common.tensors import WireTensor
from common.worker_api import Peer, Rank


class TensorSender(Protocol):
    """The way to one peer, for one generation."""

    def send(self, key: StepKey, tensors: tuple[WireTensor, ...]) -> None:
        """Hand tensors over and return without waiting for the peer.

        The buffers belong to the channel from here on: the caller never writes them again. Raises
        Cancelled when the generation has ended, TensorError when the peer takes nothing.
        """
        ...


class TensorReceiver(Protocol):
    """The mailbox of frames from the previous stage, and on the first one from the last."""

    def receive(
        self, key: StepKey, *, cancel: CancelToken, timeout: float
    ) -> tuple[WireTensor, ...]:
        """Wait at most `timeout` seconds for the tensors of a key, checksums verified.

        Raises DeadlineExceeded, Cancelled (the token, or the end of the generation) or TensorError.
        """
        ...


class TensorChannels(Protocol):
    """All tensor channels of one worker; its methods may be called from any one thread."""

    @property
    def endpoint(self) -> str:
        """Where peers connect to, as Describe publishes it: HOST:PORT, or "memory:NAME"."""
        ...

    def begin(self, *, epoch: int, generation: int, rank: Rank, capacity: int) -> None:
        """Join a generation: empty the mailbox, close all senders, refuse frames of any other.

        `capacity` is the most steps in flight: it bounds the mailbox and each sender's backlog.
        """
        ...

    def connect(self, peer: Peer) -> TensorSender:
        """Open the way to a peer; it need not be reachable yet. Raises WrongState outside a generation."""
        ...

    @property
    def num_refused(self) -> int:
        """Frames dropped because they belong to another generation or stage."""
        ...

    def receiver(self) -> TensorReceiver:
        """The mailbox."""
        ...

    def end(self) -> None:
        """Leave the generation: waiting receives end with Cancelled, all senders close."""
        ...

    def close(self) -> None:
        """Leave the generation and free every thread and socket; a second call does nothing."""
        ...


class InMemoryHub:
    """Where the channels of one process find each other by name."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._mailboxes: dict[str, Mailbox] = {}

    def channels(self, name: str) -> "InMemoryChannels":
        """The channels of one worker, reachable at "memory:NAME" until closed."""
        channels = InMemoryChannels(self, f"memory:{name}")
        with self._lock:
            self._mailboxes[channels.endpoint] = channels.mailbox
        return channels

    def mailbox_at(self, endpoint: str) -> Mailbox:
        """The mailbox at an endpoint; raises Unavailable when there is none."""
        with self._lock:
            mailbox = self._mailboxes.get(endpoint)
        if mailbox is None:
            raise Unavailable(f"no tensor channel at {endpoint!r} in this process")
        return mailbox

    def remove(self, endpoint: str) -> None:
        """Forget an endpoint."""
        with self._lock:
            self._mailboxes.pop(endpoint, None)


class InMemoryChannels:
    """TensorChannels whose frames go straight into the peer's mailbox."""

    def __init__(self, hub: InMemoryHub, endpoint: str) -> None:
        self.endpoint = endpoint
        self.mailbox = Mailbox()
        self._hub = hub
        self._member: ChannelMember | None = None
        self._senders: list[_InMemorySender] = []

    @property
    def num_refused(self) -> int:
        """Deliveries dropped because they belong to another generation or stage."""
        return self.mailbox.num_refused

    def begin(self, *, epoch: int, generation: int, rank: Rank, capacity: int) -> None:
        """Join a generation."""
        self._close_senders()
        self._member = ChannelMember(epoch=epoch, generation=generation, rank=rank)
        self.mailbox.open(self._member, capacity=capacity)

    def connect(self, peer: Peer) -> "_InMemorySender":
        """Open the way to a peer of this process."""
        if self._member is None:
            raise WrongState("connect needs a generation: call begin first")
        mailbox = self._hub.mailbox_at(peer.tensor_endpoint)
        mailbox.greet(self._member)
        sender = _InMemorySender(self._member, mailbox)
        self._senders.append(sender)
        return sender

    def receiver(self) -> "MailboxReceiver":
        """The mailbox."""
        return MailboxReceiver(self.mailbox)

    def end(self) -> None:
        """Leave the generation."""
        self._close_senders()
        self._member = None
        self.mailbox.shut()

    def close(self) -> None:
        """Leave the generation and the hub."""
        self.end()
        self._hub.remove(self.endpoint)

    def _close_senders(self) -> None:
        for sender in self._senders:
            sender.close()
        self._senders.clear()


class _InMemorySender:
    def __init__(self, member: ChannelMember, mailbox: Mailbox) -> None:
        self._member = member
        self._mailbox: Mailbox | None = mailbox

    def send(self, key: StepKey, tensors: tuple[WireTensor, ...]) -> None:
        mailbox = self._mailbox
        if mailbox is None:
            raise Cancelled(f"tensors of {key} not sent: the generation has ended")
        mailbox.deliver(self._member, key, tensors)

    def close(self) -> None:
        self._mailbox = None
