"""A model folder and a stage of it -> a model ready to run."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from common.errors import ModelError
from worker_service.kernels.packed_weight import WeightPacker
from worker_service.models.decoder import DecoderModel, StageSlice
from worker_service.models.layers.linear import ColumnLinear, RowLinear
from worker_service.models.model_spec import ModelSpec
from worker_service.models.native_layers import native_layers
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


def pack_weights(
    loaded: LoadedModel, packer: WeightPacker, *, head: WeightPacker | None = None
) -> LoadedModel:
    """Bring what is multiplied into the packer's form, layer by layer; the plain weights go.

    head: another form for the head. A tied table stays for looking tokens up, beside its packed head.
    """
    model = loaded.model
    packed = [module for module in model.modules() if isinstance(module, ColumnLinear | RowLinear)]
    for linear in packed:
        linear.pack(packer)
    num_bytes = sum(linear.packed.num_bytes for linear in packed)
    if model.stage.is_last:
        is_looked_up = model.stage.is_first and model.head is model.embedding
        model.head.pack(head or packer, is_looked_up=is_looked_up)
        num_bytes += model.head.packed.num_bytes
    model.native_layers = native_layers(model)
    num_bytes += sum(parameter.nbytes for parameter in model.parameters())
    return replace(loaded, parameter_bytes=num_bytes)
