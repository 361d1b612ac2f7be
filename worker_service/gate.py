"""What is decided before the device thread is asked: who may call what, and whose steps may run.

A generation is over from the moment its end is admitted here, however long the device thread takes
to get to it: its token is cancelled, so that nothing waits for it and nothing of it starts.
"""

from collections.abc import Callable

from common.channels.cancel import CancelToken
from common.errors import Fenced, WrongState
from common.step import StepId
from common.worker_api import Authority
from worker_service.claim import Claim
from worker_service.lifecycle import Call, Lifecycle


class Gate:
    """Admits calls by claim and lifecycle; `check` may be called from any thread.

    Everything else is called on the event loop, as is `on_over`: with the reason, whenever a
    generation is over.
    """

    def __init__(
        self, claim: Claim, lifecycle: Lifecycle, *, on_over: Callable[[str], None]
    ) -> None:
        self._claim = claim
        self._lifecycle = lifecycle
        self._on_over = on_over
        self._token = CancelToken()

    def check(self, authority: Authority, call: Call) -> None:
        """Raise Fenced for a coordinator that does not command, WrongState for a call out of order.

        A model is loaded inside a generation only over that of an earlier coordinator.
        """
        self._claim.check(authority)
        self._lifecycle.check(call)
        is_member = self._lifecycle.state.is_in_generation and self._claim.has_begun(authority)
        if call is Call.LOAD_MODEL and is_member:
            raise WrongState("load_model is not legal in a generation of your own: end it first")

    def check_step(self, step_id: StepId, call: Call) -> None:
        """Raise unless a step may be queued.

        Fenced when it is of another generation than the newest; WrongState when the lifecycle allows
        no steps; Cancelled when the generation is over.
        """
        if self._claim.is_past(step_id):
            raise self._foreign(step_id)
        self._lifecycle.check(call)
        if not self._claim.is_current(step_id):
            raise self._foreign(step_id)
        self._token.raise_if_cancelled()

    def is_current(self, step_id: StepId) -> bool:
        """Whether a step is of the newest generation, and that is not over."""
        return self._claim.is_current(step_id) and not self._token.is_cancelled

    def begin_generation(self, authority: Authority, generation: int) -> CancelToken:
        """Claim the worker for a generation and return its token; the one before it is over.

        Raises Fenced when it is not newer than those before.
        """
        self._claim.begin(authority, generation)
        self._end(f"generation {generation} of epoch {authority.epoch} began")
        self._token = CancelToken()
        return self._token

    def end_generation(self, generation: int) -> None:
        """End the newest generation if it has this number; `check` comes first."""
        if generation == self._claim.generation:
            self._end(f"generation {generation} of epoch {self._claim.epoch} ended")

    def end_earlier(self, authority: Authority) -> None:
        """Claim the worker for a coordinator; the generation of an earlier one is over."""
        before = self._claim.epoch
        self._claim.take(authority)
        if before != authority.epoch:
            self._end(f"epoch {authority.epoch} began")

    def close(self, reason: str) -> None:
        """Stop what the device thread does for the newest generation, without telling anyone."""
        self._token.cancel(reason)

    def _end(self, reason: str) -> None:
        self._token.cancel(reason)
        self._on_over(reason)

    def _foreign(self, step_id: StepId) -> Fenced:
        return Fenced(
            f"step {step_id.step} is of epoch {step_id.epoch} generation {step_id.generation}, "
            f"this worker serves epoch {self._claim.epoch} generation {self._claim.generation}"
        )
