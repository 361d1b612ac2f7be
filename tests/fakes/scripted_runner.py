"""A model runner without a model: records the steps it applied, and its tensors say which step made them.

Stands where `ModelRunner` does below the worker. The digest it answers is that of the applied
steps, so a refused step that changed anything shows.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.errors import InvalidStep, WrongOrder
from common.step import (
    GrammarMask,
    ModelRunnerOutput,
    Phase,
    Ragged,
    SchedulerOutput,
    StepId,
    StepKey,
)
from common.worker_api import (
    KVCacheGroup,
    KVCacheSpec,
    LoadModel,
    LoadReport,
    MemoryBudget,
    MemoryReport,
)
from worker_service.batch.sampled_tokens import SampledTokens
from worker_service.runner.digests import Digests
from worker_service.runner.preprocess import StageInputs

BLOCK_BYTES = 1024


class ScriptedRunner:
    """A stage that adds 1 to what it gets: token = step number + stages before the last.

    `invalid_steps` are refused by `validate`; `during_step` is called with the step number while a
    step runs, and may raise.
    """

    def __init__(
        self, *, device: torch.device, folder: Path, request: LoadModel, **options: object
    ) -> None:
        del device, folder, options
        self.request = request
        self.applied: list[tuple[int, str]] = []
        self.invalid_steps: set[int] = set()
        self.during_step: Callable[[int], None] = lambda step: None
        self._is_first = request.rank.stage == 0
        self._is_last = request.rank.stage == request.layout.num_stages - 1
        self._pending: tuple[SchedulerOutput, Tensor] | None = None
        self.last_sampled = SampledTokens.none()
        self.last_stats = None

    def load_model(self) -> LoadReport:
        """Report sizes that are made up."""
        return LoadReport(
            parameter_bytes=8,
            bytes_read=8,
            tensors_read=1,
            weights_digest=f"digest of stage {self.request.rank.stage}",
            dtype="float32",
            seconds=0.0,
        )

    def profile_run(self, budget: MemoryBudget) -> MemoryReport:
        """Grant what the budget asks for."""
        return MemoryReport(
            kv_cache_bytes=budget.kv_cache_bytes or 0, activation_bytes=1, profile_seconds=0.0
        )

    def kv_cache_spec(self) -> KVCacheSpec:
        """One group of one layer."""
        group = KVCacheGroup(
            kind="full", num_layers=1, num_kv_heads=1, head_size=8, bytes_per_block=BLOCK_BYTES
        )
        return KVCacheSpec(block_size=self.request.block_size, groups=(group,))

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Bytes of so many blocks."""
        return num_blocks * BLOCK_BYTES

    def warm_up(self) -> float:
        """No time at all."""
        return 0.0

    def shut_down(self) -> None:
        """There is nothing to let go of."""

    def forget_requests(self) -> None:
        """Forget the applied steps."""
        self.applied.clear()
        self._pending = None

    def digests(self, *, wanted: bool = True) -> Digests:
        """The digest of the applied steps; there is no cache."""
        return Digests(state=sha256(repr(self.applied).encode()).digest()) if wanted else Digests()

    def validate(self, output: SchedulerOutput) -> None:
        """Refuse the steps named in `invalid_steps`."""
        if output.step_id.step in self.invalid_steps:
            raise InvalidStep(f"step {output.step_id.step} is refused by the script")

    def execute_model(
        self, output: SchedulerOutput, inputs: StageInputs
    ) -> dict[str, Tensor] | ModelRunnerOutput | None:
        """Apply a step; its tensor is what came in, or the step number, plus 1."""
        step = output.step_id.step
        self.during_step(step)
        if output.num_rows == 0:
            return self._empty_output(output)
        self.applied.append((step, "execute"))
        came_in = torch.full((1, 1), float(step - 1)) if self._is_first else _single(inputs)
        if not self._is_last:
            return {"hidden_states": came_in + 1}
        self._pending = (output, came_in + 1)
        return None

    def validate_mask(self, step_id: StepId, mask: GrammarMask | None) -> None:
        """Take any."""

    def sample_tokens(self, step_id: StepId, mask: GrammarMask | None = None) -> ModelRunnerOutput:
        """Answer one token for every row: the value of the tensor."""
        if self._pending is None:
            raise WrongOrder("nothing was executed")
        (output, hidden), self._pending = self._pending, None
        self.during_step(step_id.step)
        self.applied.append((step_id.step, "sample"))
        handles = output.cached_requests.handles
        token = int(hidden.item())
        self.last_sampled = SampledTokens(
            handles=handles,
            positions=np.ones(len(handles), dtype=np.int64),
            token_ids=Ragged.from_rows([[token]] * len(handles)),
            drafts=Ragged.empty(len(handles)),
        )
        return ModelRunnerOutput(
            key=StepKey(step_id=step_id, phase=Phase.SAMPLE),
            handles=handles,
            sampled_token_ids=Ragged.from_rows([[token]] * len(handles)),
            state_digest=self.digests(wanted=output.want_state_digest).state,
        )

    def _empty_output(self, output: SchedulerOutput) -> ModelRunnerOutput:
        digests = self.digests(wanted=output.want_state_digest)
        key = StepKey(step_id=output.step_id, phase=Phase.EXECUTE)
        return ModelRunnerOutput(key=key, state_digest=digests.state)


def _single(inputs: StageInputs) -> Tensor:
    (tensor,) = inputs.receive().values()
    return tensor
