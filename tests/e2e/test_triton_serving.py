"""Workers whose kernels are Triton's, interpreted where there is no GPU: the reference's tokens."""

from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
)
from tests.fakes.metrics_reader import scrape
from tests.fakes.running_replica import generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.transformers_reference import TransformersReference, near_ties
from tests.fakes.worker_process import worker_processes

NUM_TOKENS = 8
PROMPTS = [list(range(length)) for length in (1, 5, 30, 61)]
KERNELS = {"paged_attention", "kv_store", "rotate", "rms_norm", "gated_activation"}


async def test_tokens_equal_the_reference(tmp_path) -> None:
    """Chunked prompts and decodes over gRPC; every kernel is launched on every stage."""
    model = write_tiny_llama(tmp_path / "tiny", num_layers=2)
    flags = ("--attention-backend=triton", "--metrics-listen=127.0.0.1:0")
    with worker_processes(2, *flags) as workers:
        config = CoordinatorConfig(
            model=ModelConfig(model=str(model), dtype="float32", max_model_len=96),
            cache=CacheConfig(block_size=4, num_blocks=64),
            schedule=ScheduleConfig(max_num_batched_tokens=32, max_num_seqs=4),
            cluster=ClusterConfig(workers=tuple(worker.address for worker in workers)),
        )
        async with running_replica(config) as replica:
            texts = await generate(replica, PROMPTS, num_tokens=NUM_TOKENS)
            launches = [
                scrape(f"http://{worker.metrics_address}/metrics").by_labels(
                    "stepwire_kernel_launches_total"
                )
                for worker in workers
            ]
    reference = TransformersReference(model)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        for line in near_ties("triton", text, reference.greedy(prompt, NUM_TOKENS)):
            print(line)  # noqa: T201 - shown by pytest beside the test's result
    for by_kernel in launches:
        counts = {dict(labels)["kernel"]: count for labels, count in by_kernel.items()}
        assert counts.keys() >= KERNELS
        assert min(counts.values()) > 0
