"""Workers that replay captured graphs, padded: the reference's tokens, and metrics that say so."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from tests.fakes.metrics_reader import scrape
from tests.fakes.running_replica import generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.transformers_reference import TransformersReference, near_ties
from tests.fakes.worker_process import WorkerProcess

NUM_TOKENS = 12
PROMPTS = [list(range(5, 5 + length)) for length in (1, 7, 30, 50)]
FLAGS = (
    "--cudagraph-mode=piecewise",
    "--cudagraph-capture-sizes=1,2,4,16",
    "--metrics-listen=127.0.0.1:0",
)


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """Two workers with graphs on the CPU."""
    with ExitStack() as stack:
        started = [WorkerProcess(*FLAGS, module="tests.fakes.graph_worker") for _ in range(2)]
        for worker in started:
            stack.callback(worker.kill)
        yield [worker.wait_until_ready() for worker in started]


@pytest.mark.parametrize("num_stages", [1, 2])
async def test_tokens_equal_the_reference(workers, tmp_path, num_stages: int) -> None:
    """Chunks of prompts, decodes of one to four rows: none of them runs without a graph."""
    model = write_tiny_llama(tmp_path / "tiny", num_layers=2)
    workers = workers[:num_stages]
    config = CoordinatorConfig(
        model=ModelConfig(model=str(model), dtype="float32", max_model_len=96),
        cache=CacheConfig(block_size=4, num_blocks=64),
        schedule=ScheduleConfig(max_num_batched_tokens=16, max_num_seqs=4, check_state_every=1),
        cluster=ClusterConfig(workers=tuple(worker.address for worker in workers)),
    )
    async with running_replica(config) as replica:
        texts = await generate(replica, PROMPTS, num_tokens=NUM_TOKENS)
        metrics = [scrape(f"http://{worker.metrics_address}/metrics") for worker in workers]
    reference = TransformersReference(model)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        for line in near_ties("graphs", text, reference.greedy(prompt, NUM_TOKENS)):
            print(line)  # noqa: T201 - shown by pytest beside the test's result
    for told in metrics:
        steps = {
            dict(labels)["mode"]: count
            for labels, count in told.by_labels("stepwire_graph_steps_total").items()
        }
        assert steps.keys() == {"piecewise"}
        (padding,) = told.by_labels("stepwire_graph_padding_tokens_total").values()
        assert padding > 0
