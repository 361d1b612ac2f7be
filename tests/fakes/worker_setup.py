"""The calls that bring one worker, or the stages of a pipeline, to SERVING, as a coordinator makes them."""

from collections.abc import Sequence

from common.worker_api import (
    Authority,
    BeginGeneration,
    Layout,
    LoadModel,
    MemoryBudget,
    Peer,
    Rank,
    WorkerApi,
)
from tests.fakes.manual_steps import EPOCH, GENERATION

AUTHORITY = Authority(coordinator_id="a test", epoch=EPOCH)


def load_request(
    model: str, *, stage: int = 0, num_stages: int = 1, num_layers: int = 6, block_size: int = 4
) -> LoadModel:
    """The slice of one stage when the layers are split evenly; small limits."""
    return LoadModel(
        model=model,
        dtype="auto",
        rank=Rank(stage=stage),
        layout=Layout(num_stages=num_stages),
        first_layer=num_layers * stage // num_stages,
        end_layer=num_layers * (stage + 1) // num_stages,
        max_model_len=128,
        max_num_batched_tokens=64,
        max_num_seqs=4,
        block_size=block_size,
    )


async def warm_up(worker: WorkerApi, request: LoadModel, *, num_blocks: int = 32) -> None:
    """Take a new worker to WARM."""
    await worker.init_device(AUTHORITY)
    await worker.load_model(AUTHORITY, request)
    await worker.determine_available_memory(AUTHORITY, MemoryBudget(kv_cache_bytes=1 << 20))
    await worker.get_kv_cache_spec(AUTHORITY)
    await worker.initialize_kv_cache(AUTHORITY, num_blocks)
    await worker.compile_or_warm_up(AUTHORITY)


async def join(
    workers: Sequence[WorkerApi], *, generation: int = GENERATION, max_steps_in_flight: int = 4
) -> None:
    """Take warm workers, in stage order, to SERVING in one generation."""
    layout = Layout(num_stages=len(workers))
    for stage, worker in enumerate(workers):
        request = BeginGeneration(
            generation=generation,
            rank=Rank(stage=stage),
            layout=layout,
            max_steps_in_flight=max_steps_in_flight,
        )
        await worker.begin_generation(AUTHORITY, request)
    endpoints = [(await worker.describe()).tensor_endpoint for worker in workers]
    peers = tuple(
        Peer(rank=Rank(stage=stage), tensor_endpoint=endpoint)
        for stage, endpoint in enumerate(endpoints)
    )
    for worker in workers:
        await worker.connect_peers(AUTHORITY, generation, peers)
