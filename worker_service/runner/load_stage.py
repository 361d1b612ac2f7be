"""The stage load_model: a model folder and a LoadModel request -> this rank's part of the model."""

from dataclasses import dataclass
from pathlib import Path

import torch

from common.config import NO_QUANTIZATION
from common.errors import InvalidRequest, ModelError
from common.worker_api import KVCacheSpec, LoadModel
from worker_service.attention.layer_groups import LayerGroups
from worker_service.kernels.native import (
    reclaim_torch_threads,
    relieve_torch_threads,
    share_torch_threads,
)
from worker_service.kernels.packed_weight import head_quantization, quantizations, select_packer
from worker_service.models.decoder import DecoderModel
from worker_service.models.loading import LoadedModel, load_model, pack_weights
from worker_service.models.model_spec import ModelSpec
from worker_service.models.registry import load_spec
from worker_service.parallel.groups import Ranks
from worker_service.runner.memory import kv_cache_spec

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedStage:
    """This rank's layers with their parameters, what was read, and the cache they need.

    groups: which of the layers share a block table.
    """

    spec: ModelSpec
    loaded: LoadedModel
    dtype: torch.dtype
    kv_cache_spec: KVCacheSpec
    groups: LayerGroups

    @property
    def model(self) -> DecoderModel:
        """The layers."""
        return self.loaded.model


def load_stage(
    folder: Path, request: LoadModel, *, device: torch.device, has_one_table: bool = False
) -> LoadedStage:
    """Read the layers, and the model's ends where this stage has them.

    has_one_table: windows or not, all layers have the same blocks, so that another model can too.
    Raises ModelError when the checkpoint is not what its configuration says, InvalidRequest for a
    layout this worker cannot be part of or a form of weights it cannot hold.
    """
    if request.layout.tensor_parallel_size != 1:
        raise InvalidRequest("this worker has no tensor parallelism", param="tensor_parallel_size")
    if request.quantization not in (NO_QUANTIZATION, *quantizations(device)):
        raise InvalidRequest(
            f"this worker computes on {device} and cannot hold weights as {request.quantization}",
            param="quantization",
        )
    spec = load_spec(folder)
    dtype = _dtype(request.dtype, spec)
    ranks = Ranks()
    if device.type == "cpu":
        reclaim_torch_threads()
    loaded = load_model(
        folder,
        spec=spec,
        layers=range(request.first_layer, request.end_layer),
        is_first=request.rank.stage == 0,
        is_last=request.rank.stage == request.layout.num_stages - 1,
        ranks=ranks,
        dtype=dtype,
        device=device,
    )
    if device.type == "cpu":
        share_torch_threads()
    packer, head = (
        select_packer(dtype=dtype, device=device, quantization=form)
        for form in (request.quantization, head_quantization(request.quantization))
    )
    if spec.library_config and request.quantization != NO_QUANTIZATION:
        raise InvalidRequest(
            f"{spec.architecture} is run by transformers, whose weights stay as they are",
            param="quantization",
        )
    if packer is not None and not spec.library_config:
        loaded = pack_weights(loaded, packer, head=head)
    if loaded.model.native_layers is not None:
        relieve_torch_threads()
    layers = range(request.first_layer, request.end_layer)
    groups = LayerGroups.of_windows(
        () if has_one_table else spec.windows,
        layers,
        num_layers=spec.num_layers,
        max_model_len=request.max_model_len,
    )
    return LoadedStage(
        spec=spec,
        loaded=loaded,
        dtype=dtype,
        groups=groups,
        kv_cache_spec=kv_cache_spec(
            num_layers=groups.num_places,
            num_kv_heads=len(ranks.span(spec.num_kv_heads)),
            head_size=spec.head_size,
            block_size=request.block_size,
            dtype=dtype,
        ),
    )


def _dtype(label: str, spec: ModelSpec) -> torch.dtype:
    """The type to compute in; "auto" is what the checkpoint holds."""
    resolved = spec.dtype if label == "auto" else label
    if resolved not in _DTYPES:
        raise ModelError(f"dtype must be auto or one of {', '.join(_DTYPES)}, not {resolved!r}")
    return _DTYPES[resolved]
