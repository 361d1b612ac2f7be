"""A worker is killed while draft tokens are on their way: what was delivered is right, and stays so."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from common.errors import Unavailable
from coordinator.engine.cluster_status import ClusterStatus
from tests.fakes.coordinator_process import (
    PROMPT,
    TINY_LIMITS,
    CoordinatorProcess,
    coordinator_process,
    greedy_tokens,
    wait_for,
)
from tests.fakes.tiny_checkpoint import write_tiny_llama

NUM_TOKENS = 400
SERVES_WITHIN_S = 20.0
DRAFTS = ("--speculative-method=ngram", "--prompt-lookup-min=1")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    """A coordinator that starts two workers itself, of which the last one proposes drafts."""
    model = write_tiny_llama(tmp_path / "model", num_layers=2)
    arguments = ("--pp=2", "--device=cpu", "--threads=1", f"--model={model}")
    with coordinator_process("up", *arguments, *DRAFTS, *TINY_LIMITS) as started:
        yield started
        started.send_signal(signal.SIGTERM)
        assert started.wait() == (0, [])


def test_streams_are_the_same_up_to_the_kill_and_after_it(coordinator):
    """Either stage dies in the middle of an answer: its tokens are those of the whole answer."""
    client = coordinator.client
    whole = list(greedy_tokens(client, num_tokens=NUM_TOKENS))
    assert len(whole) == NUM_TOKENS
    for stage in (0, 1):
        before = client.status()
        deltas = client.generate(PROMPT, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
        delivered = [*next(deltas).token_ids]
        victim = _listener(coordinator, before.workers[stage].address)
        victim.kill()
        with pytest.raises(Unavailable):
            delivered.extend(token for delta in deltas for token in delta.token_ids)
        assert delivered == whole[: len(delivered)]
        wait_for(client, _is_after(before.generation), seconds=SERVES_WITHIN_S)
        assert list(greedy_tokens(client, num_tokens=NUM_TOKENS)) == whole


def _is_after(generation: int) -> Callable[[ClusterStatus], bool]:
    """Whether a later generation serves."""
    return lambda status: status.is_serving and status.generation > generation


def _listener(coordinator: CoordinatorProcess, address: str) -> psutil.Process:
    """The worker process at an address."""
    port = int(address.rpartition(":")[2])
    for child in psutil.Process(coordinator.process.pid).children():
        if any(each.laddr and each.laddr.port == port for each in child.net_connections("tcp")):
            return child
    raise AssertionError(f"no worker listens at {address}")
