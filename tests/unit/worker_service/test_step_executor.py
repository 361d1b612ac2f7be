"""One step on one rank."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from common.channels.channel import CancelToken, InMemoryHub, TensorChannels
from common.errors import (
    Cancelled,
    InvalidRequest,
    InvalidStep,
    NeedResync,
    StepFailed,
    StepRefused,
    TensorError,
    WrongOrder,
)
from common.step import (
    ExecutePending,
    IntermediateTensors,
    ModelRunnerOutput,
    Phase,
    Ragged,
    SchedulerOutput,
    StepKey,
)
from common.tensors import DType, WireTensor, wire_tensor
from common.worker_api import DevicePhase, ExecuteModel, Layout, Peer, Rank
from tests.fakes.manual_clock import ManualClock
from tests.fakes.manual_steps import (
    EPOCH,
    GENERATION,
    cached_step,
    digest_step,
    new_request,
    step_id,
)
from tests.fakes.noted_spans import CLIENT
from tests.fakes.scripted_runner import ScriptedRunner
from tests.fakes.worker_setup import load_request
from worker_service.phase_board import DeviceActivity, PhaseBoard
from worker_service.stage_links import StageLinks
from worker_service.step_executor import StepExecutor
from worker_service.step_guard import StepGuard

CPU = torch.device("cpu")
TICK_NS = 1000


class TickingClock:
    """A clock that moves by TICK_NS whenever it is read."""

    def __init__(self) -> None:
        self._now_ns = 0

    def monotonic(self) -> float:
        """Seconds."""
        return self.monotonic_ns() / 1e9

    def monotonic_ns(self) -> int:
        """Nanoseconds."""
        self._now_ns += TICK_NS
        return self._now_ns

    def unix_time(self) -> float:
        """Seconds; no test depends on it."""
        return 0.0


class NotedBoard(PhaseBoard):
    """A phase board that notes every phase entered, and who is waited for in it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.entered: list[tuple[DevicePhase, Rank | None]] = []

    def _enter(self, activity: DeviceActivity) -> None:
        super()._enter(activity)
        self.entered.append((activity.phase, activity.waiting_on))


class Stage:
    """A step executor on a scripted runner, with links of its own."""

    def __init__(self, hub: InMemoryHub, *, stage: int, num_stages: int) -> None:
        rank, layout = Rank(stage=stage), Layout(num_stages=num_stages)
        self.channels: TensorChannels = hub.channels(f"stage-{stage}")
        self.channels.begin(epoch=EPOCH, generation=GENERATION, rank=rank, capacity=4)
        clock, self.token = TickingClock(), CancelToken()
        self.board = NotedBoard(ManualClock())
        self.links = StageLinks(
            self.channels,
            rank=rank,
            feeds_all=False,
            layout=layout,
            token=self.token,
            device=CPU,
            clock=clock,
            board=self.board,
        )
        request = load_request(".", stage=stage, num_stages=num_stages)
        self.runner = ScriptedRunner(device=CPU, folder=Path(), request=request)
        guard = StepGuard(epoch=EPOCH, generation=GENERATION)
        self.steps = StepExecutor(self.runner, guard, self.links, clock=clock, board=self.board)

    def digest(self, step: int) -> bytes | None:
        """The state digest, read by a step without tokens."""
        answer = self.steps.execute(ExecuteModel(scheduler_output=digest_step(step)))
        assert isinstance(answer, ModelRunnerOutput)
        return answer.state_digest


def execute(step: int) -> ExecuteModel:
    """The plain execute phase of a step over the channel."""
    return ExecuteModel(scheduler_output=cached_step(step))


def hidden(value: float) -> WireTensor:
    """Hidden states of one token and one element."""
    buffer = memoryview(torch.tensor([[value]]).numpy()).cast("B")
    return wire_tensor(name="hidden_states", dtype=DType.FLOAT32, shape=(1, 1), buffer=buffer)


