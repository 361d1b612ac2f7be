"""The graphs of a loaded stage: which mode its device, backend and model allow, and what they need."""

import logging

import torch

from common.errors import ConfigError
from common.worker_api import LoadModel
from worker_service.attention.backend import AttentionBackend
from worker_service.batch.shapes import GraphDispatcher, GraphMode, default_capture_sizes
from worker_service.runner.graph_recorder import GraphRecorder
from worker_service.runner.graphs import MakeAttend, StepGraphs
from worker_service.runner.load_stage import LoadedStage
from worker_service.runner.step_buffers import StepBuffers
from worker_service.runner.workspace import Workspace

AUTO = "auto"

_LOG = logging.getLogger(__name__)


def make_step_graphs(
    stage: LoadedStage,
    request: LoadModel,
    *,
    asked: str,
    sizes: tuple[int, ...],
    backend: AttentionBackend,
    recorder: GraphRecorder | None,
    make_attend: MakeAttend,
    device: torch.device,
) -> StepGraphs:
    """Graphs that are still to be captured, by the step limits of a LoadModel request.

    asked: a mode or "auto"; sizes: tokens of the shapes to capture, () for the usual ones. Raises
    ConfigError, saying why, when a mode is asked for that cannot be.
    """
    mode = resolve_graph_mode(
        asked, stage=stage, backend=backend, has_recorder=recorder is not None
    )
    workspace = Workspace(device)
    most_tokens = request.max_num_batched_tokens
    return StepGraphs(
        stage.model,
        dispatcher=GraphDispatcher(
            mode,
            [size for size in sizes or default_capture_sizes(most_tokens) if size <= most_tokens],
            most_rows=request.max_num_seqs,
            decode_len=1 + request.speculation.most_drafts,
        ),
        recorder=None if mode is GraphMode.NONE else recorder,
        workspace=workspace,
        buffers=StepBuffers(
            workspace,
            hidden_size=stage.spec.hidden_size,
            dtype=stage.dtype,
            num_tables=len(stage.groups.windows),
            block_size=request.block_size,
            max_model_len=request.max_model_len,
        ),
        make_attend=make_attend,
        num_heads=len(stage.model.stage.ranks.span(stage.spec.num_heads)),
    )


def resolve_graph_mode(
    asked: str, *, stage: LoadedStage, backend: AttentionBackend, has_recorder: bool
) -> GraphMode:
    """The mode that is asked for; for "auto" the most that can be. Raises ConfigError, saying why not."""
    if asked == GraphMode.NONE.value:
        return GraphMode.NONE
    why_none = _why_none(stage, has_recorder=has_recorder)
    why_not_full = why_none or (
        None
        if backend.has_static_plans
        else f"attention backend {backend.name} plans steps by lengths on the host"
    )
    if asked == AUTO:
        if why_none is not None:
            _LOG.info("steps run without graphs: %s", why_none)
            return GraphMode.NONE
        return GraphMode.PIECEWISE if why_not_full else GraphMode.FULL
    mode = GraphMode(asked)
    why_not = why_not_full if mode is GraphMode.FULL else why_none
    if why_not is not None:
        raise ConfigError(f"--cudagraph-mode {asked} cannot be: {why_not}")
    return mode


def _why_none(stage: LoadedStage, *, has_recorder: bool) -> str | None:
    """Why no part of a forward pass can be in a graph; None: it can."""
    if not has_recorder:
        return "only a CUDA device has graphs"
    if stage.spec.library_config:
        return f"{stage.spec.architecture} is run by transformers"
    if stage.spec.experts is not None:
        return "a mixture of experts looks at the host which experts are used"
    return None
