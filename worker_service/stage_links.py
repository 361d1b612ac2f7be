"""The tensor links of one rank in one generation: from the previous stage, to the next one.

The wait for the previous stage is the only place where the device thread waits for another process;
it takes the generation's cancel token. Knows nothing of steps but their keys.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from common.channels.cancel import CancelToken
from common.channels.channel import TensorChannels, TensorReceiver, TensorSender
from common.clock import Clock
from common.errors import InvalidRequest, WrongState
from common.step import IntermediateTensors, StepKey
from common.tensors import WireTensor
from common.worker_api import DevicePhase, Layout, Peer, Rank
from worker_service.phase_board import PhaseBoard
from worker_service.runner.stage_tensors import from_wire

# Longer than any step may take: a previous stage that is lost ends the generation, and that cancels
# the wait. The limit is for the case where nobody is left to end it.
INPUT_TIMEOUT_SECONDS = 300.0


class TimedInputs:
    """The tensors of the previous stage for one step, fetched when the runner asks for them.

    `wait_ns` is how long the runner waited, `received_ns` the monotonic time at which the wait was
    over; both None when the runner did not ask.
    """

    def __init__(
        self, fetch: Callable[[], tuple[WireTensor, ...]], *, device: torch.device, clock: Clock
    ) -> None:
        self._fetch = fetch
        self._device = device
        self._clock = clock
        self.wait_ns: int | None = None
        self.received_ns: int | None = None

    def receive(self) -> dict[str, Tensor]:
        """Wait for the tensors and put them on the device, by name."""
        started_ns = self._clock.monotonic_ns()
        tensors = self._fetch()
        self.received_ns = self._clock.monotonic_ns()
        self.wait_ns = self.received_ns - started_ns
        return from_wire(tensors, self._device)


class StageLinks:
    """What a rank sends to and receives from in one generation, whose token ends every wait."""

    def __init__(
        self,
        channels: TensorChannels,
        *,
        rank: Rank,
        layout: Layout,
        token: CancelToken,
        device: torch.device,
        clock: Clock,
        board: PhaseBoard,
    ) -> None:
        self._channels = channels
        self._layout = layout
        self._rank = rank
        self._previous_rank = replace(rank, stage=rank.stage - 1)
        self._next_rank = replace(rank, stage=rank.stage + 1)
        self._token = token
        self._device = device
        self._clock = clock
        self._board = board
        self._receiver: TensorReceiver = channels.receiver()
        self._next: TensorSender | None = None

    def connect(self, peers: tuple[Peer, ...]) -> None:
        """Open the link to the next stage; raises InvalidRequest when no peer stands there."""
        if self._rank.stage == self._layout.num_stages - 1:
            return
        for peer in peers:
            if peer.rank == self._next_rank:
                self._next = self._channels.connect(peer)
                return
        raise InvalidRequest(
            f"no peer at {self._next_rank}, which this rank sends to", param="peers"
        )

    def inputs(self, key: StepKey, inline: IntermediateTensors | None) -> TimedInputs:
        """The previous stage's tensors of a step: those that came with the call, or the channel's."""
        if inline is not None and inline.inline is not None:
            tensors = inline.inline
            return TimedInputs(lambda: tensors, device=self._device, clock=self._clock)
        return TimedInputs(lambda: self._receive(key), device=self._device, clock=self._clock)

    def send(self, key: StepKey, tensors: tuple[WireTensor, ...]) -> None:
        """Send a step's tensors to the next stage; they are never written again."""
        if self._next is None:
            raise WrongState("this rank has no link to a next stage")
        with self._board.during(DevicePhase.SENDING, waiting_on=self._next_rank):
            self._next.send(key, tensors)

    def close(self) -> None:
        """Leave the generation: the links are closed."""
        self._channels.end()

    def _receive(self, key: StepKey) -> tuple[WireTensor, ...]:
        with self._board.during(DevicePhase.WAIT_INPUT, waiting_on=self._previous_rank):
            return self._receiver.receive(key, cancel=self._token, timeout=INPUT_TIMEOUT_SECONDS)
