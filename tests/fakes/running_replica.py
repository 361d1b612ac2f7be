"""A replica that serves token ids: real workers, scheduler and loop, without ports or text."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from common.clock import SystemClock
from common.config import CoordinatorConfig
from common.model_folder import read_model_folder
from common.requests import Request, SamplingParams, StopParams
from coordinator.engine.replica import Replica
from coordinator.executors.deadlines import DEFAULT_RULES, DeadlineRules
from coordinator.executors.launch import worker_fleet

GREEDY = SamplingParams(temperature=0.0)


@asynccontextmanager
async def running_replica(
    config: CoordinatorConfig, *, deadline_rules: DeadlineRules = DEFAULT_RULES
) -> AsyncIterator[Replica]:
    """Bring a replica up on config.model.model, a folder, and end it afterwards."""
    replica = Replica(
        config,
        read_model_folder(Path(config.model.model)),
        fleet=worker_fleet(config),
        clock=SystemClock(),
        deadline_rules=deadline_rules,
    )
    try:
        await replica.start()
        run = asyncio.create_task(replica.run(), name="replica")
        try:
            await replica.loop.wait_until_serving()
            yield replica
        finally:
            await replica.drain(0)
            await run
    finally:
        await replica.shutdown()


async def generate(
    replica: Replica,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    sampling: SamplingParams = GREEDY,
    concurrency: int | None = None,
) -> list[tuple[int, ...]]:
    """num_tokens tokens for each prompt, past any end of sequence; all at once unless told."""
    seats = asyncio.Semaphore(concurrency or len(prompts))

    async def one(index: int) -> tuple[int, ...]:
        request = Request(
            request_id=f"prompt-{index}",
            prompt_token_ids=tuple(prompts[index]),
            sampling=sampling,
            stopping=StopParams(max_tokens=num_tokens, ignore_eos=True),
        )
        async with seats, aclosing(replica.loop.submit(request)) as stream:
            return tuple([token async for delta in stream for token in delta.token_ids])

    async with asyncio.TaskGroup() as tasks:
        texts = [tasks.create_task(one(index)) for index in range(len(prompts))]
    return [text.result() for text in texts]
