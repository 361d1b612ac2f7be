"""When a step that all ranks were sent counts as settled."""

import asyncio
from asyncio import Future

from common.errors import StepFailed
from common.step import ExecutePending, Phase, SchedulerOutput, StepId, StepKey
from common.worker_api import Rank
from coordinator.executors.members import Member
from coordinator.executors.step_in_flight import StepInFlight
from tests.fakes.scripted_pipeline import scripted_pipeline

STEP_ID = StepId(epoch=1, generation=1, step=1)
ANSWER = ExecutePending(key=StepKey(step_id=STEP_ID, phase=Phase.EXECUTE))


class SentStep:
    """A step sent to two ranks whose replies the test gives, and how often it was settled."""

    def __init__(self) -> None:
        self.num_settled = 0
        output = SchedulerOutput(step_id=STEP_ID, base_step=0)
        self.step = StepInFlight(output, on_settled=self._count)
        self.replies: list[Future[ExecutePending]] = [
            asyncio.get_running_loop().create_future() for _ in range(2)
        ]
        members = [
            Member(rank=Rank(stage=stage), worker=worker)
            for stage, worker in enumerate(scripted_pipeline(2))
        ]
        self.step.wait_for(members, self.replies)

    def _count(self) -> None:
        self.num_settled += 1


async def test_the_last_reply_settles_a_step():
    """One of two replies is not enough, in whatever order they come."""
    sent = SentStep()
    sent.replies[1].set_result(ANSWER)
    await asyncio.sleep(0)
    assert (sent.step.is_settled, sent.num_settled) == (False, 0)
    sent.replies[0].set_result(ANSWER)
    await asyncio.sleep(0)
    assert (sent.step.is_settled, sent.num_settled) == (True, 1)
    assert sent.step.failure is None


async def test_the_first_failure_settles_a_step():
    """It names its rank; what the other ranks answer afterwards changes nothing."""
    sent = SentStep()
    sent.replies[1].set_exception(StepFailed("out of memory"))
    await asyncio.sleep(0)
    assert (sent.step.is_settled, sent.num_settled) == (True, 1)
    sent.replies[0].set_exception(StepFailed("too late"))
    await asyncio.sleep(0)
    assert str(sent.step.failure) == "stage 1 (scripted:1): out of memory"
    assert sent.num_settled == 1


async def test_a_cancelled_reply_is_a_failure():
    """Whoever cancels the reply of a rank does not leave the step waiting for ever."""
    sent = SentStep()
    sent.replies[0].cancel()
    await asyncio.sleep(0)
    assert str(sent.step.failure) == "stage 0 (scripted:0): the step was cancelled"
