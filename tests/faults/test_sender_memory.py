"""A stage that computes faster than the next one takes its tensors does not collect them in memory."""

import asyncio
import logging
import statistics
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from common.channels.channel import TensorSender
from common.channels.zmq_channel import ZmqChannels
from common.errors import TensorError
from common.tensors import DType, WireTensor, wire_tensor
from common.worker_api import Peer
from coordinator.client import AsyncClient
from tests.fakes.channel_pair import FIRST, SECOND, key
from tests.fakes.held_worker import held_workers
from tests.fakes.running_coordinator import running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama

logger = logging.getLogger(__name__)

MIB = 1 << 20
SECONDS, SETTLE_SECONDS = 60, 10
HIDDEN, STEP_TOKENS, NUM_CLIENTS = 256, 512, 8
STEP_BYTES = STEP_TOKENS * HIDDEN * 4
HELD_SECONDS = 0.1

CAPACITY = 4
PART_BYTES = 4 * MIB
TCP_BYTES = 24 * MIB
"""More than the system's buffers of one connection hold, on both ends together."""

MOST_TAKEN = 2 * CAPACITY + 2 + TCP_BYTES // PART_BYTES
"""Messages in the sender's queue, in that of its socket, in the system's, and one the peer holds."""


async def keep_asking(client: AsyncClient, seed: int) -> None:
    """Send prompts that fill whole steps, one after the other, until cancelled."""
    random = np.random.default_rng(seed)
    while True:
        prompt = random.integers(1, 250, STEP_TOKENS - 8).tolist()
        await client.complete(prompt, max_tokens=1)


@pytest.mark.soak
@pytest.mark.timeout(4 * SECONDS)
async def test_memory_of_a_fast_stage_is_flat(tmp_path: Path) -> None:
    """The coordinator bounds the steps in flight, so a slow stage 1 holds back stage 0.

    In the time of the test stage 0 sends many times what its memory may grow by.
    """
    model = write_tiny_llama(tmp_path / "model", hidden=HIDDEN, num_layers=2)
    with held_workers(2, tmp_path) as workers:
        sender, receiver = workers
        flags = {
            "model": str(model),
            "workers": [worker.address for worker in workers],
            "max_num_batched_tokens": STEP_TOKENS,
            "max_num_seqs": NUM_CLIENTS,
            "kv_cache_bytes": 64 * MIB,
        }
        with running_coordinator(flags) as coordinator:
            receiver.hold(seconds=HELD_SECONDS)
            rss, num_steps = await observe_sender(sender.process.pid, coordinator.grpc_address)
            receiver.release()
    before, after = (
        statistics.median(rss[:SETTLE_SECONDS]),
        statistics.median(rss[-SETTLE_SECONDS:]),
    )
    sent, grown = num_steps * STEP_BYTES, after - before
    logger.info("stage 0 sent %d MiB and grew by %.1f MiB", sent // MIB, grown / MIB)
    assert sent > 100 * MIB
    assert grown < 16 * MIB


async def observe_sender(pid: int, address: str) -> tuple[list[int], int]:
    """Resident bytes of a process, each second under load once it has settled, and the steps run."""
    process, rss = psutil.Process(pid), list[int]()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(address))
        clients = [asyncio.create_task(keep_asking(client, seed)) for seed in range(NUM_CLIENTS)]
        await asyncio.sleep(SETTLE_SECONDS)
        first_step = (await client.status()).step
        for _ in range(SECONDS):
            await asyncio.sleep(1)
            rss.append(process.memory_info().rss)
        num_steps = (await client.status()).step - first_step
        for each in clients:
            each.cancel()
        ended = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    return rss, num_steps


@pytest.fixture
def deaf_endpoint() -> Iterator[str]:
    """HOST:PORT of a peer that accepts a connection and never reads a message."""
    with zmq.Context() as context, context.socket(zmq.PULL) as deaf:
        deaf.setsockopt(zmq.RCVHWM, 1)
        yield f"127.0.0.1:{deaf.bind_to_random_port('tcp://127.0.0.1')}"


def fresh_tensor() -> WireTensor:
    """A tensor in memory of its own."""
    array = np.ones(PART_BYTES // 4, dtype="<f4")
    return wire_tensor(
        name="hidden_states", dtype=DType.FLOAT32, shape=array.shape, buffer=memoryview(array)
    )


def fill(link: TensorSender) -> int:
    """Send until nothing is taken any more, or too much was; returns how many messages were taken."""
    num_taken, num_refused, pause = 0, 0, threading.Event()
    while num_refused < 10 and num_taken <= MOST_TAKEN:
        try:
            link.send(key(num_taken + 1), (fresh_tensor(),))
        except TensorError:
            num_refused += 1
            pause.wait(0.05)
        else:
            num_taken, num_refused = num_taken + 1, 0
    return num_taken


def test_backlog_of_a_peer_that_does_not_read_is_bounded(deaf_endpoint: str) -> None:
    """Beyond twice the steps in flight, and what the system buffers, sending is an error for good."""
    channels = ZmqChannels(("127.0.0.1", 0))
    try:
        channels.begin(epoch=1, generation=1, rank=FIRST, capacity=CAPACITY)
        link = channels.connect(Peer(rank=SECOND, tensor_endpoint=deaf_endpoint))
        assert fill(link) <= MOST_TAKEN
        before = psutil.Process().memory_info().rss
        for step in range(100):
            with pytest.raises(TensorError, match="has not taken the last 4 messages"):
                link.send(key(1000 + step), (fresh_tensor(),))
        assert psutil.Process().memory_info().rss - before < 2 * PART_BYTES
    finally:
        channels.close()
