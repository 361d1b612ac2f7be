"""The one seam between the two services: all that the coordinator knows of a worker.

The in-process worker, the gRPC client and the scripted test double implement `WorkerApi` and pass
one contract suite. Every call may raise a `ServiceError`; a call on a worker that is gone raises
`WorkerLost`.
"""

from asyncio import Future
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from common.config import NO_QUANTIZATION
from common.errors import ServiceError
from common.speculation import SpeculationConfig
from common.step import (
    ExecuteResult,
    GrammarMask,
    IntermediateTensors,
    ModelRunnerOutput,
    SchedulerOutput,
    StepId,
)

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rank:
    """One worker's place: full copy of the model, pipeline stage, tensor-parallel index."""

    replica: int = 0
    stage: int = 0
    tensor_parallel: int = 0

    def __str__(self) -> str:
        return f"stage {self.stage}" + (
            f" tp {self.tensor_parallel}" if self.tensor_parallel else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shape of a replica."""

    num_stages: int = 1
    tensor_parallel_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Who commands: a random id of the coordinator process and its incarnation (epoch, from 1)."""

    coordinator_id: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadModel:
    """Which slice of which model to read: layers [first_layer, end_layer), sizes in tokens and sequences.

    dtype is "float32", "bfloat16", "float16" or "auto" (what the checkpoint holds). quantization is
    "int8" or "int4", the form of the linear layers' weights, or "none": as in the checkpoint.
    speculation: who proposes draft tokens on the last stage; every stage has to know that some come.
    """

    model: str
    dtype: str
    rank: Rank
    layout: Layout
    first_layer: int
    end_layer: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    quantization: str = NO_QUANTIZATION
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What was read: bytes held as parameters, bytes and tensors read, digest, dtype, seconds.

    table_windows: of each block table of the model, the sliding window of its layers in tokens; 0: they
    see everything. The same on every stage.
    """

    parameter_bytes: int
    bytes_read: int
    tensors_read: int
    weights_digest: str
    dtype: str
    seconds: float
    table_windows: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStage:
    """The slice of a model a worker holds; num_blocks 0 and kv_id "" before the cache is allocated."""

    request: LoadModel
    report: LoadReport
    num_blocks: int = 0
    kv_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker process says of itself; memory in bytes, epoch and generation 0 when none yet.

    held_stage None: no model is loaded. num_loads: how often this process has read parameters.
    quantizations: what LoadModel.quantization may be besides "none". logits_processors: names of its
    custom logits processors.
    """

    protocol_min: int
    protocol_max: int
    build: str
    incarnation: str
    device: str
    memory_bytes: int
    dtypes: tuple[str, ...]
    tensor_endpoint: str
    state: str
    epoch: int = 0
    generation: int = 0
    num_threads: int = 0
    held_stage: HeldStage | None = None
    num_loads: int = 0
    quantizations: tuple[str, ...] = ()
    logits_processors: tuple[str, ...] = ()


class DevicePhase(Enum):
    """What a worker's device thread is doing; only COMPUTE can hang."""

    IDLE = "IDLE"
    WAIT_INPUT = "WAIT_INPUT"
    COMPUTE = "COMPUTE"
    SENDING = "SENDING"
    COMPILING = "COMPILING"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivity:
    """What a worker is doing, told by its event loop; step 0 when it has run none.

    waiting_on: the rank whose tensors it waits for or sends to. is_hung: COMPUTE has outlived the
    step's deadline. num_prefill_tokens: computed for prompts, and again after preemptions, so far.
    """

    state: str
    epoch: int
    generation: int
    step: int
    phase: DevicePhase
    seconds_in_phase: float
    waiting_on: Rank | None = None
    kv_id: str = ""
    is_hung: bool = False
    num_prefill_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """How much the KV cache may use: bytes on a CPU, a share of device memory on a GPU."""

    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """What the profile run found: bytes for the KV cache, bytes of activations, seconds."""

    kv_cache_bytes: int
    activation_bytes: int
    profile_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheGroup:
    """So many layers of one kind of which a block holds keys and values; bytes_per_block counts those."""

    kind: str
    num_layers: int
    num_kv_heads: int
    head_size: int
    bytes_per_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """What the KV cache of a stage is made of: a block holds keys and values of all groups."""

    block_size: int
    groups: tuple[KVCacheGroup, ...]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all groups."""
        return sum(group.bytes_per_block for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheReport:
    """The cache stands: random id of its contents and the bytes allocated."""

    kv_id: str
    kv_cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginGeneration:
    """Starts a generation on one rank; at most max_steps_in_flight steps will be unanswered."""

    generation: int
    rank: Rank
    layout: Layout
    max_steps_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReport:
    """Ids of the process, of its KV contents and of its parameters."""

    incarnation: str
    kv_id: str
    weights_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A worker's place and the HOST:PORT of its tensor socket."""

    rank: Rank
    tensor_endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecuteModel:
    """One execute phase: the step, the previous stage's tensors when inline, and how to answer.

    deadline: seconds of COMPUTE after which the worker counts as hung; None: no limit.
    """

    scheduler_output: SchedulerOutput
    intermediate_tensors: IntermediateTensors | None = None
    inline_reply: bool = False
    deadline: float | None = None


class WorkerApi(Protocol):
    """One rank, wherever it runs."""

    address: str
    """HOST:PORT of its gRPC port, empty inside this process."""

    async def describe(self) -> WorkerInfo:
        """Say what the process is; legal in every state."""
        ...

    async def init_device(self, authority: Authority) -> str:
        """Bind the device and return its name; once per process."""
        ...

    async def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Read this stage's parameters."""
        ...

    async def determine_available_memory(
        self, authority: Authority, budget: MemoryBudget
    ) -> MemoryReport:
        """Run the largest step once and say what is left for the KV cache."""
        ...

    async def get_kv_cache_spec(self, authority: Authority) -> KVCacheSpec:
        """Say what the KV cache of this stage is made of."""
        ...

    async def initialize_kv_cache(self, authority: Authority, num_blocks: int) -> KVCacheReport:
        """Allocate num_blocks blocks, the null block 0 included."""
        ...

    async def compile_or_warm_up(self, authority: Authority) -> float:
        """Run representative steps and return the seconds they took."""
        ...

    async def begin_generation(
        self, authority: Authority, request: BeginGeneration
    ) -> GenerationReport:
        """Forget all request state and join a generation."""
        ...

    async def connect_peers(
        self, authority: Authority, generation: int, peers: tuple[Peer, ...]
    ) -> None:
        """Open the tensor channels of the generation."""
        ...

    async def end_generation(self, authority: Authority, generation: int) -> None:
        """Release the worker from its group."""
        ...

    async def execute_model(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase, the plain form."""
        ...

    async def sample_tokens(
        self, step_id: StepId, mask: GrammarMask | None = None
    ) -> ModelRunnerOutput:
        """Run the sample phase, the plain form; last stage only.

        mask: given exactly when the step said that one follows.
        """
        ...

    def submit_step(
        self, output: SchedulerOutput, *, sample: bool, deadline: float | None = None
    ) -> "Future[ExecuteResult]":
        """Queue a step behind those already submitted, without waiting: the hot path.

        With `sample` the sample phase follows at once and the one result is a ModelRunnerOutput.
        Steps run in the order of the calls; the future fails with the step's error. `deadline`:
        seconds of COMPUTE after which the worker counts as hung. A step submitted again, also while
        the first one runs, is answered by the same result.
        """
        ...

    def submit_sample(self, step_id: StepId, mask: GrammarMask) -> "Future[ModelRunnerOutput]":
        """Queue the sample phase of a step that was submitted without it, as `submit_step` does."""
        ...

    def watch_status(self, *, interval: float) -> AsyncIterator[WorkerActivity]:
        """What the worker is doing: at every change of state, and at least every interval seconds.

        Raises WorkerLost when it is gone.
        """
        ...

    def on_lost(self, callback: Callable[[ServiceError], None]) -> None:
        """Call back once when the worker is found to be gone; at once when it is already.

        The error is Fenced when a newer coordinator commands it. Callbacks run on the event loop.
        """
        ...

    async def close(self) -> None:
        """Let go of the worker: connections, and the process when this object started it."""
        ...
