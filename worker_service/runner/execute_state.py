"""What the execute phase of the last stage keeps for the sample phase."""

from dataclasses import dataclass

from torch import Tensor

from common.step import StepId, Uint64s
from worker_service.sampling.prompt_logprobs import PromptPiece
from worker_service.sampling.sampling_states import SamplingRows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecuteModelState:
    """A forward pass whose tokens are not drawn yet, for S rows that sample.

    handles uint64 [S]; hidden_SD: the last layer's output at each row's last token; how to draw.
    needs_mask: sampling waits for a grammar mask. prompts: of rows whose prompts' log-probabilities are wanted, sampling or not.
    """

    step_id: StepId
    handles: Uint64s
    hidden_SD: Tensor
    sampling: SamplingRows
    prompts: tuple[PromptPiece, ...]
    want_state_digest: bool
    needs_mask: bool = False
