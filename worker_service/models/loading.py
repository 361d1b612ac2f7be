"""A model folder and a stage of it -> a model ready to run."""

from dataclasses import dataclass
from pathlib import Path

import torch

from common.errors import ModelError
from worker_service.models.decoder import DecoderModel, StageSlice
from worker_service.models.model_spec import ModelSpec
from worker_service.models.registry import load_architecture
from worker_service.parallel.groups import Ranks
from worker_service.weights.loader import load_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel:
    """A stage with its parameters; bytes held, bytes and tensors read, digest of the checkpoint."""

    model: DecoderModel
    parameter_bytes: int
    bytes_read: int
    tensors_read: int
    weights_digest: str


def load_model(
    folder: Path,
    *,
    spec: ModelSpec,
    layers: range,
    is_first: bool,
    is_last: bool,
    ranks: Ranks,
    dtype: torch.dtype,
    device: torch.device,
) -> LoadedModel:
    """Build layers `layers` of the folder's model, with the embedding and head of its ends.

    Parameters are made once, in dtype on device, and filled from the mapped files. Raises ModelError
    as `load_weights` does, or when the model has no such layers.
    """
    if not 0 <= layers.start < layers.stop <= spec.num_layers:
        raise ModelError(
            f"layers {layers.start} to {layers.stop} are not in a model of {spec.num_layers} layers"
        )
    stage = StageSlice(layers=layers, is_first=is_first, is_last=is_last, ranks=ranks)
    architecture = load_architecture(spec)
    model = architecture.MODEL(spec, stage, dtype=dtype, device=device).eval()
    report = load_weights(
        model, folder=folder, rules=architecture.weight_rules(spec, stage), ranks=ranks
    )
    return LoadedModel(
        model=model,
        parameter_bytes=report.parameter_bytes,
        bytes_read=report.bytes_read,
        tensors_read=report.tensors_read,
        weights_digest=report.weights_digest,
    )
