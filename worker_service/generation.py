"""One generation as the device thread lives it: a place in it, the links, and the steps in order."""

from dataclasses import dataclass

import torch

from common.channels.cancel import CancelToken
from common.channels.channel import TensorChannels
from common.clock import Clock
from common.errors import InvalidRequest
from common.step import ExecuteResult, GrammarMask, ModelRunnerOutput, StepId
from common.tracing import Tracer
from common.worker_api import BeginGeneration, ExecuteModel, LoadModel
from worker_service.phase_board import PhaseBoard
from worker_service.request_spans import RequestSpans
from worker_service.runner.model_runner import ModelRunner
from worker_service.stage_links import StageLinks
from worker_service.step_executor import StepExecutor
from worker_service.step_guard import StepGuard


def check_place(request: BeginGeneration, loaded: LoadModel) -> None:
    """Raise InvalidRequest unless the place asked for is the one whose parameters were loaded."""
    if (request.rank, request.layout) != (loaded.rank, loaded.layout):
        raise InvalidRequest(
            f"this worker holds the parameters of {loaded.rank} of {loaded.layout.num_stages}, "
            f"not those of {request.rank} of {request.layout.num_stages}",
            param="rank",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The generation this rank is a member of, until its token is cancelled."""

    number: int
    token: CancelToken
    links: StageLinks
    steps: StepExecutor
    spans: RequestSpans

    def leave(self) -> None:
        """Close the links and end what was traced of its requests."""
        self.links.close()
        self.spans.end_all()

    def execute(self, request: ExecuteModel) -> ExecuteResult:
        """Run an execute phase; raises Cancelled, running nothing, when the generation is over."""
        self.token.raise_if_cancelled()
        return self.steps.execute(request)

    def execute_and_sample(self, request: ExecuteModel) -> ExecuteResult:
        """Run an execute phase and, where it is due, the sample phase; raises like `execute`."""
        self.token.raise_if_cancelled()
        return self.steps.execute_and_sample(request)

    def sample(self, step_id: StepId, mask: GrammarMask | None = None) -> ModelRunnerOutput:
        """Run a sample phase; raises like `execute`."""
        self.token.raise_if_cancelled()
        return self.steps.sample(step_id, mask)


def join_generation(
    request: BeginGeneration,
    *,
    epoch: int,
    token: CancelToken,
    has_drafts: bool,
    runner: ModelRunner,
    channels: TensorChannels,
    device: torch.device,
    clock: Clock,
    board: PhaseBoard,
    tracer: Tracer,
) -> Generation:
    """A generation without steps so far; the links of the one before it are closed."""
    channels.begin(
        epoch=epoch,
        generation=request.generation,
        rank=request.rank,
        capacity=request.max_steps_in_flight,
    )
    links = StageLinks(
        channels,
        rank=request.rank,
        layout=request.layout,
        feeds_all=has_drafts,
        token=token,
        device=device,
        clock=clock,
        board=board,
    )
    guard = StepGuard(epoch=epoch, generation=request.generation)
    spans = RequestSpans(tracer, rank=request.rank)
    steps = StepExecutor(runner, guard, links, clock=clock, board=board, spans=spans)
    return Generation(number=request.generation, token=token, links=links, steps=steps, spans=spans)
