"""The calls that bring one worker, or the stages of a pipeline, to SERVING, as a coordinator makes them."""

import asyncio
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
BUDGET = MemoryBudget(kv_cache_bytes=1 << 20)
BLOCK_SIZE = 4


def load_request(
    model: str, *, stage: int = 0, num_stages: int = 1, num_layers: int = 6, **sizes: int
) -> LoadModel:
    """A float32 slice of one stage, the layers split evenly; sizes replace the small limits."""
    limits = {
        "max_model_len": 128,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 4,
        "block_size": BLOCK_SIZE,
    }
    return LoadModel(
        model=model,
        dtype="float32",
        rank=Rank(stage=stage),
        layout=Layout(num_stages=num_stages),
        first_layer=num_layers * stage // num_stages,
        end_layer=num_layers * (stage + 1) // num_stages,
        **(limits | sizes),
    )


def begin_request(
    *, stage: int = 0, num_stages: int = 1, generation: int = GENERATION
) -> BeginGeneration:
    """The place of one stage in a generation."""
    return BeginGeneration(
        generation=generation,
        rank=Rank(stage=stage),
        layout=Layout(num_stages=num_stages),
        max_steps_in_flight=4,
    )


async def peers_of(workers: Sequence[WorkerApi]) -> tuple[Peer, ...]:
    """Every rank, in stage order, with the tensor endpoint it describes."""
    infos = await asyncio.gather(*(worker.describe() for worker in workers))
    return tuple(
        Peer(rank=Rank(stage=stage), tensor_endpoint=info.tensor_endpoint)
        for stage, info in enumerate(infos)
    )


async def warm_up(worker: WorkerApi, request: LoadModel, *, num_blocks: int = 32) -> None:
    """Take a new worker to WARM."""
    await worker.init_device(AUTHORITY)
    await worker.load_model(AUTHORITY, request)
    await worker.determine_available_memory(AUTHORITY, BUDGET)
    await worker.get_kv_cache_spec(AUTHORITY)
    await worker.initialize_kv_cache(AUTHORITY, num_blocks)
    await worker.compile_or_warm_up(AUTHORITY)


async def join(workers: Sequence[WorkerApi], *, generation: int = GENERATION) -> None:
    """Take warm workers, in stage order, to SERVING in one generation."""
    for stage, worker in enumerate(workers):
        request = begin_request(stage=stage, num_stages=len(workers), generation=generation)
        await worker.begin_generation(AUTHORITY, request)
    peers = await peers_of(workers)
    for worker in workers:
        await worker.connect_peers(AUTHORITY, generation, peers)
