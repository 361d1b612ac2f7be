"""A step on its way through a worker group, and the moment when nothing more is waited for."""

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any

from common.errors import ServiceError, WrongState
from common.step import ExecuteResult, ModelRunnerOutput, SchedulerOutput
from coordinator.executors.members import Member


class StepInFlight:
    """A step every rank was sent; it is settled by the last reply, or by the first one that failed.

    One whose sample phase waits for a grammar mask has one reply more, once the mask was sent.
    """

    def __init__(self, output: SchedulerOutput, *, on_settled: Callable[[], object]) -> None:
        """on_settled is called once, on the event loop."""
        self.output = output
        self.replies: tuple[Future[ExecuteResult], ...] = ()
        """In rank order."""
        self.failure: BaseException | None = None
        """The first error of any rank, which names the rank."""
        self._sampled: Future[ModelRunnerOutput] | None = None
        self._num_due = 0
        self._num_replies = 0
        self._on_settled = on_settled

    @property
    def is_settled(self) -> bool:
        """Whether its tokens can be had, or it has failed."""
        return self.failure is not None or 0 < self._num_due == self._num_replies

    @property
    def results(self) -> tuple[ExecuteResult, ...]:
        """What each rank answered in the end, in rank order, once all have."""
        results = [reply.result() for reply in self.replies]
        if self._sampled is not None:
            results[-1] = self._sampled.result()
        return tuple(results)

    def wait_for(
        self, members: Sequence[Member], replies: Sequence["Future[ExecuteResult]"]
    ) -> None:
        """Settle with these replies, without a task that waits for them."""
        self.replies = tuple(replies)
        self._num_due = len(replies) + self.output.grammar_mask_follows
        for member, reply in zip(members, replies, strict=True):
            reply.add_done_callback(lambda reply, member=member: self._note(member, reply))

    def wait_for_sample(self, member: Member, reply: "Future[ModelRunnerOutput]") -> None:
        """Settle with this reply too: the mask was sent."""
        self._sampled = reply
        reply.add_done_callback(lambda reply: self._note(member, reply))

    def _note(self, member: Member, reply: "Future[Any]") -> None:
        error = _error_of(reply)
        if self.is_settled:
            return  # a rank failed before
        if isinstance(error, ServiceError):
            error = member.blame(error)
        self.failure = error
        self._num_replies += 1
        if self.is_settled:
            self._on_settled()


def _error_of(reply: "Future[Any]") -> BaseException | None:
    if reply.cancelled():
        return WrongState("the step was cancelled")
    return reply.exception()
