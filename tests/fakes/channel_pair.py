"""Two tensor channels of neighbouring stages, and the small values that tests send between them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.channels.cancel import CancelToken
from common.channels.channel import InMemoryHub, TensorChannels
from common.channels.zmq_channel import ZmqChannels
from common.errors import (
    Cancelled,
    DeadlineExceeded,
    TensorError,
)
from common.step import Phase, StepId, StepKey
from common.tensors import DType, WireTensor, wire_tensor
from common.worker_api import Peer, Rank

FIRST, SECOND = Rank(stage=0), Rank(stage=1)
# Seconds: to see that nothing comes, and to wait for what must come.
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
