"""Everything the device thread owns: lifecycle, claim, model runner and the generation's steps.

Its methods are the calls of `WorkerApi` without await: they block, and run on the device thread in
the order they were made. What is said to be safe from any thread reads one value.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from uuid import uuid4

import torch

from common.channels.channel import TensorChannels
from common.clock import Clock
from common.config import WorkerConfig
from common.config_loader import cache_folder
from common.errors import Fenced, InvalidRequest
from common.logs import bind_log_context, get_logger
from common.model_folder import resolve_model
from common.step import ExecuteResult, ModelRunnerOutput, StepId
from common.worker_api import (
    PROTOCOL_VERSION,
    Authority,
    BeginGeneration,
    ExecuteModel,
    GenerationReport,
    KVCacheReport,
    KVCacheSpec,
    LoadModel,
    LoadReport,
    MemoryBudget,
    MemoryReport,
    Peer,
    WorkerInfo,
)
from worker_service.claim import Claim
from worker_service.device import Device, bind
from worker_service.lifecycle import Call, Lifecycle, State
from worker_service.runner.model_runner import ModelRunner
from worker_service.stage_links import StageLinks
from worker_service.step_executor import StepExecutor
from worker_service.step_guard import StepGuard

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedModel:
    """A runner with parameters, and what it was told to load."""

    runner: ModelRunner
    request: LoadModel
    report: LoadReport


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """The generation this rank is a member of."""

    number: int
    links: StageLinks
    steps: StepExecutor


class DeviceSession:
    """One rank as the device thread sees it.

    Every call is checked before anything happens: Fenced when another coordinator commands,
    WrongState when the lifecycle does not allow it. A call that fails leaves the state as it was.
    `on_state` is called on the device thread after each change of state; `make_runner` takes what
    ModelRunner takes.
    """

    def __init__(
        self,
        config: WorkerConfig,
        device: Device,
        channels: TensorChannels,
        *,
        clock: Clock,
        on_state: Callable[[State], None],
        make_runner: Callable[..., ModelRunner] = ModelRunner,
    ) -> None:
        self.incarnation = uuid4().hex
        self._config = config
        self._device = device
        self._channels = channels
        self._clock = clock
        self._on_state = on_state
        self._make_runner = make_runner
        self._lifecycle = Lifecycle()
        self._claim = Claim()
        self._model: _LoadedModel | None = None
        self._kv_id = ""
        self._generation: _Generation | None = None

    def describe(self) -> WorkerInfo:
        """Say what the process is; safe from any thread."""
        return WorkerInfo(
            protocol_min=PROTOCOL_VERSION,
            protocol_max=PROTOCOL_VERSION,
            build=version("stepwire"),
            incarnation=self.incarnation,
            device=self._device.name,
            memory_bytes=self._device.memory_bytes,
            dtypes=self._device.dtypes,
            tensor_endpoint=self._channels.endpoint,
            state=self._lifecycle.state.value,
            epoch=self._claim.epoch,
            generation=self._claim.generation,
            num_threads=self._config.threads or torch.get_num_threads(),
        )

    def init_device(self, authority: Authority) -> str:
        """Bind the device to this thread."""
        with self._control(Call.INIT_DEVICE, authority):
            bind(self._device, num_threads=self._config.threads)
        return self._device.name

    def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Read this stage's parameters."""
        with self._control(Call.LOAD_MODEL, authority):
            bind_log_context(rank=str(request.rank))
            folder = resolve_model(self._config.model or request.model, cache=cache_folder())
            runner = self._make_runner(
                device=self._device.torch_device, folder=folder, request=request
            )
            report = runner.load_model()
            self._model = _LoadedModel(runner=runner, request=request, report=report)
        logger.info("model loaded", extra={"folder": str(folder), **asdict(report)})
        return report

    def determine_available_memory(
        self, authority: Authority, budget: MemoryBudget
    ) -> MemoryReport:
        """Run the largest step once and say what is left for the KV cache."""
        with self._control(Call.DETERMINE_AVAILABLE_MEMORY, authority):
            return self._loaded.runner.profile_run(budget)

    def get_kv_cache_spec(self, authority: Authority) -> KVCacheSpec:
        """Say what the KV cache of this stage is made of."""
        with self._control(Call.GET_KV_CACHE_SPEC, authority):
            return self._loaded.runner.kv_cache_spec()

    def initialize_kv_cache(self, authority: Authority, num_blocks: int) -> KVCacheReport:
        """Allocate the KV cache."""
        with self._control(Call.INITIALIZE_KV_CACHE, authority):
            num_bytes = self._loaded.runner.initialize_kv_cache(num_blocks)
            self._kv_id = uuid4().hex
        return KVCacheReport(kv_id=self._kv_id, kv_cache_bytes=num_bytes)

    def compile_or_warm_up(self, authority: Authority) -> float:
        """Run representative steps and return the seconds they took."""
        with self._control(Call.COMPILE_OR_WARM_UP, authority):
            seconds = self._loaded.runner.warm_up()
            # A full collection over torch and the model takes as long as several steps.
            gc.collect()
            gc.freeze()
        return seconds

    def begin_generation(self, authority: Authority, request: BeginGeneration) -> GenerationReport:
        """Forget all request state and join a generation."""
        with self._control(Call.BEGIN_GENERATION, authority):
            self._claim.check_generation(authority, request.generation)
            self._check_place(request)
            self._loaded.runner.forget_requests()
            self._generation = self._join(authority, request)
        self._claim.begin(request.generation)
        return GenerationReport(
            incarnation=self.incarnation,
            kv_id=self._kv_id,
            weights_digest=self._loaded.report.weights_digest,
        )

    def connect_peers(self, authority: Authority, generation: int, peers: tuple[Peer, ...]) -> None:
        """Open the tensor channels of the generation."""
        with self._control(Call.CONNECT_PEERS, authority):
            self._member(generation).links.connect(peers)

    def end_generation(self, authority: Authority, generation: int) -> None:
        """Release the worker from its group."""
        with self._control(Call.END_GENERATION, authority):
            self._member(generation).links.close()
            self._generation = None
            self._loaded.runner.forget_requests()

    def execute(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase of a step."""
        self._lifecycle.check(Call.EXECUTE_MODEL)
        return self._joined.steps.execute(request)

    def execute_and_sample(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase and, where it is due, the sample phase."""
        self._lifecycle.check(Call.EXECUTE_MODEL)
        return self._joined.steps.execute_and_sample(request)

    def sample(self, step_id: StepId) -> ModelRunnerOutput:
        """Run the sample phase of a step."""
        self._lifecycle.check(Call.SAMPLE_TOKENS)
        return self._joined.steps.sample(step_id)

    def release_waits(self, authority: Authority, generation: int) -> None:
        """Cancel what the device thread waits for in a generation that is to end; safe from any thread.

        Raises Fenced for a coordinator that does not command this worker.
        """
        self._claim.check(authority)
        joined = self._generation
        if joined is not None and joined.number == generation:
            joined.links.cancel_waits("the coordinator ended the generation")

    def cancel_waits(self, reason: str) -> None:
        """Cancel what the device thread waits for, if anything; safe from any thread."""
        generation = self._generation
        if generation is not None:
            generation.links.cancel_waits(reason)

    def shut_down(self) -> None:
        """Let go of the model, the device memory and the channels; every later call is refused."""
        self._lifecycle.advance(Call.SHUTDOWN)
        self._generation = None
        self._model = None
        self._channels.close()
        self._on_state(self._lifecycle.state)

    @contextmanager
    def _control(self, call: Call, authority: Authority) -> Iterator[None]:
        """Admit a control call, and enter the next state once its body has succeeded."""
        self._claim.check(authority)
        self._lifecycle.check(call)
        before = self._lifecycle.state
        yield
        self._lifecycle.advance(call)
        self._claim.take(authority)
        if self._lifecycle.state is not before:
            logger.info("worker state", extra={"state": self._lifecycle.state.value})
            self._on_state(self._lifecycle.state)

    def _check_place(self, request: BeginGeneration) -> None:
        loaded = self._loaded.request
        if (request.rank, request.layout) != (loaded.rank, loaded.layout):
            raise InvalidRequest(
                f"this worker holds the parameters of {loaded.rank} of {loaded.layout.num_stages}, "
                f"not those of {request.rank} of {request.layout.num_stages}",
                param="rank",
            )

    def _join(self, authority: Authority, request: BeginGeneration) -> _Generation:
        self._channels.begin(
            epoch=authority.epoch,
            generation=request.generation,
            rank=request.rank,
            capacity=request.max_steps_in_flight,
        )
        links = StageLinks(
            self._channels,
            rank=request.rank,
            layout=request.layout,
            device=self._device.torch_device,
            clock=self._clock,
        )
        steps = StepExecutor(
            self._loaded.runner,
            StepGuard(epoch=authority.epoch, generation=request.generation),
            links,
            clock=self._clock,
        )
        return _Generation(number=request.generation, links=links, steps=steps)

    def _member(self, generation: int) -> _Generation:
        """The generation of that number; raises Fenced when this rank is in another or in none."""
        joined = self._generation
        if joined is None or joined.number != generation:
            number = joined.number if joined else "none"
            raise Fenced(f"generation {generation} is not this worker's, which is {number}")
        return joined

    @property
    def _joined(self) -> _Generation:
        assert self._generation is not None, "the lifecycle allows steps only in a generation"
        return self._generation

    @property
    def _loaded(self) -> _LoadedModel:
        assert self._model is not None, "the lifecycle allows this only after LoadModel"
        return self._model
