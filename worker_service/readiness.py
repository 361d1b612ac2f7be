"""Which of a worker's named health states hold, from what became of its device thread."""

from common.health import LIVENESS, WORKER, WORKER_STEPS, HealthBoard
from worker_service.lifecycle import State


class Readiness:
    """Keeps the health board of a worker process; used on the event loop.

    The process is alive as long as it answers. The worker serves while its device thread is neither
    hung nor dead, also before a model is loaded; steps, while it is also a member of a group.
    """

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._is_member = False
        self._is_hung = False
        self._is_over = False

    def started(self) -> None:
        """Say for the first time how things stand."""
        self._board.set(LIVENESS, serving=True)
        self._tell()

    def state_changed(self, state: State) -> None:
        """Note the state the worker has entered."""
        self._is_member = state is State.SERVING
        self._tell()

    def hung(self, is_hung: bool) -> None:  # noqa: FBT001 - a state, set by value
        """Note that the device thread hangs, or is back."""
        self._is_hung = is_hung
        self._tell()

    def ended(self) -> None:
        """Note that the worker serves nobody any more."""
        self._is_over = True
        self._tell()

    def _tell(self) -> None:
        is_able = not (self._is_hung or self._is_over)
        self._board.set(WORKER, is_able)
        self._board.set(WORKER_STEPS, is_able and self._is_member)
