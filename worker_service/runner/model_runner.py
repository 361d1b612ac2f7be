"""The model runner: what stands before the first step, and the stages of a step in their order.

All calls happen on one thread. Each stage of a step is in a file of its own; this one names them.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from common.clock import Clock, SystemClock
from common.errors import WrongOrder
from common.step import CudagraphStats, GrammarMask, ModelRunnerOutput, SchedulerOutput, StepId
from common.worker_api import KVCacheSpec, LoadModel, LoadReport, MemoryBudget, MemoryReport
from worker_service.attention.backend import Attend, AttentionBackend
from worker_service.attention.kv_cache import KVCache
from worker_service.attention.metadata import AttentionMetadata
from worker_service.attention.select import select_backend
from worker_service.batch.builder import prepare_inputs
from worker_service.batch.input_batch import InputBatch
from worker_service.batch.microbatch import split
from worker_service.batch.request_states import RequestStates
from worker_service.batch.sampled_tokens import SampledTokens
from worker_service.batch.shapes import Dispatch, GraphMode
from worker_service.batch.synthetic import StepSizes, ZeroInputs, largest_step, warm_up_steps
from worker_service.drafting.drafter import Drafter, NoDrafter
from worker_service.drafting.select import DrafterSelect, select_drafter
from worker_service.runner.attention_metadata import build_attention_metadata
from worker_service.runner.collector import collect, empty_output, sampled_tokens
from worker_service.runner.digests import Digests, digest_state
from worker_service.runner.execute_state import ExecuteModelState, keep_rows
from worker_service.runner.forward import forward
from worker_service.runner.graph_recorder import MakeRecorder, cuda_recorder
from worker_service.runner.graphs import StepGraphs
from worker_service.runner.load_draft import load_draft_model
from worker_service.runner.load_graphs import make_step_graphs
from worker_service.runner.load_stage import LoadedStage, load_stage
from worker_service.runner.memory import kv_cache_bytes
from worker_service.runner.memory_meter import memory_meter
from worker_service.runner.preprocess import HIDDEN_STATES, StageInputs, preprocess
from worker_service.runner.proposal import propose_drafts
from worker_service.runner.token_feedback import TokenFeedback
from worker_service.runner.update_states import update_states
from worker_service.runner.validation import StepLimits, validate_step
from worker_service.sampling.custom_processors import CustomProcessors
from worker_service.sampling.grammar_mask import masked_rows, validate_mask
from worker_service.sampling.logit_editor import LogitEditor
from worker_service.sampling.prompt_logprobs import compute_prompt_logprobs
from worker_service.sampling.rejection_sampler import accept_drafts
from worker_service.sampling.sampler import sample
from worker_service.sampling.sampling_states import SamplingStates

# T tokens of the step, N logits rows, D model size, V vocabulary

_PROFILE_BLOCKS = 2  # made-up steps touch only the null block


class ModelRunner:
    """Runs steps on one rank: `validate`, then `execute_model`, then on the last stage `sample_tokens`."""

    def __init__(
        self,
        *,
        device: torch.device,
        folder: Path,
        request: LoadModel,
        clock: Clock | None = None,
        custom_processors: CustomProcessors | None = None,
        select: DrafterSelect = select_drafter,
        attention_backend: str = "auto",
        cudagraph_mode: str = "auto",
        capture_sizes: tuple[int, ...] = (),
        make_recorder: MakeRecorder = cuda_recorder,
    ) -> None:
        self._device = device
        self._attention_backend = attention_backend
        self._cudagraph_mode = cudagraph_mode
        self._capture_sizes = capture_sizes
        self._make_recorder = make_recorder
        self._graphs: StepGraphs | None = None
        self._folder = folder
        self._request = request
        self._clock = clock or SystemClock()
        self._backend: AttentionBackend | None = None
        self._states = RequestStates(
            num_slots=request.max_num_seqs,
            max_model_len=request.max_model_len,
            block_size=request.block_size,
        )
        self._sampling = SamplingStates(num_slots=request.max_num_seqs)
        self._editor = LogitEditor(self._states, custom_processors)
        most_drafts = request.speculation.most_drafts
        self._feedback = TokenFeedback(self._states, most_drafts=most_drafts)
        self._select = select
        self._drafter: Drafter = NoDrafter()
        self._loaded: LoadedStage | None = None
        self._kv_cache: KVCache | None = None
        self._num_blocks = 0
        self._due: ExecuteModelState | None = None
        self.last_sampled = SampledTokens.none()
        """What the last sample phase drew."""
        self.last_stats: CudagraphStats | None = None
        """How the last execute phase with tokens ran."""

    def load_model(self) -> LoadReport:
        """Read this stage's parameters, and those of what proposes drafts there."""
        started = self._clock.monotonic()
        self._loaded = load_stage(
            self._folder,
            self._request,
            device=self._device,
            has_one_table=self._request.speculation.draft_model is not None,
        )
        self._states.use_tables(len(self._loaded.groups.windows))
        self._backend = select_backend(
            self._attention_backend,
            device=self._device,
            dtype=self._loaded.dtype,
            head_size=self._loaded.spec.head_size,
            has_window=any(self._loaded.spec.windows) or self._loaded.spec.attention_soft_cap > 0,
        )
        self._graphs = make_step_graphs(
            self._loaded,
            self._request,
            asked=self._cudagraph_mode,
            sizes=self._capture_sizes,
            backend=self._backend,
            recorder=self._make_recorder(self._device),
            make_attend=self._attend,
            device=self._device,
        )
        loaded = self._loaded.loaded
        self._drafter = self._select_drafter()
        return LoadReport(
            parameter_bytes=loaded.parameter_bytes + self._drafter.memory.parameter_bytes,
            bytes_read=loaded.bytes_read,
            tensors_read=loaded.tensors_read,
            weights_digest=loaded.weights_digest,
            dtype=str(self._loaded.dtype).removeprefix("torch."),
            seconds=self._clock.monotonic() - started,
            table_windows=self._loaded.groups.windows,
        )

    def profile_run(self, budget: MemoryBudget) -> MemoryReport:
        """Run the largest step on a cache of a few blocks and say what is left for the real one."""
        self.initialize_kv_cache(_PROFILE_BLOCKS)
        started = self._clock.monotonic()
        with memory_meter(self._device) as meter:
            self._rehearse(largest_step(self._sizes))
            activation_bytes = meter.peak_bytes
        seconds = self._clock.monotonic() - started
        self._kv_cache, self._num_blocks = None, 0
        memory = self._drafter.memory
        return MemoryReport(
            kv_cache_bytes=kv_cache_bytes(
                budget,
                device_bytes=self._device_bytes(),
                parameter_bytes=self._stage.loaded.parameter_bytes + memory.parameter_bytes,
                activation_bytes=activation_bytes,
            )
            - memory.spare_bytes,
            activation_bytes=activation_bytes,
            profile_seconds=seconds,
        )

    def kv_cache_spec(self) -> KVCacheSpec:
        """What the KV cache of this stage is made of; drafts stand in the blocks of the target."""
        spec = self._stage.kv_cache_spec
        return replace(spec, groups=(*spec.groups, *self._drafter.memory.kv_cache_groups))

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Allocate num_blocks blocks, the null block 0 included, and return their bytes.

        Graphs read the cache where it stood, so they are gone.
        """
        self.graphs.clear()
        self._kv_cache = KVCache.allocate(
            self._stage.kv_cache_spec,
            num_blocks=num_blocks,
            device=self._device,
            dtype=self._stage.dtype,
            groups=self._stage.groups,
        )
        self._num_blocks = num_blocks
        return self._kv_cache.num_bytes + self._drafter.initialize_kv_cache(num_blocks)

    def warm_up(self) -> float:
        """Run representative steps, capture graphs, and return the seconds both took."""
        started = self._clock.monotonic()
        self._rehearse(warm_up_steps(self._sizes))
        self.graphs.capture()
        return self._clock.monotonic() - started

    def shut_down(self) -> None:
        """Let go of what is captured on the device, as the model is about to go."""
        if self._graphs is not None:
            self._graphs.clear()

    def forget_requests(self) -> None:
        """Drop all request state, and the sample phase that may be due."""
        self._states.clear()
        self._drafter.clear()
        self._due = None

    def digests(self, *, wanted: bool = True) -> Digests:
        """Digests of the live requests and of the keys and values of their computed tokens."""
        return digest_state(self._states, self.kv_cache) if wanted else Digests()

    def validate(self, output: SchedulerOutput) -> None:
        """Raise InvalidStep, naming row and field, for a step that cannot be applied; change nothing."""
        request = self._request
        limits = StepLimits(
            max_num_batched_tokens=request.max_num_batched_tokens,
            max_num_seqs=request.max_num_seqs,
            max_model_len=request.max_model_len,
            vocab_size=self._stage.spec.vocab_size,
            num_blocks=self._num_blocks,
            most_drafts=request.speculation.most_drafts,
        )
        validate_step(output, states=self._states, feedback=self._feedback, limits=limits)

    @torch.inference_mode()
    def execute_model(
        self, output: SchedulerOutput, inputs: StageInputs
    ) -> dict[str, Tensor] | ModelRunnerOutput | None:
        """Run the execute phase of a validated step.

        Returns the tensors for the next stage; on the last stage None, as the sample phase is due;
        for a step without tokens the empty output. Raises WrongOrder, changing nothing, while the
        sample phase of an earlier step is due.
        """
        if self._due is not None:
            raise WrongOrder(f"the sample phase of step {self._due.step_id.step} is due")
        # Nothing has changed while the tokens of another stage are waited for.
        new_token_ids, drafts = self._feedback.new_tokens(
            output, fetch=inputs.receive_tokens if self._is_fed else None
        )
        rows = update_states(
            output,
            new_token_ids=new_token_ids,
            drafts=drafts,
            states=self._states,
            sampling=self._sampling,
            feedback=self._feedback,
            drafter=self._drafter,
        )
        if not output.num_rows:
            digests = self.digests(wanted=output.want_state_digest)
            return empty_output(output.step_id, digests=digests)
        batch = prepare_inputs(rows, states=self._states, device=self._device)
        self._feedback.expect(output.step_id.step, rows.slots[batch.sampling_rows])
        dispatch = self.graphs.dispatch(batch)
        self.last_stats = dispatch.stats(batch)
        hidden_TD = preprocess(batch, model=self._stage.model, inputs=inputs)
        hidden_TD = self._run_layers(dispatch, batch, hidden_TD)
        if not self._stage.model.stage.is_last:
            return {HIDDEN_STATES: hidden_TD}
        self._drafter.follow(batch, hidden_TD)
        self._due = keep_rows(
            output, batch, hidden_TD, states=self._states, sampling=self._sampling
        )
        return None

    def validate_mask(self, step_id: StepId, mask: GrammarMask | None) -> None:
        """Raise InvalidStep, changing nothing, unless the step's mask is there if it needs one, and fits."""
        state = self._due
        if state is not None and state.step_id == step_id:
            validate_mask(
                mask,
                handles=state.handles,
                num_drafts=state.drafts.lengths,
                needs_mask=state.needs_mask,
                vocab_size=self._stage.spec.vocab_size,
            )

    @torch.inference_mode()
    def sample_tokens(self, step_id: StepId, mask: GrammarMask | None = None) -> ModelRunnerOutput:
        """Run the sample phase of the step executed last: logits, draw, output.

        Raises WrongOrder, changing nothing, when that step's sample phase is not due.
        """
        state = self._due
        if state is None or state.step_id != step_id:
            raise WrongOrder(f"the sample phase of step {step_id.step} is not due")
        self._due = None
        logits_NV = self._stage.model.compute_logits(state.hidden_ND)
        masked = masked_rows(mask, handles=state.handles, num_drafts=state.drafts.lengths)
        sampled = sample(logits_NV, state.sampling, self._editor, masked)
        emitted = accept_drafts(sampled, state.drafts)
        prompts = tuple(
            compute_prompt_logprobs(piece, self._stage.model.compute_logits)
            for piece in state.prompts
        )
        drafts = propose_drafts(state, emitted, drafter=self._drafter, states=self._states)
        self.last_sampled = sampled_tokens(state, emitted, drafts)
        self._feedback.put(step_id.step, self.last_sampled)
        digests = self.digests(wanted=state.want_state_digest)
        return collect(state, emitted, drafts, prompt_logprobs=prompts, digests=digests)

    def _select_drafter(self) -> Drafter:
        request = self._request
        return self._select(
            request.speculation,
            states=self._states,
            is_last=self._stage.model.stage.is_last,
            load_draft_model=lambda: load_draft_model(
                request,
                vocab_size=self._stage.spec.vocab_size,
                states=self._states,
                sampling=self._sampling,
                device=self._device,
            ),
        )

    def _run_layers(self, dispatch: Dispatch, batch: InputBatch, hidden_TD: Tensor) -> Tensor:
        if dispatch.mode is not GraphMode.NONE:
            return self.graphs.run(
                dispatch, batch, hidden_TD, lambda: self._attend(self._metadata(batch))
            )
        microbatches = split(batch)
        attends = [self._attend(self._metadata(microbatch)) for microbatch in microbatches]
        return forward(self._stage.model, hidden_TD, microbatches, attends)

    def _metadata(self, batch: InputBatch) -> tuple[AttentionMetadata, ...]:
        return build_attention_metadata(batch, block_size=self._request.block_size)

    def _attend(self, metadata: tuple[AttentionMetadata, ...]) -> Attend:
        assert self._backend is not None, "load_model comes first"
        return Attend(self._backend, self.kv_cache, *metadata)

    def _rehearse(self, outputs: Iterable[SchedulerOutput]) -> None:
        """Run made-up steps as if a coordinator had sent them."""
        for output in outputs:
            shape = (output.total_num_scheduled_tokens, self._stage.spec.hidden_size)
            inputs = ZeroInputs(HIDDEN_STATES, shape, dtype=self._stage.dtype, device=self._device)
            self.validate(output)
            if self.execute_model(output, inputs) is None:
                self.sample_tokens(output.step_id)

    def _device_bytes(self) -> int | None:
        """Memory of a GPU; None on a CPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.get_device_properties(self._device).total_memory

    @property
    def _sizes(self) -> StepSizes:
        request = self._request
        return StepSizes(
            max_num_batched_tokens=request.max_num_batched_tokens,
            max_num_seqs=request.max_num_seqs,
            max_model_len=request.max_model_len,
            block_size=request.block_size,
            most_drafts=request.speculation.most_drafts,
            num_tables=len(self._states.tables),
        )

    @property
    def _is_fed(self) -> bool:
        """Whether this stage needs what the last one has sampled: tokens, or how many there were."""
        stage = self._stage.model.stage
        return stage.is_first or (not stage.is_last and self._request.speculation.most_drafts > 0)

    @property
    def _stage(self) -> LoadedStage:
        assert self._loaded is not None, "load_model comes first"
        return self._loaded

    @property
    def graphs(self) -> StepGraphs:
        """What was captured of this stage."""
        assert self._graphs is not None, "load_model comes first"
        return self._graphs

    @property
    def kv_cache(self) -> KVCache:
        """The cache that stands."""
        assert self._kv_cache is not None, "initialize_kv_cache comes first"
        return self._kv_cache
