"""The tensor links of one rank in one generation: from the previous stage, and to the next one.

The last stage feeds the tokens it samples back to the first, and where it proposes drafts to all before
it: how many tokens a row computes is known there then. The waits for other stages are the only
places where the device thread waits for another process; they take the generation's cancel token.
Knows nothing of steps but their keys.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from common.channels.cancel import CancelToken
from common.channels.channel import TensorChannels, TensorReceiver, TensorSender
from common.clock import Clock
from common.errors import InvalidRequest, WrongState
from common.step import IntermediateTensors, Phase, StepId, StepKey
from common.tensors import WireTensor
from common.worker_api import DevicePhase, Layout, Peer, Rank
from worker_service.batch.sampled_tokens import SampledTokens
from worker_service.phase_board import PhaseBoard
from worker_service.runner.stage_tensors import from_wire

# Longer than any step may take: a previous stage that is lost ends the generation, and that cancels
# the wait. The limit is for the case where nobody is left to end it.
INPUT_TIMEOUT_SECONDS = 300.0


Tensors = tuple[WireTensor, ...]


class TimedInputs:
    """What other stages send for one step, fetched when the runner asks for it.

    `wait_ns` is how long the runner waited, `received_ns` the monotonic time at which the last wait
    was over; both None when the runner did not ask.
    """

    def __init__(
        self,
        fetch: Callable[[], Tensors],
        *,
        fetch_tokens: Callable[[int], Tensors],
        device: torch.device,
        clock: Clock,
    ) -> None:
        """fetch_tokens takes the number of the step that sampled them."""
        self._fetch = fetch
        self._fetch_tokens = fetch_tokens
        self._device = device
        self._clock = clock
        self.wait_ns: int | None = None
        self.received_ns: int | None = None

    def receive(self) -> dict[str, Tensor]:
        """Wait for the previous stage's tensors and put them on the device, by name."""
        return from_wire(self._timed(self._fetch), self._device)

    def receive_tokens(self, step: int) -> SampledTokens:
        """Wait for the tokens that the last stage sampled in this step."""
        return SampledTokens.from_wire(self._timed(lambda: self._fetch_tokens(step)))

    def _timed(self, fetch: Callable[[], Tensors]) -> Tensors:
        started_ns = self._clock.monotonic_ns()
        tensors = fetch()
        self.received_ns = self._clock.monotonic_ns()
        self.wait_ns = (self.wait_ns or 0) + self.received_ns - started_ns
        return tensors


class StageLinks:
    """What a rank sends to and receives from in one generation, whose token ends every wait."""

    def __init__(
        self,
        channels: TensorChannels,
        *,
        rank: Rank,
        layout: Layout,
        feeds_all: bool,
        token: CancelToken,
        device: torch.device,
        clock: Clock,
        board: PhaseBoard,
    ) -> None:
        """feeds_all: the last stage feeds every stage before it, not only the first."""
        self._channels = channels
        self._layout = layout
        self._rank = rank
        num_fed = layout.num_stages - 1 if feeds_all else min(layout.num_stages - 1, 1)
        self._fed_ranks = [replace(rank, stage=stage) for stage in range(num_fed)]
        self._last_rank = replace(rank, stage=layout.num_stages - 1)
        self._previous_rank = replace(rank, stage=rank.stage - 1)
        self._next_rank = replace(rank, stage=rank.stage + 1)
        self._token = token
        self._device = device
        self._clock = clock
        self._board = board
        self._receiver: TensorReceiver = channels.receiver()
        self._next: TensorSender | None = None
        self._fed: list[tuple[Rank, TensorSender]] = []

    def connect(self, peers: tuple[Peer, ...]) -> None:
        """Open the link to the next stage, or from the last of several to those it feeds.

        Raises InvalidRequest when no peer stands there.
        """
        if self._rank != self._last_rank:
            self._next = self._connect(self._next_rank, peers)
        else:
            self._fed = [(rank, self._connect(rank, peers)) for rank in self._fed_ranks]

    def inputs(self, key: StepKey, inline: IntermediateTensors | None) -> TimedInputs:
        """What others send for a step: tensors came with the call, or come on the channel."""
        given = None if inline is None else inline.inline
        return TimedInputs(
            lambda: self._receive(key, self._previous_rank) if given is None else given,
            fetch_tokens=lambda step: self._receive(
                _feedback_key(replace(key.step_id, step=step)), self._last_rank
            ),
            device=self._device,
            clock=self._clock,
        )

    def send(self, key: StepKey, tensors: tuple[WireTensor, ...]) -> None:
        """Send a step's tensors to the next stage; they are never written again."""
        if self._next is None:
            raise WrongState("this rank has no link to a next stage")
        with self._board.during(DevicePhase.SENDING, waiting_on=self._next_rank):
            self._next.send(key, tensors)

    def feed_back(self, step_id: StepId, sampled: SampledTokens) -> None:
        """Send the tokens of a step to the stages that are fed, where those are other ranks."""
        if not self._fed or not len(sampled.handles):
            return
        tensors = sampled.to_wire()
        for rank, sender in self._fed:
            with self._board.during(DevicePhase.SENDING, waiting_on=rank):
                sender.send(_feedback_key(step_id), tensors)

    def close(self) -> None:
        """Leave the generation: the links are closed."""
        self._channels.end()

    def _connect(self, rank: Rank, peers: tuple[Peer, ...]) -> TensorSender:
        for peer in peers:
            if peer.rank == rank:
                return self._channels.connect(peer)
        raise InvalidRequest(f"no peer at {rank}, which this rank sends to", param="peers")

    def _receive(self, key: StepKey, sender: Rank) -> Tensors:
        with self._board.during(DevicePhase.WAIT_INPUT, waiting_on=sender):
            return self._receiver.receive(key, cancel=self._token, timeout=INPUT_TIMEOUT_SECONDS)


def _feedback_key(step_id: StepId) -> StepKey:
    """Tokens come of the sample phase, hidden states of the other one."""
    return StepKey(step_id=step_id, phase=Phase.SAMPLE)