def handed_on(step: int, *tensors: WireTensor) -> IntermediateTensors:
    """What stage 0 answers inline."""
    return IntermediateTensors(
        key=StepKey(step_id=step_id(step), phase=Phase.EXECUTE),
        descriptors=tuple(tensor.descriptor for tensor in tensors),
        inline=tensors,
    )


@pytest.fixture
def single() -> Stage:
    """The only stage."""
    return Stage(InMemoryHub(), stage=0, num_stages=1)


@pytest.fixture
def pipeline() -> tuple[Stage, Stage]:
    """Two connected stages."""
    hub = InMemoryHub()
    first, last = (Stage(hub, stage=stage, num_stages=2) for stage in range(2))
    peers = tuple(
        Peer(rank=Rank(stage=stage), tensor_endpoint=each.channels.endpoint)
        for stage, each in enumerate((first, last))
    )
    first.links.connect(peers)
    last.links.connect(peers)
    return first, last


def test_tokens_of_prompts_are_counted_once(single: Stage) -> None:
    """A chunk of a prompt counts when it ran, a decode does not, and neither does a refused step."""
    chunk = cached_step(1)
    columns = replace(chunk.cached_requests, new_token_ids=Ragged.from_rows([[]]))
    chunk = replace(
        chunk, cached_requests=columns, num_scheduled_tokens=np.array([5], dtype=np.int32)
    )
    single.steps.execute_and_sample(ExecuteModel(scheduler_output=chunk))
    single.steps.execute_and_sample(execute(2))
    single.runner.invalid_steps = {3}
    with pytest.raises(InvalidStep):
        single.steps.execute(execute(3))
    assert single.board.num_prefill_tokens == 5


def test_execute_alone_yields_no_token(single: Stage) -> None:
    """The execute phase of the last stage answers that sampling is due, and no token."""
    answer = single.steps.execute(execute(1))
    assert isinstance(answer, ExecutePending)
    sampled = single.steps.sample(step_id(1))
    assert sampled.sampled_token_ids.row(0).tolist() == [1]


def test_tensors_travel_over_the_channel(pipeline: tuple[Stage, Stage]) -> None:
    """Stage 0 answers descriptors without bytes, and stage 1 computes on what was sent."""
    first, last = pipeline
    answer = first.steps.execute(execute(1))
    assert isinstance(answer, IntermediateTensors)
    assert answer.inline is None
    assert [(each.name, each.shape) for each in answer.descriptors] == [("hidden_states", (1, 1))]
    sampled = last.steps.execute_and_sample(execute(1))
    assert isinstance(sampled, ModelRunnerOutput)
    assert sampled.sampled_token_ids.row(0).tolist() == [2]


def test_every_stage_answers_the_digests_asked_for(pipeline: tuple[Stage, Stage]) -> None:
    """They come with the intermediate tensors and with the sampled tokens of the step that asks."""
    wanted = replace(cached_step(1), want_state_digest=True)
    for stage in pipeline:
        answer = stage.steps.execute_and_sample(ExecuteModel(scheduler_output=wanted))
        assert not isinstance(answer, ExecutePending)
        assert answer.state_digest == stage.runner.digests().state
    unasked = pipeline[0].steps.execute(execute(2))
    assert isinstance(unasked, IntermediateTensors)
    assert unasked.state_digest is None


def test_tensors_travel_inline(pipeline: tuple[Stage, Stage]) -> None:
    """With inline_reply the bytes come with the answer, and stage 1 takes them from the call."""
    first, last = pipeline
    answer = first.steps.execute(ExecuteModel(scheduler_output=cached_step(1), inline_reply=True))
    assert isinstance(answer, IntermediateTensors)
    assert answer.inline is not None
    last.steps.execute(ExecuteModel(scheduler_output=cached_step(1), intermediate_tensors=answer))
    assert last.steps.sample(step_id(1)).sampled_token_ids.row(0).tolist() == [2]


