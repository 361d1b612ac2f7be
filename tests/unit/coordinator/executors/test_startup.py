"""Which workers are loaded when a group is brought up again, and which are left as they are."""

from dataclasses import replace

import pytest

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig
from common.errors import ConfigError, Fenced, ModelError
from coordinator.executors.executor import Executor, Succession
from coordinator.executors.progress import Progress
from tests.fakes.scripted_engine import scripted_folder
from tests.fakes.scripted_pipeline import scripted_pipeline
from tests.fakes.scripted_reports import BYTES_PER_BLOCK
from tests.fakes.scripted_worker import ScriptedWorker

FOLDER = scripted_folder(num_layers=6)
CONFIG = CoordinatorConfig(
    model=ModelConfig(model="scripted"),
    cache=CacheConfig(block_size=4, num_blocks=200),
    cluster=ClusterConfig(pp=2),
)


class HasLittleRoom(ScriptedWorker):
    """A worker with memory for 10 blocks."""

    async def determine_available_memory(self, authority, budget):
        """Offer less than asked for."""
        memory = await super().determine_available_memory(authority, budget)
        return replace(memory, kv_cache_bytes=10 * BYTES_PER_BLOCK)


class HasOtherWeights(ScriptedWorker):
    """A worker whose folder holds another checkpoint of the same sizes."""

    async def load_model(self, authority, request):
        """Load what the others do not."""
        return replace(await super().load_model(authority, request), weights_digest="other")


async def brought_up(
    workers: list[ScriptedWorker],
    config: CoordinatorConfig = CONFIG,
    succession: Succession | None = None,
) -> Executor:
    """An executor over the workers, ready for step 1."""
    executor = await Executor.create(workers, config, FOLDER, succession=succession)
    await executor.initialize(await executor.determine_available_memory())
    return executor


async def closed(workers: list[ScriptedWorker]) -> list[int]:
    """End the workers; how often each has loaded."""
    for worker in workers:
        await worker.close()
    return [worker.num_loads for worker in workers]


def successor_of(executor: Executor, *, num_blocks: int = 200) -> Succession:
    """What the next generation of the same coordinator takes over."""
    return Succession(
        generation=executor.generation + 1, authority=executor.authority, num_blocks=num_blocks
    )


async def test_a_new_coordinator_takes_a_group_over_as_it_is():
    """A higher epoch, generation 1, the same blocks, and nobody reads parameters again."""
    workers = scripted_pipeline(2)
    await brought_up(workers)
    second = await brought_up(workers)
    assert (second.authority.epoch, second.generation) == (2, 1)
    assert [(await worker.describe()).state for worker in workers] == ["SERVING", "SERVING"]
    assert [worker.num_loads for worker in second.topology()] == [1, 1]
    assert await closed(workers) == [1, 1]


@pytest.mark.parametrize(
    "other",
    [
        replace(CONFIG, model=ModelConfig(model="scripted", max_model_len=128)),
        replace(CONFIG, model=ModelConfig(model="scripted", quantization="int8")),
        replace(CONFIG, cache=CacheConfig(block_size=8, num_blocks=200)),
        replace(CONFIG, cache=CacheConfig(block_size=4, num_blocks=100)),
    ],
)
async def test_workers_that_hold_something_else_are_loaded_anew(other):
    """Another length, form of weights, block size or number of blocks than stand: all anew."""
    workers = scripted_pipeline(2)
    await brought_up(workers)
    await brought_up(workers, other)
    held = [(await worker.describe()).held_stage for worker in workers]
    assert [stage.num_blocks for stage in held if stage] == [other.cache.num_blocks] * 2
    assert await closed(workers) == [2, 2]


async def test_a_form_of_weights_that_a_worker_cannot_hold_is_refused_before_anything_is_loaded():
    """The error names the rank, its device and the form."""
    workers = scripted_pipeline(2)
    asked = replace(CONFIG, model=ModelConfig(model="scripted", quantization="int4"))
    with pytest.raises(
        ConfigError, match=r"stage 0 .* on scripted and cannot hold weights as int4"
    ):
        await brought_up(workers, asked)
    assert await closed(workers) == [0, 0]


