"""The named health states of a worker."""

from common.health import LIVENESS, WORKER, WORKER_STEPS, HealthBoard
from worker_service.lifecycle import State
from worker_service.readiness import Readiness


def started() -> tuple[Readiness, HealthBoard]:
    """A worker that has just started, and its board."""
    board = HealthBoard()
    readiness = Readiness(board)
    readiness.started()
    return readiness, board


def states(board: HealthBoard) -> tuple[bool, bool, bool]:
    """What is told of the process, the worker, and its steps."""
    return tuple(board.is_serving(name) for name in (LIVENESS, WORKER, WORKER_STEPS))


def test_worker_serves_before_a_model_is_loaded() -> None:
    """Whoever waits for a ready worker in order to load it must not wait for ever."""
    _, board = started()
    assert states(board) == (True, True, False)


def test_steps_are_served_inside_a_group() -> None:
    """Only a member that is connected to its peers serves steps."""
    readiness, board = started()
    for state, serves_steps in ((State.JOINED, False), (State.SERVING, True), (State.WARM, False)):
        readiness.state_changed(state)
        assert states(board) == (True, True, serves_steps)


def test_hang_takes_back_all_but_liveness_until_it_is_over() -> None:
    """A hung member is not to be sent anything; it comes back when its kernel returns."""
    readiness, board = started()
    readiness.state_changed(State.SERVING)
    readiness.hung(is_hung=True)
    assert states(board) == (True, False, False)
    readiness.hung(is_hung=False)
    assert states(board) == (True, True, True)


def test_end_is_for_good() -> None:
    """Nothing that is still told of a worker that ends makes it serve again."""
    readiness, board = started()
    readiness.ended()
    readiness.state_changed(State.SERVING)
    readiness.hung(is_hung=False)
    assert states(board) == (True, False, False)
