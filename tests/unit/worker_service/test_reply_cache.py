"""What a step that is sent again is answered."""

import asyncio
from asyncio import Future

import pytest

from common.errors import NeedResync, StepFailed
from common.step import ExecutePending, ModelRunnerOutput, Phase, StepKey
from tests.fakes.manual_steps import step_id
from worker_service.reply_cache import ReplyCache


class Runs:
    """Stands for the device thread: every run is a future the test settles."""

    def __init__(self) -> None:
        self.started: list[Future] = []

    def __call__(self) -> Future:
        """Start a run."""
        self.started.append(asyncio.get_running_loop().create_future())
        return self.started[-1]


def key(step: int, phase: Phase) -> StepKey:
    """A phase of a step."""
    return StepKey(step_id=step_id(step), phase=phase)


def pending(step: int) -> ExecutePending:
    """The last stage's answer to an execute phase."""
    return ExecutePending(key=key(step, Phase.EXECUTE))


def sampled(step: int) -> ModelRunnerOutput:
    """The last stage's answer to a sample phase, or to both at once."""
    return ModelRunnerOutput(key=key(step, Phase.SAMPLE))


@pytest.fixture
def cache() -> ReplyCache:
    """Keeps the last two steps."""
    cache = ReplyCache()
    cache.begin(num_steps=2)
    return cache


async def test_step_sent_again_is_not_run_again(cache: ReplyCache) -> None:
    """While it runs and afterwards, whoever sends it gets the one answer."""
    runs = Runs()
    early = [cache.answer_execute(step_id(1), runs) for _ in range(2)]
    runs.started[0].set_result(pending(1))
    answers = [await each for each in (*early, cache.answer_execute(step_id(1), runs))]
    assert len(runs.started) == 1
    assert all(answer is answers[0] for answer in answers)


async def test_giving_up_an_answer_leaves_those_of_others(cache: ReplyCache) -> None:
    """A cancelled future cancels neither the run nor another's answer."""
    runs = Runs()
    first, second = (cache.answer_execute(step_id(1), runs) for _ in range(2))
    first.cancel()
    runs.started[0].set_result(pending(1))
    assert await second == pending(1)


async def test_what_was_refused_may_come_again(cache: ReplyCache) -> None:
    """A refusal is told to everyone who waits for it, and then the key is free."""
    runs = Runs()
    early = [cache.answer_both(step_id(1), runs) for _ in range(2)]
    runs.started[0].set_exception(NeedResync("not yet"))
    for each in early:
        with pytest.raises(NeedResync):
            await each
    again = cache.answer_both(step_id(1), runs)
    runs.started[1].set_result(sampled(1))
    assert (await again).key.phase is Phase.SAMPLE


async def test_what_failed_is_kept(cache: ReplyCache) -> None:
    """A step that failed while it ran is not run a second time."""
    runs = Runs()
    first = cache.answer_execute(step_id(1), runs)
    runs.started[0].set_exception(StepFailed("out of memory"))
    for each in (first, cache.answer_execute(step_id(1), runs)):
        with pytest.raises(StepFailed, match="out of memory"):
            await each
    assert len(runs.started) == 1


async def test_both_phases_answer_either(cache: ReplyCache) -> None:
    """After a run of both, the execute phase alone yields no token, and the sample phase the token."""
    runs = Runs()
    both = cache.answer_both(step_id(1), runs)
    executed = cache.answer_execute(step_id(1), runs)
    runs.started[0].set_result(sampled(1))
    assert await executed == pending(1)
    assert await cache.answer_sample(step_id(1), runs) is await both
    assert len(runs.started) == 1


async def test_both_phases_of_a_stage_before_the_last_are_one(cache: ReplyCache) -> None:
    """Where the run of both is the execute phase alone, that is what either is answered."""
    runs = Runs()
    answer = ModelRunnerOutput(key=key(1, Phase.EXECUTE))
    both = cache.answer_both(step_id(1), runs)
    runs.started[0].set_result(answer)
    assert await both is answer
    assert await cache.answer_execute(step_id(1), runs) is answer


async def test_sample_before_execute_hides_nothing(cache: ReplyCache) -> None:
    """A sample phase sent too early is run for its refusal, and the step behind it is run too."""
    runs = Runs()
    early = cache.answer_sample(step_id(1), runs)
    both = cache.answer_both(step_id(1), runs)
    assert len(runs.started) == 2
    runs.started[0].set_exception(NeedResync("too early"))
    runs.started[1].set_result(sampled(1))
    with pytest.raises(NeedResync):
        await early
    assert (await both).key.phase is Phase.SAMPLE


async def test_older_steps_are_forgotten(cache: ReplyCache) -> None:
    """Only the last steps are kept; a refused step far ahead forgets none of them."""
    runs = Runs()
    for step in (1, 2, 3):
        answer = cache.answer_both(step_id(step), runs)
        runs.started[-1].set_result(sampled(step))
        await answer
    ahead = cache.answer_both(step_id(99), runs)
    runs.started[-1].set_exception(NeedResync("a gap"))
    with pytest.raises(NeedResync):
        await ahead
    for step in (2, 3):
        await cache.answer_both(step_id(step), runs)
    assert len(runs.started) == 4
    cache.answer_both(step_id(1), runs)
    assert len(runs.started) == 5


async def test_new_generation_forgets_everything(cache: ReplyCache) -> None:
    """An answer that comes after its generation ended is kept for nobody."""
    runs = Runs()
    answer = cache.answer_both(step_id(1), runs)
    cache.begin(num_steps=2)
    runs.started[0].set_result(sampled(1))
    await answer
    cache.answer_both(step_id(1), runs)
    assert len(runs.started) == 2