async def test_a_fresh_worker_adopts_the_blocks_of_its_group():
    """The survivor keeps its cache; the one that takes the lost one's place gets one of that size."""
    survivor, lost = scripted_pipeline(2)
    first = await brought_up([survivor, lost])
    fresh = ScriptedWorker(address="scripted:1")
    second = await brought_up([survivor, fresh], succession=successor_of(first))
    held = (await fresh.describe()).held_stage
    assert held is not None
    assert held.num_blocks == 200
    assert (second.authority, second.generation) == (first.authority, 2)
    assert await closed([survivor, lost, fresh]) == [1, 1, 1]


async def test_too_little_room_for_the_blocks_of_the_group_is_told():
    """Sequences were planned on more blocks than the newcomer can hold."""
    survivor, lost = scripted_pipeline(2)
    first = await brought_up([survivor, lost])
    fresh = HasLittleRoom(address="scripted:1")
    with pytest.raises(ConfigError, match=r"stage 1 .* has room for 10 KV cache blocks"):
        await brought_up([survivor, fresh], succession=successor_of(first))
    await closed([survivor, lost, fresh])


async def test_a_worker_that_was_loaded_but_not_sized_reads_nothing_again():
    """A bring-up that failed after the load goes on from there."""
    workers = scripted_pipeline(2)
    first = await Executor.create(workers, CONFIG, FOLDER)
    again = replace(successor_of(first), num_blocks=None)
    await brought_up(workers, succession=again)
    assert await closed(workers) == [1, 1]


async def test_a_generation_that_could_not_begin_leaves_survivors_to_the_next():
    """A survivor that has begun a generation nobody else did begins the one after it."""
    workers = scripted_pipeline(2)
    first = await brought_up(workers)
    second = await Executor.create(workers, CONFIG, FOLDER, succession=successor_of(first))
    await workers[0].begin_generation(second.authority, second._begin(second.members[0].rank))
    third = successor_of(second)
    assert (await brought_up(workers, succession=third)).generation == 3
    assert await closed(workers) == [1, 1]


async def test_a_coordinator_that_was_replaced_finds_out_by_asking():
    """Its workers report a higher epoch: it raises Fenced and changes nothing."""
    workers = scripted_pipeline(2)
    first = await brought_up(workers)
    await brought_up(workers)
    with pytest.raises(Fenced, match=r"stage 0 .* obeys a newer coordinator, of epoch 2"):
        await brought_up(workers, succession=successor_of(first))
    assert [(await worker.describe()).generation for worker in workers] == [1, 1]
    await closed(workers)


async def test_progress_names_whom_the_group_waits_for_and_who_loads():
    """Each answer is a word; then who reads parameters, or that nobody does."""
    workers = scripted_pipeline(2)
    told: list[Progress] = []
    await Executor.create(workers, CONFIG, FOLDER, report=told.append)
    words = [progress.detail for progress in told]
    assert words[0] == "waiting for stage 0, stage 1 (have 0 of 2)"
    assert words[1] in (
        "waiting for stage 0 (have 1 of 2)",
        "waiting for stage 1 (have 1 of 2)",
    )
    assert words[2:] == ["loading stage 0, stage 1"]
    told.clear()
    await brought_up(workers)
    await Executor.create(workers, CONFIG, FOLDER, report=told.append)
    assert told[-1].detail == "joining the workers"
    await closed(workers)


async def test_stages_of_different_checkpoints_are_no_model():
    """A folder changed on one machine, or under a survivor, is told and not served."""
    first, last = scripted_pipeline(2)[0], HasOtherWeights(address="scripted:1")
    with pytest.raises(ModelError, match=r"stage 0 .* and stage 1 .* hold different weights"):
        await brought_up([first, last])
    await closed([first, last])
