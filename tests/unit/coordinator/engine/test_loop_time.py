"""Facts of the engine loop that are about time, in virtual time: nothing here waits."""

import asyncio

import pytest

from common.config import ScheduleConfig
from common.errors import Unavailable
from tests.fakes.scripted_engine import scripted_engine
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_replica import request
from tests.fakes.virtual_time import run_in_virtual_time

STEP_SECONDS = 0.02


async def _steps_a_second(*, num_stages: int, schedule: ScheduleConfig) -> float:
    """Steps a virtual second of a full pipeline whose every stage takes STEP_SECONDS a step."""
    async with scripted_engine(
        num_stages=num_stages, schedule=schedule, step_seconds=STEP_SECONDS, num_blocks=512
    ) as engine:
        for index in range(2 * num_stages):
            engine.loop.submit(request((index,), max_tokens=200, request_id=str(index)))
        await asyncio.sleep(1.0)
        first = engine.loop.last_step
        await asyncio.sleep(1.0)
        return engine.loop.last_step - first


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_stages_overlap(num_stages: int):
    """S stages of 20 ms finish 50 steps a second, however many stages a step passes."""
    rate = run_in_virtual_time(_steps_a_second(num_stages=num_stages, schedule=ScheduleConfig()))
    assert rate == pytest.approx(1 / STEP_SECONDS, rel=0.02)


@pytest.mark.parametrize(
    "schedule", [ScheduleConfig(pp_cohorts=1), ScheduleConfig(max_steps_in_flight=1)]
)
def test_one_cohort_does_not_overlap(schedule: ScheduleConfig):
    """With one cohort or one step in flight a step waits for all stages of the one before."""
    rate = run_in_virtual_time(_steps_a_second(num_stages=4, schedule=schedule))
    assert rate == pytest.approx(1 / (4 * STEP_SECONDS), abs=1)


def test_idle_workers_are_told_after_100_ms():
    """After the last request ended, a step without tokens tells the workers, 100 ms later."""

    async def run() -> None:
        async with scripted_engine() as engine:
            async for _ in engine.loop.submit(request((1,), max_tokens=3)):
                pass
            last_step = engine.loop.last_step
            assert engine.workers[0].known_handles
            await asyncio.sleep(0.09)
            assert engine.loop.last_step == last_step
            await asyncio.sleep(0.02)
            assert engine.loop.last_step == last_step + 1
            assert engine.workers[0].executed[-1].num_rows == 0
            assert engine.workers[0].known_handles == frozenset()
            await asyncio.sleep(10)
            assert engine.loop.last_step == last_step + 1

    run_in_virtual_time(run())


def test_drain_lets_running_requests_finish():
    """A drain refuses new requests at once, lets the running one end, and ends the loop."""

    async def run() -> None:
        async with scripted_engine(step_seconds=STEP_SECONDS) as engine:
            stream = engine.loop.submit(request((1,), max_tokens=20))
            await anext(stream)
            drain = asyncio.create_task(engine.loop.drain(5.0))
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="shutting down"):
                engine.loop.submit(request((2,), max_tokens=1, request_id="b"))
            token_ids = [token async for delta in stream for token in delta.token_ids]
            assert token_ids == list(scripted_tokens((1,), 20)[1:])
            await drain
            await engine.run
            assert engine.serving_changes == [True, False]

    run_in_virtual_time(run())


def test_drain_ends_what_does_not_finish_in_time():
    """When the drain time is over the remaining stream ends as Unavailable and its blocks are free."""

    async def run() -> float:
        async with scripted_engine(step_seconds=STEP_SECONDS) as engine:
            stream = engine.loop.submit(request((1,), max_tokens=400))
            await engine.loop.drain(0.5)
            with pytest.raises(Unavailable, match=r"drain of 0\.5 seconds"):
                async for _ in stream:
                    pass
            await engine.run
            assert engine.scheduler.num_free_blocks == 63
            return asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == pytest.approx(0.5, abs=0.05)