def test_refused_steps_change_nothing(single: Stage) -> None:
    """Wrong order, wrong base, and an invalid step leave the state digest as it was."""
    single.steps.execute_and_sample(execute(1))
    before = single.digest(2)
    single.runner.invalid_steps = {3}
    refusals: list[tuple[type[StepRefused], ExecuteModel]] = [
        (InvalidStep, execute(3)),
        (NeedResync, execute(4)),
    ]
    for error, request in refusals:
        with pytest.raises(error):
            single.steps.execute(request)
    with pytest.raises(WrongOrder):
        single.steps.sample(step_id(3))
    single.runner.invalid_steps = set()
    assert single.digest(3) == before


def test_execute_twice_changes_nothing(single: Stage) -> None:
    """A step sent while sampling is due is refused, and the one that is due can still be sampled."""
    single.steps.execute(execute(1))
    applied = list(single.runner.applied)
    for step in (1, 2):
        with pytest.raises(WrongOrder):
            single.steps.execute(execute(step))
    assert single.runner.applied == applied
    single.steps.sample(step_id(1))
    single.steps.execute(execute(2))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (handed_on(2, hidden(1.0)), InvalidStep),
        (
            handed_on(1, WireTensor(hidden(1.0).descriptor, hidden(2.0).buffer)),
            TensorError,
        ),
    ],
    ids=["of another step", "damaged"],
)
def test_wrong_inline_tensors_change_nothing(
    pipeline: tuple[Stage, Stage], given: IntermediateTensors, error: type[Exception]
) -> None:
    """Inline tensors of another step or with a wrong checksum are refused before the step runs."""
    _, last = pipeline
    request = ExecuteModel(scheduler_output=cached_step(1), intermediate_tensors=given)
    with pytest.raises(error):
        last.steps.execute(request)
    assert last.runner.applied == []
    last.steps.execute(
        ExecuteModel(
            scheduler_output=cached_step(1), intermediate_tensors=handed_on(1, hidden(1.0))
        )
    )


def test_failure_names_step_and_cause_and_ends_the_generation(
    pipeline: tuple[Stage, Stage],
) -> None:
    """A step that fails while it runs is told as such, and so is every one after it."""
    _, last = pipeline

    def fail(step: int) -> None:
        raise MemoryError(f"no room for step {step}")

    last.runner.during_step = fail
    with pytest.raises(StepFailed, match=r"^step 1 failed .* MemoryError: no room"):
        last.steps.execute(execute(1))
    last.runner.during_step = lambda step: None
    with pytest.raises(StepFailed, match="no room for step 1"):
        last.steps.execute(execute(2))


def test_the_log_of_a_failure_names_the_traces(single: Stage, caplog) -> None:
    """Those of the requests in the step, so that a client's trace leads to the cause."""

    def fail(step: int) -> None:
        raise MemoryError("no room")

    single.runner.during_step = fail
    output = SchedulerOutput(
        step_id=step_id(1),
        base_step=0,
        new_requests=(new_request(7, CLIENT), new_request(8, None)),
        num_scheduled_tokens=np.ones(2, dtype=np.int32),
    )
    with pytest.raises(StepFailed):
        single.steps.execute(ExecuteModel(scheduler_output=output))
    (line,) = [record for record in caplog.records if record.message == "step failed"]
    assert line.trace_ids == [CLIENT.trace_id]


def test_cancelled_wait_fails_the_step(pipeline: tuple[Stage, Stage], caplog) -> None:
    """A stage that waits for its input stops when the generation's token is cancelled, unalarmed."""
    _, last = pipeline
    last.token.cancel("generation 1 ended")
    with pytest.raises(StepFailed, match="generation 1 ended"):
        last.steps.execute(execute(1))
    assert "WARNING" not in [record.levelname for record in caplog.records]


