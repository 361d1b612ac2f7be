"""The stage forward: the layers of this pipeline stage, eagerly, microbatch after microbatch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from worker_service.attention.backend import Attend
from worker_service.batch.input_batch import InputBatch
from worker_service.models.decoder import DecoderModel

# T tokens of the step, D model size


def forward(
    model: DecoderModel,
    hidden_TD: Tensor,
    microbatches: Sequence[InputBatch],
    attends: Sequence[Attend],
) -> Tensor:
    """Run the layers on each microbatch with its own attention; rows come back in order; [T, D]."""
    if len(microbatches) == 1:
        return model(hidden_TD, microbatches[0].positions, attends[0])
    parts = hidden_TD.split([batch.num_tokens for batch in microbatches])
    outputs = [
        model(part_TD, batch.positions, attend)
        for part_TD, batch, attend in zip(parts, microbatches, attends, strict=True)
    ]
    return torch.cat(outputs)
