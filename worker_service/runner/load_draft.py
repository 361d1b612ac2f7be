"""The stage load_model, second half: the draft model that stands beside the last stage's layers."""

from dataclasses import replace
from pathlib import Path

import torch

from common.errors import InvalidRequest, ModelError
from common.worker_api import KVCacheSpec, Layout, LoadModel, Rank
from worker_service.attention.select import select_backend
from worker_service.batch.request_states import RequestStates
from worker_service.drafting.draft_model import DraftModel
from worker_service.models.model_spec import read_model_spec
from worker_service.runner.load_stage import load_stage
from worker_service.sampling.sampling_states import SamplingStates

DRAFT_GROUP = "draft"
"""Kind of the KV cache group that stands in the target's blocks."""


def load_draft_model(
    request: LoadModel,
    *,
    vocab_size: int,
    states: RequestStates,
    sampling: SamplingStates,
    device: torch.device,
) -> DraftModel:
    """Read the whole draft model, in the target's type and form of weights.

    Raises ModelError as `load_stage` does, and for a vocabulary of another size than the target's.
    """
    name = request.speculation.draft_model
    if name is None:
        raise InvalidRequest("speculation names no draft model", param="speculation")
    folder = Path(name)
    spec = read_model_spec(folder)
    if spec.vocab_size != vocab_size:
        raise ModelError(
            f"draft model {name} has a vocabulary of {spec.vocab_size} tokens and the model one of "
            f"{vocab_size}: give a draft model with the same tokenizer"
        )
    whole = replace(
        request, rank=Rank(stage=0), layout=Layout(), first_layer=0, end_layer=spec.num_layers
    )
    stage = load_stage(folder, whole, device=device, has_one_table=True)
    return DraftModel(
        stage.model,
        parameter_bytes=stage.loaded.parameter_bytes,
        kv_cache_spec=_of_kind_draft(stage.kv_cache_spec),
        backend=select_backend("auto", device=device, dtype=stage.dtype, head_size=spec.head_size),
        states=states,
        sampling=sampling,
        device=device,
        dtype=stage.dtype,
        most_drafts=request.speculation.most_drafts,
        most_tokens=request.max_num_batched_tokens,
        most_rows=request.max_num_seqs,
    )


def _of_kind_draft(spec: KVCacheSpec) -> KVCacheSpec:
    return replace(spec, groups=tuple(replace(group, kind=DRAFT_GROUP) for group in spec.groups))
