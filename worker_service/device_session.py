"""Everything the device thread owns: model runner, KV cache and the generation's steps.

Its methods are the calls of `WorkerApi` without await: they block, and run on the device thread in
the order they were made. What is said to be safe from any thread reads one value.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from uuid import uuid4

import torch

from common.channels.cancel import CancelToken
from common.channels.channel import TensorChannels
from common.clock import Clock
from common.config import WorkerConfig
from common.config_loader import cache_folder
from common.cudagraphs import parse_capture_sizes
from common.errors import Fenced
from common.logs import bind_log_context, get_logger
from common.model_folder import resolve_model
from common.speculation import SpeculationConfig
from common.step import ExecuteResult, GrammarMask, ModelRunnerOutput, StepId
from common.tracing import NoTracer, Tracer
from common.worker_api import (
    PROTOCOL_VERSION,
    Authority,
    BeginGeneration,
    DevicePhase,
    ExecuteModel,
    GenerationReport,
    HeldStage,
    KVCacheReport,
    KVCacheSpec,
    LoadModel,
    LoadReport,
    MemoryBudget,
    MemoryReport,
    Peer,
    Rank,
    WorkerActivity,
    WorkerInfo,
)
from worker_service.claim import Claim
from worker_service.device import Device, bind
from worker_service.gate import Gate
from worker_service.generation import Generation, check_place, join_generation
from worker_service.kernels.packed_weight import quantizations
from worker_service.lifecycle import Call, Lifecycle, State
from worker_service.phase_board import PhaseBoard
from worker_service.runner.model_runner import ModelRunner
from worker_service.sampling.custom_processors import CustomProcessors

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedModel:
    """A runner with parameters, and what is told of it."""

    runner: ModelRunner
    held: HeldStage


class DeviceSession:
    """One rank as the device thread sees it.

    Every call is checked before anything happens: Fenced when another coordinator commands,
    WrongState when the lifecycle does not allow it. A call that fails leaves the state as it was,
    but for a model that was dropped to load another one.
    `on_state` is called on the device thread after each change of state, `on_over` on the event
    loop when a generation is over; `make_runner` takes what ModelRunner takes.
    """

    def __init__(
        self,
        config: WorkerConfig,
        device: Device,
        channels: TensorChannels,
        *,
        clock: Clock,
        on_state: Callable[[State], None],
        on_over: Callable[[str], None],
        make_runner: Callable[..., ModelRunner] = ModelRunner,
        tracer: Tracer | None = None,
        custom_processors: CustomProcessors | None = None,
    ) -> None:
        self.incarnation = uuid4().hex
        self.board = PhaseBoard(clock)
        self._config = config
        self._device = device
        self._channels = channels
        self._clock = clock
        self._tracer = tracer or NoTracer()
        self._on_state = on_state
        self._make_runner = make_runner
        self._custom_processors = custom_processors or CustomProcessors({})
        self._lifecycle = Lifecycle()
        self._claim = Claim()
        self.gate = Gate(self._claim, self._lifecycle, on_over=on_over)
        self._model: _LoadedModel | None = None
        self._num_loads = 0
        self._generation: Generation | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the coordinator that commands, 0 for none; safe from any thread."""
        return self._claim.epoch

    @property
    def rank(self) -> Rank | None:
        """The place whose parameters are held, None before any are; safe from any thread."""
        held = self._held
        return None if held is None else held.request.rank

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
            quantizations=quantizations(self._device.torch_device),
            tensor_endpoint=self._channels.endpoint,
            state=self._lifecycle.state.value,
            epoch=self._claim.epoch,
            generation=self._claim.generation,
            num_threads=self._config.threads or torch.get_num_threads(),
            held_stage=self._held,
            num_loads=self._num_loads,
            logits_processors=self._custom_processors.names,
        )

    def activity(self) -> WorkerActivity:
        """Say what the device thread is doing; safe from any thread."""
        doing, now = self.board.activity, self._clock.monotonic()
        held = self._held
        return WorkerActivity(
            state=self._lifecycle.state.value,
            epoch=self._claim.epoch,
            generation=self._claim.generation,
            step=doing.step,
            phase=doing.phase,
            seconds_in_phase=now - doing.since,
            waiting_on=doing.waiting_on,
            kv_id=held.kv_id if held else "",
            is_hung=self.board.is_found_hung(doing),
            num_prefill_tokens=self.board.num_prefill_tokens,
        )

    def check_place(self, request: BeginGeneration) -> None:
        """Raise InvalidRequest where a generation would be joined at another place; any thread."""
        held = self._held
        if held is not None and self._lifecycle.state.is_warm:
            check_place(request, held.request)

    def init_device(self, authority: Authority) -> str:
        """Bind the device to this thread."""
        with self._control(Call.INIT_DEVICE, authority):
            bind(self._device, num_threads=self._config.threads)
        return self._device.name

    def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Read this stage's parameters, in place of those held."""
        with self._control(Call.LOAD_MODEL, authority), self._compiling():
            bind_log_context(rank=str(request.rank))
            folder = resolve_model(self._config.model or request.model, cache=cache_folder())
            found = replace(request, speculation=_with_draft_folder(request.speculation))
            self._drop_model()
            runner = self._make_runner(
                device=self._device.torch_device,
                folder=folder,
                request=found,
                custom_processors=self._custom_processors,
                attention_backend=self._config.attention_backend,
                cudagraph_mode=self._config.cudagraph_mode,
                capture_sizes=parse_capture_sizes(self._config.cudagraph_capture_sizes),
            )
            report = runner.load_model()
            self._num_loads += 1
            held = HeldStage(request=request, report=report)
            self._model = _LoadedModel(runner=runner, held=held)
        logger.info("model loaded", extra={"folder": str(folder), **asdict(report)})
        return report

    def determine_available_memory(
        self, authority: Authority, budget: MemoryBudget
    ) -> MemoryReport:
        """Run the largest step once and say what is left for the KV cache."""
        with self._control(Call.DETERMINE_AVAILABLE_MEMORY, authority), self._compiling():
            return self._loaded.runner.profile_run(budget)

    def get_kv_cache_spec(self, authority: Authority) -> KVCacheSpec:
        """Say what the KV cache of this stage is made of."""
        with self._control(Call.GET_KV_CACHE_SPEC, authority):
            return self._loaded.runner.kv_cache_spec()

    def initialize_kv_cache(self, authority: Authority, num_blocks: int) -> KVCacheReport:
        """Allocate the KV cache."""
        with self._control(Call.INITIALIZE_KV_CACHE, authority), self._compiling():
            loaded, kv_id = self._loaded, uuid4().hex
            num_bytes = loaded.runner.initialize_kv_cache(num_blocks)
            held = replace(loaded.held, num_blocks=num_blocks, kv_id=kv_id)
            self._model = replace(loaded, held=held)
        return KVCacheReport(kv_id=kv_id, kv_cache_bytes=num_bytes)

    def compile_or_warm_up(self, authority: Authority) -> float:
        """Run representative steps and return the seconds they took."""
        with self._control(Call.COMPILE_OR_WARM_UP, authority), self._compiling():
            seconds = self._loaded.runner.warm_up()
            # A full collection over torch and the model takes as long as several steps.
            gc.collect()
            gc.freeze()
        return seconds

    def begin_generation(
        self, authority: Authority, request: BeginGeneration, token: CancelToken
    ) -> GenerationReport:
        """Forget all request state and, when warm, join the generation that `gate` gave the token.

        Raises Cancelled when that generation is over before it began.
        """
        with self._control(Call.BEGIN_GENERATION, authority):
            token.raise_if_cancelled()
            self.check_place(request)
            if self._lifecycle.state.is_in_generation:
                self._leave_generation()
                self._lifecycle.advance(Call.END_GENERATION)
            if self._lifecycle.state.is_warm:
                self._generation = self._join(authority, request, token)
        held = self._held
        return GenerationReport(
            incarnation=self.incarnation,
            kv_id=held.kv_id if held else "",
            weights_digest=held.report.weights_digest if held else "",
        )

    def connect_peers(self, authority: Authority, generation: int, peers: tuple[Peer, ...]) -> None:
        """Open the tensor channels of the generation."""
        with self._control(Call.CONNECT_PEERS, authority):
            self._member(generation).links.connect(peers)

    def end_generation(self, authority: Authority, generation: int) -> None:
        """Release the worker from its group."""
        with self._control(Call.END_GENERATION, authority):
            self._member(generation)
            self._leave_generation()

    def execute(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase of a step."""
        self._lifecycle.check(Call.EXECUTE_MODEL)
        return self._joined.execute(request)

    def execute_and_sample(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase and, where it is due, the sample phase."""
        self._lifecycle.check(Call.EXECUTE_MODEL)
        return self._joined.execute_and_sample(request)

    def sample(self, step_id: StepId, mask: GrammarMask | None = None) -> ModelRunnerOutput:
        """Run the sample phase of a step."""
        self._lifecycle.check(Call.SAMPLE_TOKENS)
        return self._joined.sample(step_id, mask)

    def shut_down(self) -> None:
        """Let go of the model, the device memory and the channels; every later call is refused."""
        self._lifecycle.advance(Call.SHUTDOWN)
        self._generation = None
        if self._model is not None:
            self._model.runner.shut_down()
        self._model = None
        self._channels.close()
        self._on_state(self._lifecycle.state)

    @contextmanager
    def _control(self, call: Call, authority: Authority) -> Iterator[None]:
        """Admit a control call, and enter the next state once its body has succeeded."""
        self.gate.check(authority, call)
        self._claim.take(authority)
        before = self._lifecycle.state
        try:
            yield
            self._lifecycle.advance(call)
        finally:
            if self._lifecycle.state is not before:
                logger.info("worker state", extra={"state": self._lifecycle.state.value})
                self._on_state(self._lifecycle.state)

    def _compiling(self) -> AbstractContextManager[None]:
        return self.board.during(DevicePhase.COMPILING)

    def _drop_model(self) -> None:
        """Let go of parameters and cache: those of two models need not fit side by side."""
        if self._model is None:
            return
        self._leave_generation()
        self._model.runner.shut_down()
        self._model = None
        self._lifecycle.advance(Call.DROP_MODEL)
        gc.unfreeze()
        gc.collect()

    def _join(
        self, authority: Authority, request: BeginGeneration, token: CancelToken
    ) -> Generation:
        return join_generation(
            request,
            epoch=authority.epoch,
            token=token,
            has_drafts=self._loaded.held.request.speculation.most_drafts > 0,
            runner=self._loaded.runner,
            channels=self._channels,
            device=self._device.torch_device,
            clock=self._clock,
            board=self.board,
            tracer=self._tracer,
        )

    def _leave_generation(self) -> None:
        """Close the links of a generation that is over, and forget its requests."""
        if self._generation is not None:
            self._generation.leave()
            self._generation = None
            self._loaded.runner.forget_requests()

    def _member(self, generation: int) -> Generation:
        """The generation of that number; raises Fenced when this rank is in another or in none."""
        joined = self._generation
        if joined is None or joined.number != generation:
            number = joined.number if joined else "none"
            raise Fenced(f"generation {generation} is not this worker's, which is {number}")
        return joined

    @property
    def _held(self) -> HeldStage | None:
        model = self._model
        return None if model is None else model.held

    @property
    def _joined(self) -> Generation:
        assert self._generation is not None, "the lifecycle allows steps only in a generation"
        return self._generation

    @property
    def _loaded(self) -> _LoadedModel:
        assert self._model is not None, "the lifecycle allows this only after LoadModel"
        return self._model


def _with_draft_folder(speculation: SpeculationConfig) -> SpeculationConfig:
    """The folder of the draft model, if there is one, in place of its name."""
    if speculation.draft_model is None:
        return speculation
    folder = resolve_model(speculation.draft_model, cache=cache_folder())
    return replace(speculation, draft_model=str(folder))
