"""Answers of the last steps of a generation, so that a step sent again is answered and not run again.

Lives on the event loop. Knows neither how a step runs nor who asks.
"""

from asyncio import Future, get_running_loop
from collections.abc import Callable
from typing import Any

from common.errors import StepFailed
from common.step import ExecutePending, ExecuteResult, ModelRunnerOutput, Phase, StepId, StepKey


class ReplyCache:
    """Futures of answers by step and phase, for the steps that run and the `num_steps` last ones.

    Whoever asks gets a future of its own: cancelling it gives up that answer alone. What was refused
    before anything ran is not kept, since the same key may come rightly later; what failed is.
    """

    def __init__(self) -> None:
        self._num_steps = 0
        self._newest = 0
        self._answers: dict[StepKey, Future[Any]] = {}

    def begin(self, *, num_steps: int) -> None:
        """Forget everything, and keep the answers of so many steps from now on."""
        self._num_steps, self._newest = num_steps, 0
        self._answers.clear()

    def answer_execute(
        self, step_id: StepId, run: "Callable[[], Future[ExecuteResult]]"
    ) -> "Future[ExecuteResult]":
        """The answer of an execute phase: the one kept, or else that of `run`, which is kept."""
        key = StepKey(step_id=step_id, phase=Phase.EXECUTE)
        if key not in self._answers:
            self._keep(key, run())
        return _follow(self._answers[key])

    def answer_sample(
        self, step_id: StepId, run: "Callable[[], Future[ModelRunnerOutput]]"
    ) -> "Future[ModelRunnerOutput]":
        """The answer of a sample phase, likewise; one that no execute phase precedes is not kept."""
        key = StepKey(step_id=step_id, phase=Phase.SAMPLE)
        if StepKey(step_id=step_id, phase=Phase.EXECUTE) not in self._answers:
            return run()
        if key not in self._answers:
            self._keep(key, run())
        return _follow(self._answers[key])

    def answer_both(
        self, step_id: StepId, run: "Callable[[], Future[ExecuteResult]]"
    ) -> "Future[ExecuteResult]":
        """The answer of both phases at once: kept as the sample phase's, and in part as the other's."""
        key = StepKey(step_id=step_id, phase=Phase.SAMPLE)
        execute_key = StepKey(step_id=step_id, phase=Phase.EXECUTE)
        if key not in self._answers:
            self._keep(key, run())
        if execute_key not in self._answers:
            self._keep(execute_key, _follow(self._answers[key], _execute_part))
        return _follow(self._answers[key])

    def _keep(self, key: StepKey, future: "Future[Any]") -> None:
        self._answers[key] = future
        future.add_done_callback(lambda done: self._settle(key, done))

    def _settle(self, key: StepKey, done: "Future[Any]") -> None:
        error = done.exception()
        if self._answers.get(key) is not done:
            return  # of an earlier generation
        if error is not None and not isinstance(error, StepFailed):
            del self._answers[key]
            return
        self._newest = max(self._newest, key.step_id.step)
        oldest = self._newest - self._num_steps + 1
        for past in [each for each in self._answers if each.step_id.step < oldest]:
            del self._answers[past]


def _execute_part(answer: ExecuteResult) -> ExecuteResult:
    """What the execute phase alone would have answered."""
    if isinstance(answer, ModelRunnerOutput) and answer.key.phase is Phase.SAMPLE:
        return ExecutePending(key=StepKey(step_id=answer.key.step_id, phase=Phase.EXECUTE))
    return answer


def _whole(answer: Any) -> Any:
    return answer


def _follow(kept: "Future[Any]", view: Callable[[Any], Any] = _whole) -> "Future[Any]":
    """A future that ends as the kept one does, with a view of its answer."""
    follower: Future[Any] = get_running_loop().create_future()

    def settle(done: "Future[Any]") -> None:
        if follower.done():
            return
        error = done.exception()
        if error is None:
            follower.set_result(view(done.result()))
        else:
            follower.set_exception(error)

    kept.add_done_callback(settle)
    return follower
