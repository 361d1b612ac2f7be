"""How much a process sent to and received from each of its peers. Knows no sockets."""

from collections import Counter

from common.worker_api import Rank


class LinkTraffic:
    """Bytes of tensors and their messages by peer, since the start, of whatever generation.

    Each count has one writer: the thread that sends, or the one that receives.
    """

    def __init__(self) -> None:
        self.num_bytes_sent: Counter[Rank] = Counter()
        self.num_messages_sent: Counter[Rank] = Counter()
        self.num_bytes_received: Counter[Rank] = Counter()
        self.num_messages_received: Counter[Rank] = Counter()

    def note_sent(self, peer: Rank, num_bytes: int) -> None:
        """A message for this peer was handed to the transport."""
        self.num_bytes_sent[peer] += num_bytes
        self.num_messages_sent[peer] += 1

    def note_received(self, peer: Rank, num_bytes: int) -> None:
        """A message of this peer has arrived."""
        self.num_bytes_received[peer] += num_bytes
        self.num_messages_received[peer] += 1
