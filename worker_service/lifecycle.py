"""What a worker may do when: the table of its states and calls.

Knows no device and no model; who performs a call asks first and advances afterwards, so that a call
that fails leaves the state as it was.
"""

from enum import Enum

from common.transitions import Transitions


class State(Enum):
    """How far a worker has come."""

    CREATED = "CREATED"
    DEVICE_READY = "DEVICE_READY"
    MODEL_LOADED = "MODEL_LOADED"
    CACHE_READY = "CACHE_READY"
    WARM = "WARM"
    JOINED = "JOINED"
    SERVING = "SERVING"
    SHUT_DOWN = "SHUT_DOWN"

    @property
    def is_in_generation(self) -> bool:
        """Whether a coordinator counts on this worker."""
        return self in (State.JOINED, State.SERVING)

    @property
    def is_warm(self) -> bool:
        """Whether a generation can be joined: parameters and cache stand."""
        return self is State.WARM or self.is_in_generation


class Call(Enum):
    """What may be asked of a worker, and what it does on its own on the way."""

    INIT_DEVICE = "init_device"
    LOAD_MODEL = "load_model"
    DROP_MODEL = "drop_model"
    DETERMINE_AVAILABLE_MEMORY = "determine_available_memory"
    GET_KV_CACHE_SPEC = "get_kv_cache_spec"
    INITIALIZE_KV_CACHE = "initialize_kv_cache"
    COMPILE_OR_WARM_UP = "compile_or_warm_up"
    BEGIN_GENERATION = "begin_generation"
    CONNECT_PEERS = "connect_peers"
    EXECUTE_MODEL = "execute_model"
    SAMPLE_TOKENS = "sample_tokens"
    END_GENERATION = "end_generation"
    SHUTDOWN = "shutdown"


WITH_DEVICE = (
    State.DEVICE_READY,
    State.MODEL_LOADED,
    State.CACHE_READY,
    State.WARM,
    State.JOINED,
    State.SERVING,
)
"""The states after InitDevice, in which a coordinator may start anew."""

NEXT: dict[tuple[State, Call], State] = {
    (State.CREATED, Call.INIT_DEVICE): State.DEVICE_READY,
    **{(state, Call.LOAD_MODEL): State.MODEL_LOADED for state in WITH_DEVICE},
    **{(state, Call.DROP_MODEL): State.DEVICE_READY for state in WITH_DEVICE},
    (State.MODEL_LOADED, Call.DETERMINE_AVAILABLE_MEMORY): State.MODEL_LOADED,
    (State.MODEL_LOADED, Call.GET_KV_CACHE_SPEC): State.MODEL_LOADED,
    (State.MODEL_LOADED, Call.INITIALIZE_KV_CACHE): State.CACHE_READY,
    (State.CACHE_READY, Call.COMPILE_OR_WARM_UP): State.WARM,
    **{
        (state, Call.BEGIN_GENERATION): State.JOINED if state.is_warm else state
        for state in WITH_DEVICE
    },
    (State.JOINED, Call.CONNECT_PEERS): State.SERVING,
    (State.SERVING, Call.EXECUTE_MODEL): State.SERVING,
    (State.SERVING, Call.SAMPLE_TOKENS): State.SERVING,
    (State.JOINED, Call.END_GENERATION): State.WARM,
    (State.SERVING, Call.END_GENERATION): State.WARM,
    **{(state, Call.SHUTDOWN): State.SHUT_DOWN for state in State},
}


class Lifecycle:
    """The state of one worker; written by its device thread alone."""

    def __init__(self) -> None:
        self._transitions = Transitions(NEXT)
        self._state = State.CREATED

    @property
    def state(self) -> State:
        """The state now; may be read from any thread."""
        return self._state

    def check(self, call: Call) -> None:
        """Raise WrongState, naming state and call, unless the call is legal now."""
        self._transitions.next(self._state, call)

    def advance(self, call: Call) -> None:
        """Enter the state that follows the call; raises WrongState when it is not legal now."""
        self._state = self._transitions.next(self._state, call)
