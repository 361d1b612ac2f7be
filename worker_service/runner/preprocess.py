"""The stage preprocess: the hidden states the layers of this pipeline stage start from."""

from typing import Protocol

from torch import Tensor

from common.errors import TensorError
from worker_service.batch.input_batch import InputBatch
from worker_service.batch.sampled_tokens import SampledTokens
from worker_service.models.decoder import DecoderModel

# T tokens of the step, D model size

HIDDEN_STATES = "hidden_states"
"""Name of the only tensor that travels between stages."""


class StageInputs(Protocol):
    """What a step needs of other stages: tensors of the previous one; on the first, tokens of the last."""

    def receive(self) -> dict[str, Tensor]:
        """Wait for the tensors and return them by name, on the stage's device."""
        ...

    def receive_tokens(self, step: int) -> SampledTokens:
        """Wait for the tokens that the step with this number sampled."""
        ...


def preprocess(batch: InputBatch, *, model: DecoderModel, inputs: StageInputs) -> Tensor:
    """Embed the step's tokens on the first stage, receive hidden states on the others; [T, D].

    Raises TensorError when what was received is not this step's hidden states.
    """
    if model.stage.is_first:
        return model.embed(batch.token_ids)
    return _check_received(inputs.receive(), expected=(batch.num_tokens, model.spec.hidden_size))


def _check_received(tensors: dict[str, Tensor], *, expected: tuple[int, int]) -> Tensor:
    if set(tensors) != {HIDDEN_STATES}:
        raise TensorError(f"the previous stage sent {sorted(tensors)} instead of {HIDDEN_STATES}")
    hidden_TD = tensors[HIDDEN_STATES]
    if hidden_TD.shape != expected:
        raise TensorError(
            f"{HIDDEN_STATES} came with shape {list(hidden_TD.shape)} instead of {list(expected)}"
        )
    return hidden_TD
