"""A worker's state table."""

import pytest

from common.errors import WrongState
from worker_service.lifecycle import Call, Lifecycle, State

WAY_TO_SERVING = (
    (Call.INIT_DEVICE, State.DEVICE_READY),
    (Call.LOAD_MODEL, State.MODEL_LOADED),
    (Call.DETERMINE_AVAILABLE_MEMORY, State.MODEL_LOADED),
    (Call.GET_KV_CACHE_SPEC, State.MODEL_LOADED),
    (Call.INITIALIZE_KV_CACHE, State.CACHE_READY),
    (Call.COMPILE_OR_WARM_UP, State.WARM),
    (Call.BEGIN_GENERATION, State.JOINED),
    (Call.CONNECT_PEERS, State.SERVING),
)


def serving() -> Lifecycle:
    """A lifecycle that took the whole way."""
    lifecycle = Lifecycle()
    for call, _ in WAY_TO_SERVING:
        lifecycle.advance(call)
    return lifecycle


def test_calls_in_order_lead_to_serving() -> None:
    """The calls of a start, in order, end in SERVING, and each enters its own state."""
    lifecycle = Lifecycle()
    for call, state in WAY_TO_SERVING:
        lifecycle.advance(call)
        assert lifecycle.state is state


def test_steps_do_not_leave_serving() -> None:
    """Both phases of a step are legal in SERVING and stay there."""
    lifecycle = serving()
    lifecycle.advance(Call.EXECUTE_MODEL)
    lifecycle.advance(Call.SAMPLE_TOKENS)
    assert lifecycle.state is State.SERVING


def test_ended_generation_may_be_followed_by_another() -> None:
    """EndGeneration leads back to WARM, from where a generation may begin."""
    lifecycle = serving()
    lifecycle.advance(Call.END_GENERATION)
    assert lifecycle.state is State.WARM
    lifecycle.advance(Call.BEGIN_GENERATION)
    assert lifecycle.state is State.JOINED


@pytest.mark.parametrize(
    "call", [call for call in Call if call not in (Call.INIT_DEVICE, Call.SHUTDOWN)]
)
def test_new_worker_refuses_everything_but_init_device(call: Call) -> None:
    """Before InitDevice every other call is refused by name and changes nothing."""
    lifecycle = Lifecycle()
    with pytest.raises(WrongState, match=f"{call.value}.*CREATED"):
        lifecycle.check(call)
    assert lifecycle.state is State.CREATED


def test_device_is_bound_once() -> None:
    """A second InitDevice is refused."""
    lifecycle = Lifecycle()
    lifecycle.advance(Call.INIT_DEVICE)
    with pytest.raises(WrongState):
        lifecycle.advance(Call.INIT_DEVICE)


HELD = {
    State.DEVICE_READY: State.DEVICE_READY,
    State.MODEL_LOADED: State.MODEL_LOADED,
    State.CACHE_READY: State.CACHE_READY,
    State.WARM: State.JOINED,
    State.JOINED: State.JOINED,
    State.SERVING: State.JOINED,
}


@pytest.mark.parametrize("state", HELD)
def test_generation_may_begin_in_every_state_after_init_device(state: State) -> None:
    """A worker that is warm joins it; the others stay what they are."""
    assert after(state, Call.BEGIN_GENERATION) is HELD[state]


@pytest.mark.parametrize("state", HELD)
def test_model_may_be_loaded_in_every_state_after_init_device(state: State) -> None:
    """The model held is dropped first, so that a load that fails leaves none."""
    assert after(state, Call.DROP_MODEL) is State.DEVICE_READY
    assert after(state, Call.LOAD_MODEL) is State.MODEL_LOADED


def after(state: State, call: Call) -> State:
    """The state that follows a call."""
    lifecycle = Lifecycle()
    lifecycle._state = state
    lifecycle.advance(call)
    return lifecycle.state


@pytest.mark.parametrize("state", State)
def test_shutdown_is_always_legal(state: State) -> None:
    """Every state can be left by shutting down, and nothing but shutdown follows."""
    lifecycle = Lifecycle()
    lifecycle._state = state
    lifecycle.advance(Call.SHUTDOWN)
    for call in Call:
        if call is not Call.SHUTDOWN:
            with pytest.raises(WrongState):
                lifecycle.check(call)


@pytest.mark.parametrize("state", State)
def test_only_joined_and_serving_are_in_a_generation(state: State) -> None:
    """A coordinator counts on a worker from BeginGeneration to EndGeneration."""
    assert state.is_in_generation == (state.name in ("JOINED", "SERVING"))
