"""What the loop counts of the requests and steps it serves, through the real executor."""

from common.config import ScheduleConfig
from coordinator.engine.measures import Measures
from coordinator.engine.request_times import RequestTimes
from tests.fakes.manual_clock import ManualClock
from tests.fakes.scripted_engine import scripted_engine
from tests.fakes.scripted_replica import request

NUM_TOKENS = 5


async def test_moments_of_a_request_come_in_their_order():
    """Queued, scheduled, first token, last token; the time between tokens is counted for each."""
    measures, times = Measures(), RequestTimes(arrived=0.0)
    async with scripted_engine(measures=measures, num_stages=2) as engine:
        stream = engine.loop.submit(request((1, 2, 3), max_tokens=NUM_TOKENS), times)
        assert times.queued is not None
        assert times.scheduled is None
        async for _ in stream:
            pass
    assert times.queued <= times.scheduled < times.first_token < times.last_token
    assert measures.requests.first_token.num_values == 1
    assert measures.requests.between_tokens.num_values == NUM_TOKENS - 1


async def test_steps_are_counted_on_every_rank():
    """As many as were answered, the warm-up step included, with all their tokens."""
    measures = Measures()
    async with scripted_engine(measures=measures, num_stages=2) as engine:
        async for _ in engine.loop.submit(request((1, 2, 3), max_tokens=NUM_TOKENS)):
            pass
        steps = measures.steps
        assert steps.num_tokens.num_values == engine.loop.last_step
        assert steps.num_tokens.total == 1 + 3 + NUM_TOKENS - 1
        assert [compute.num_values for compute in steps.compute.values()] == [
            engine.loop.last_step
        ] * 2


async def test_a_preempted_request_keeps_the_moment_it_ran_first():
    """Being admitted again is no second end of its time in the queue."""
    clock, times = ManualClock(), [RequestTimes(arrived=0.0) for _ in range(2)]
    schedule = ScheduleConfig(max_num_batched_tokens=64, admission_watermark=0.0)
    async with scripted_engine(clock=clock, schedule=schedule, num_blocks=8) as engine:
        streams = [
            engine.loop.submit(request((7,) * 8, max_tokens=12, request_id=str(index)), moments)
            for index, moments in enumerate(times)
        ]
        async for _ in streams[0]:
            clock.advance(1.0)
        async for _ in streams[1]:
            pass
        assert engine.scheduler.counters.num_preemptions > 0
    assert [moments.scheduled for moments in times] == [0.0, 0.0]
