"""The mailbox of a receiver: tensors by step key, bounded, of one generation at a time.

Every stage but the first gets the tensors of the one before it, and a stage that runs what was planned
before it was known the tokens that a later one sampled. Filled by whatever moves the bytes, emptied by the device thread. Knows nothing about sockets.
"""

import logging
from dataclasses import dataclass
from threading import Condition

from common.channels.cancel import CancelToken
from common.errors import Cancelled, DeadlineExceeded, TensorError
from common.step import Phase, StepId, StepKey
from common.tensors import WireTensor
from common.worker_api import Rank

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMember:
    """One end of a channel: the generation it belongs to and its place in it."""

    epoch: int
    generation: int
    rank: Rank

    def is_in_generation_of(self, other: "ChannelMember") -> bool:
        """Whether both are of one generation of one coordinator."""
        return (self.epoch, self.generation) == (other.epoch, other.generation)

    def sends_to(self, other: "ChannelMember") -> bool:
        """Whether this is a rank of the stage before the other's, or a later one that feeds it."""
        if not self.is_in_generation_of(other):
            return False
        if self.rank.replica != other.rank.replica:
            return False
        return self.rank.stage >= other.rank.stage - 1 and self.rank.stage != other.rank.stage


class Mailbox:
    """Holds at most `capacity` unread deliveries of each phase of the current generation.

    Whatever belongs to another generation, or comes from a stage that sends nothing here, is dropped
    and counted. A delivery that does not fit ends the generation's receives with TensorError: the
    coordinator bounds the steps in flight, so it means that a frame would be lost. Of what is sampled
    a delivery displaces that of steps that are committed by then: their tokens come with the steps
    that need them.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._owner: ChannelMember | None = None
        self._capacity = 0
        self._deliveries: dict[StepKey, tuple[WireTensor, ...] | TensorError] = {}
        self._failure: TensorError | None = None
        self._greeted: set[Rank] = set()
        self.num_refused = 0

    def open(self, owner: ChannelMember, *, capacity: int) -> None:
        """Forget everything and accept deliveries of the owner's generation."""
        with self._changed:
            self._reset(owner, capacity)

    def shut(self) -> None:
        """Forget everything and refuse all deliveries; a waiting `take` raises Cancelled."""
        with self._changed:
            self._reset(None, 0)

    def _reset(self, owner: ChannelMember | None, capacity: int) -> None:
        self._owner, self._capacity = owner, capacity
        self._deliveries.clear()
        self._greeted.clear()
        self._failure = None
        self._changed.notify_all()

    def greet(self, sender: ChannelMember) -> None:
        """Note that a sender has connected."""
        with self._changed:
            if self._accepts(sender):
                self._greeted.add(sender.rank)

    def deliver(
        self, sender: ChannelMember, key: StepKey, tensors: tuple[WireTensor, ...] | TensorError
    ) -> None:
        """Leave the tensors of a key, or the error that took their place; never blocks."""
        with self._changed:
            if not self._accepts(sender):
                return
            if key.phase is Phase.SAMPLE:
                self._forget_committed(key.step_id.step)
            if key in self._deliveries:
                self._failure = TensorError(f"tensors of {key} arrived twice from {sender.rank}")
            elif self._num_unread(key.phase) >= self._capacity:
                self._failure = TensorError(
                    f"the tensor mailbox is full: {sender.rank} sent {key} while "
                    f"{self._capacity} deliveries are unread"
                )
            else:
                self._deliveries[key] = tensors
            self._changed.notify_all()

    def _forget_committed(self, newest_step: int) -> None:
        """Drop what a step further back than the steps in flight has sampled."""
        oldest = newest_step - self._capacity + 1
        for key in [each for each in self._deliveries if each.step_id.step < oldest]:
            if key.phase is Phase.SAMPLE:
                del self._deliveries[key]

    def _num_unread(self, phase: Phase) -> int:
        return sum(key.phase is phase for key in self._deliveries)

    def fail(self, error: TensorError) -> None:
        """End this generation's receives with an error."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def take(self, key: StepKey, *, cancel: CancelToken, timeout: float) -> tuple[WireTensor, ...]:
        """Wait for the tensors of a key, at most `timeout` seconds, and hand them over.

        Raises Cancelled when the token is cancelled or the key is not, or no longer, of the
        generation the mailbox is open for; TensorError when the delivery is damaged or the
        mailbox overflowed; DeadlineExceeded when nothing came.
        """
        cancel.add_callback(self._wake)
        try:
            delivery = self._wait(key, cancel, timeout)
        finally:
            cancel.remove_callback(self._wake)
        if isinstance(delivery, TensorError):
            raise delivery
        for tensor in delivery:
            tensor.verify()
        return delivery

    def _wait(
        self, key: StepKey, cancel: CancelToken, timeout: float
    ) -> tuple[WireTensor, ...] | TensorError:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    cancel.is_cancelled
                    or key in self._deliveries
                    or self._failure is not None
                    or not self._is_of(key.step_id)
                ),
                timeout,
            )
            cancel.raise_if_cancelled()
            if not self._is_of(key.step_id):
                raise Cancelled(f"no tensors of {key}: this worker has left that generation")
            if self._failure is not None:
                raise self._failure
            if key not in self._deliveries:
                raise DeadlineExceeded(self._missing(key, timeout))
            return self._deliveries.pop(key)

    def _is_of(self, step_id: StepId) -> bool:
        owner = self._owner
        return owner is not None and (owner.epoch, owner.generation) == (
            step_id.epoch,
            step_id.generation,
        )

    def _missing(self, key: StepKey, timeout: float) -> str:
        told = "which is connected" if self._greeted else "which never connected"
        return f"no tensors of {key} within {timeout:g} s from the sending stage, {told}"

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _accepts(self, sender: ChannelMember) -> bool:
        if self._owner is not None and sender.sends_to(self._owner):
            return True
        self.num_refused += 1
        # Frames of steps that were in flight when a generation ended are still on their way.
        is_late = self._owner is None or not sender.is_in_generation_of(self._owner)
        logger.log(
            logging.INFO if is_late else logging.WARNING,
            "tensor frame refused",
            extra={"sender": str(sender), "receiver": str(self._owner)},
        )
        return False


class MailboxReceiver:
    """TensorReceiver on a mailbox."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def receive(
        self, key: StepKey, *, cancel: CancelToken, timeout: float
    ) -> tuple[WireTensor, ...]:
        """Wait for the tensors of a key."""
        return self._mailbox.take(key, cancel=cancel, timeout=timeout)
