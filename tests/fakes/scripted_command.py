"""Which calls a scripted worker takes in which state, and from which coordinator."""

from common.errors import Fenced, WrongState
from common.step import StepId
from common.worker_api import Authority

IN_GENERATION = ("JOINED", "SERVING")
HOLDING = ("MODEL_LOADED", "CACHE_READY", "WARM")
NEXT_STATE = {
    ("CREATED", "init_device"): "DEVICE_READY",
    ("DEVICE_READY", "load_model"): "MODEL_LOADED",
    **{(state, "load_model"): "MODEL_LOADED" for state in (*HOLDING, *IN_GENERATION)},
    ("MODEL_LOADED", "determine_available_memory"): "MODEL_LOADED",
    ("MODEL_LOADED", "get_kv_cache_spec"): "MODEL_LOADED",
    ("MODEL_LOADED", "initialize_kv_cache"): "CACHE_READY",
    ("CACHE_READY", "compile_or_warm_up"): "WARM",
    ("WARM", "begin_generation"): "JOINED",
    ("JOINED", "begin_generation"): "JOINED",
    ("SERVING", "begin_generation"): "JOINED",
    ("JOINED", "connect_peers"): "SERVING",
    ("SERVING", "end_generation"): "WARM",
    ("JOINED", "end_generation"): "WARM",
    ("SERVING", "run_step"): "SERVING",
}


class ScriptedCommand:
    """The state of a worker and who commands it."""

    def __init__(self) -> None:
        self.state = "CREATED"
        self.authority = Authority(coordinator_id="", epoch=0)
        self.generation = 0

    def take(self, authority: Authority, call: str) -> None:
        """Perform a control call; raises Fenced or WrongState, with nothing changed."""
        is_usurper = authority.epoch == self.authority.epoch and authority != self.authority
        if authority.epoch < self.authority.epoch or is_usurper:
            raise Fenced(f"epoch {authority.epoch} does not command epoch {self.authority.epoch}")
        is_same_group = self.state in IN_GENERATION and authority == self.authority
        if call == "load_model" and is_same_group:
            raise WrongState(f"load_model is not legal in state {self.state}")
        self._move(call)
        if authority != self.authority:
            self.authority, self.generation = authority, 0

    def begin(self, authority: Authority, generation: int) -> None:
        """Join a generation, which must be newer than those before it."""
        newest = self.generation if authority == self.authority else 0
        if generation <= newest:
            raise Fenced(f"generation {generation} is not newer than {newest}")
        self.take(authority, "begin_generation")
        self.generation = generation

    def check_step(self, step_id: StepId) -> None:
        """Raise Fenced for a step of another generation, WrongState outside SERVING."""
        if (step_id.epoch, step_id.generation) != (self.authority.epoch, self.generation):
            raise Fenced(f"step {step_id} is not of generation {self.generation}")
        self._move("run_step")

    def _move(self, call: str) -> None:
        following = NEXT_STATE.get((self.state, call))
        if following is None:
            raise WrongState(f"{call} is not legal in state {self.state}")
        self.state = following
