"""An engine loop over a scripted pipeline, through the real executor: all but processes and models."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from common.clock import Clock
from common.config import CacheConfig, CoordinatorConfig, ScheduleConfig
from common.model_folder import ModelFolder
from coordinator.engine.loop import EngineLoop
from coordinator.engine.measures import Measures
from coordinator.executors.executor import Executor
from coordinator.scheduling.scheduler import Scheduler
from tests.fakes.scripted_pipeline import scripted_pipeline
from tests.fakes.scripted_worker import ScriptedWorker

MAX_MODEL_LEN = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedEngine:
    """The parts of a running engine."""

    loop: EngineLoop
    scheduler: Scheduler
    executor: Executor
    workers: list[ScriptedWorker]
    run: "asyncio.Task[None]"
    serving_changes: list[bool]


@asynccontextmanager
async def scripted_engine(
    *,
    num_stages: int = 1,
    schedule: ScheduleConfig | None = None,
    num_blocks: int = 64,
    step_seconds: float = 0.0,
    poison_token_id: int | None = None,
    is_checking: bool = True,
    is_warm: bool = True,
    clock: Clock | None = None,
    measures: Measures | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[ScriptedEngine]:
    """Start an engine, wait for its warm-up step if is_warm, and shut it down at the end."""
    schedule = schedule or ScheduleConfig()
    config = CoordinatorConfig(
        schedule=schedule, cache=CacheConfig(block_size=4, num_blocks=num_blocks)
    )
    workers = scripted_pipeline(
        num_stages,
        step_seconds=step_seconds,
        poison_token_id=poison_token_id,
        is_checking=is_checking,
        sleep=sleep,
    )
    executor = await Executor.create(workers, config, scripted_folder(num_layers=num_stages))
    await executor.initialize(num_blocks)
    scheduler = Scheduler(
        schedule,
        num_stages=num_stages,
        num_blocks=num_blocks,
        block_size=4,
        max_model_len=MAX_MODEL_LEN,
        eos_token_ids=frozenset(),
    )
    changes: list[bool] = []
    loop = EngineLoop(scheduler, clock=clock, measures=measures, on_serving_changed=changes.append)
    run = asyncio.create_task(loop.run(executor), name="engine loop")
    try:
        if is_warm:
            await loop.wait_until_serving()
        yield ScriptedEngine(
            loop=loop,
            scheduler=scheduler,
            executor=executor,
            workers=workers,
            run=run,
            serving_changes=changes,
        )
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await executor.shutdown()
        for worker in workers:
            await worker.close()


def scripted_folder(*, num_layers: int) -> ModelFolder:
    """A model that exists in name only."""
    return ModelFolder(
        path=Path("scripted"),
        name="scripted",
        vocab_size=256,
        num_layers=num_layers,
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_ids=frozenset(),
        chat_template=None,
        bos_token=None,
        eos_token=None,
        dtype="float32",
    )