def test_timings_leave_the_wait_out_of_compute(pipeline: tuple[Stage, Stage]) -> None:
    """COMPUTE starts when the input is there; the wait for it is told apart."""
    first, last = pipeline
    sent = first.steps.execute(execute(1))
    received = last.steps.execute_and_sample(execute(1))
    assert isinstance(sent, IntermediateTensors)
    assert isinstance(received, ModelRunnerOutput)
    assert sent.timings.wait_input_ns == 0
    assert sent.timings.compute_start_ns < sent.timings.compute_end_ns
    assert received.timings.wait_input_ns == TICK_NS
    # Reads of the clock: start, wait start, wait end, forward end, sample start, sample end.
    assert received.timings.compute_start_ns == 3 * TICK_NS
    assert received.timings.compute_end_ns == 6 * TICK_NS


def test_phases_are_shown_on_the_board(pipeline: tuple[Stage, Stage]) -> None:
    """A step computes, waits for the rank before it, and hands tensors to the one behind it."""
    first, last = pipeline
    first.steps.execute(execute(1))
    last.steps.execute_and_sample(ExecuteModel(scheduler_output=cached_step(1), deadline=2.0))
    assert first.board.entered == [
        (DevicePhase.COMPUTE, None),
        (DevicePhase.SENDING, Rank(stage=1)),
        (DevicePhase.COMPUTE, None),
        (DevicePhase.IDLE, None),
    ]
    assert last.board.entered == [
        (DevicePhase.COMPUTE, None),
        (DevicePhase.WAIT_INPUT, Rank(stage=0)),
        (DevicePhase.COMPUTE, None),
        (DevicePhase.IDLE, None),
        (DevicePhase.COMPUTE, None),
        (DevicePhase.SENDING, Rank(stage=0)),
        (DevicePhase.COMPUTE, None),
        (DevicePhase.IDLE, None),
    ]


def test_sampled_tokens_are_fed_to_the_first_stage(pipeline: tuple[Stage, Stage]) -> None:
    """The first stage waits for the last one's tokens of a step, by its number, and says so."""
    first, last = pipeline
    first.steps.execute(execute(1))
    last.steps.execute_and_sample(execute(1))
    inputs = first.links.inputs(StepKey(step_id=step_id(2), phase=Phase.EXECUTE), None)
    sampled = inputs.receive_tokens(1)
    assert (sampled.handles.tolist(), sampled.token_ids.row(0).tolist()) == ([7], [2])
    assert inputs.wait_ns == TICK_NS
    assert first.board.entered[-2][0] is DevicePhase.WAIT_INPUT
    assert first.board.entered[-2][1] == Rank(stage=1)


def test_wait_for_tokens_is_cancelled(pipeline: tuple[Stage, Stage]) -> None:
    """The end of the generation ends the wait for tokens that will never be sampled."""
    first, _ = pipeline
    inputs = first.links.inputs(StepKey(step_id=step_id(2), phase=Phase.EXECUTE), None)
    first.token.cancel("over")
    with pytest.raises(Cancelled, match="over"):
        inputs.receive_tokens(1)


def test_both_phases_have_the_deadline_of_the_step(single: Stage) -> None:
    """The sample phase may compute as long as the execute phase it came with."""
    deadlines: list[float | None] = []
    single.runner.during_step = lambda step: deadlines.append(single.board.activity.deadline)
    request = ExecuteModel(scheduler_output=cached_step(1), deadline=2.5)
    single.steps.execute_and_sample(request)
    assert deadlines == [2.5, 2.5]


def test_missing_next_stage_is_refused() -> None:
    """A stage before the last needs a peer to send to."""
    first = Stage(InMemoryHub(), stage=0, num_stages=2)
    with pytest.raises(InvalidRequest, match="no peer at stage 1"):
        first.links.connect(())


def test_missing_first_stage_is_refused() -> None:
    """The last stage of several needs a peer to feed."""
    last = Stage(InMemoryHub(), stage=1, num_stages=2)
    with pytest.raises(InvalidRequest, match="no peer at stage 0"):
        last.links.connect(())
