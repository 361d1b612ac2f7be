"""The worker as the event loop sees it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from common.channels.channel import InMemoryChannels, InMemoryHub
from common.config import WorkerConfig
from common.errors import (
    Cancelled,
    ConfigError,
    Fenced,
    InvalidRequest,
    ModelError,
    StepFailed,
    TensorError,
    WorkerLost,
    WrongState,
)
from common.step import ExecutePending, IntermediateTensors, ModelRunnerOutput
from common.worker_api import (
    Authority,
    DevicePhase,
    ExecuteModel,
    LoadModel,
)
from tests.fakes.manual_steps import EPOCH, GENERATION, cached_step, step_id
from tests.fakes.scripted_runner import ScriptedRunner
from tests.fakes.worker_setup import AUTHORITY, begin_request, join, load_request, warm_up
from worker_service.lifecycle import State
from worker_service.worker import Worker

CONFIG = WorkerConfig(device="cpu", threads=1)


class Bench:
    """Workers on scripted runners in this process, and what they told."""

    def __init__(self) -> None:
        self.hub = InMemoryHub()
        self.workers: list[Worker] = []
        self.runners: list[ScriptedRunner] = []
        self.states: list[State] = []
        self.channels: list[InMemoryChannels] = []
        self.load_error: ModelError | None = None

    def worker(self) -> Worker:
        """One more worker."""
        self.channels.append(self.hub.channels(f"worker-{len(self.workers)}"))
        worker = Worker(
            CONFIG,
            self.channels[-1],
            on_state=self.states.append,
            make_runner=self._make_runner,
        )
        self.workers.append(worker)
        return worker

    async def pipeline(self, num_stages: int) -> list[Worker]:
        """Workers that serve one generation."""
        workers = [self.worker() for _ in range(num_stages)]
        for stage, worker in enumerate(workers):
            await warm_up(worker, load_request(".", stage=stage, num_stages=num_stages))
        await join(workers)
        return workers

    def _make_runner(self, **options: object) -> ScriptedRunner:
        if self.load_error is not None:
            raise self.load_error
        runner = ScriptedRunner(**options)
        self.runners.append(runner)
        return runner


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A bench whose workers are closed after the test."""
    bench = Bench()
    yield bench
    for worker in bench.workers:
        await asyncio.wait_for(worker.close(), 5)


async def test_calls_in_order_lead_to_serving(bench: Bench) -> None:
    """A worker tells each state it enters, and Describe shows the last, the epoch and generation."""
    (worker,) = await bench.pipeline(1)
    info = await worker.describe()
    assert (info.state, info.epoch, info.generation) == ("SERVING", EPOCH, GENERATION)
    assert info.num_threads == 1
    assert bench.states == [
        State.DEVICE_READY,
        State.MODEL_LOADED,
        State.CACHE_READY,
        State.WARM,
        State.JOINED,
        State.SERVING,
    ]


async def test_generation_report_names_process_cache_and_weights(bench: Bench) -> None:
    """BeginGeneration answers the ids by which a coordinator knows what survived."""
    worker = bench.worker()
    await warm_up(worker, load_request("."))
    report = await worker.begin_generation(AUTHORITY, begin_request())
    assert report.incarnation == worker.incarnation
    assert report.weights_digest == "digest of stage 0"
    assert len(report.kv_id) == 32


async def test_call_out_of_order_is_refused(bench: Bench) -> None:
    """A call the lifecycle does not allow is refused by name, steps included."""
    worker = bench.worker()
    with pytest.raises(WrongState, match=r"load_model.*CREATED"):
        await worker.load_model(AUTHORITY, load_request("."))
    with pytest.raises(WrongState, match=r"execute_model.*CREATED"):
        await worker.submit_step(cached_step(1), sample=True)
    with pytest.raises(WrongState, match=r"end_generation.*CREATED"):
        await worker.end_generation(AUTHORITY, 1)


async def test_failed_load_may_be_tried_again(bench: Bench) -> None:
    """A model that cannot be found leaves the worker where it was, and names the model."""
    worker = bench.worker()
    await worker.init_device(AUTHORITY)
    with pytest.raises(ModelError, match="/no/such/folder"):
        await worker.load_model(AUTHORITY, load_request("/no/such/folder"))
    await worker.load_model(AUTHORITY, load_request("."))
    assert (await worker.describe()).state == "MODEL_LOADED"


async def test_configured_model_replaces_the_coordinators(tmp_path: Path) -> None:
    """A worker told to load a folder of its own does so whatever the coordinator names."""
    folders: list[object] = []

    def make_runner(*, folder: Path, request: LoadModel, **options: object) -> ScriptedRunner:
        folders.append(folder)
        return ScriptedRunner(folder=folder, request=request, **options)

    config = WorkerConfig(device="cpu", threads=1, model=str(tmp_path))
    worker = Worker(config, InMemoryHub().channels("own"), make_runner=make_runner)
    await worker.init_device(AUTHORITY)
    await worker.load_model(AUTHORITY, load_request("/the/coordinators/model"))
    assert folders == [tmp_path]
    await worker.close()


async def test_another_coordinator_is_fenced(bench: Bench) -> None:
    """A coordinator of a lower epoch commands nothing, nor does one that chose the same epoch."""
    (worker,) = await bench.pipeline(1)
    for other in (
        Authority(coordinator_id="older", epoch=0),
        Authority(coordinator_id="twin", epoch=AUTHORITY.epoch),
    ):
        with pytest.raises(Fenced):
            await worker.end_generation(other, GENERATION)
    await worker.submit_step(cached_step(1), sample=True)


async def test_generation_of_another_place_is_refused(bench: Bench) -> None:
    """A worker joins only at the place whose parameters it holds."""
    worker = bench.worker()
    await warm_up(worker, load_request("."))
    with pytest.raises(InvalidRequest, match="stage 0 of 1"):
        await worker.begin_generation(AUTHORITY, begin_request(stage=1, num_stages=2))
    assert (await worker.describe()).state == "WARM"


async def test_next_generation_starts_from_step_one(bench: Bench) -> None:
    """After EndGeneration a newer generation may begin; an older number is fenced."""
    (worker,) = await bench.pipeline(1)
    await worker.submit_step(cached_step(1), sample=True)
    await worker.end_generation(AUTHORITY, GENERATION)
    assert bench.runners[0].applied == []
    with pytest.raises(Fenced, match="not newer"):
        await worker.begin_generation(AUTHORITY, begin_request())
    await join([worker], generation=2)
    with pytest.raises(Fenced, match="generation 2"):
        await worker.submit_step(cached_step(1), sample=True)


async def test_steps_are_queued_without_waiting(bench: Bench) -> None:
    """Steps submitted at once run in order, and the first is answered while the second computes."""
    (worker,) = await bench.pipeline(1)
    release = threading.Event()
    bench.runners[0].during_step = lambda step: None if step == 1 else check(release.wait(5))
    answers = [worker.submit_step(cached_step(step), sample=True) for step in (1, 2, 3)]
    first = await answers[0]
    assert isinstance(first, ModelRunnerOutput)
    assert not answers[1].done()
    release.set()
    await asyncio.gather(*answers)
    phases = ("execute", "sample")
    assert bench.runners[0].applied == [(step, each) for step in (1, 2, 3) for each in phases]


def check(happened: bool) -> None:  # noqa: FBT001 -- a condition, not an option
    """Fail the step unless what it waited for happened."""
    assert happened


async def test_plain_form_is_two_calls(bench: Bench) -> None:
    """execute_model answers that sampling is due; sample_tokens answers the token."""
    (worker,) = await bench.pipeline(1)
    pending = await worker.execute_model(ExecuteModel(scheduler_output=cached_step(1)))
    assert isinstance(pending, ExecutePending)
    sampled = await worker.sample_tokens(step_id(1))
    assert sampled.sampled_token_ids.row(0).tolist() == [1]


async def test_two_stages_hand_tensors_on(bench: Bench) -> None:
    """A step sent to both stages at once is sampled on the last from what the first made."""
    first, last = await bench.pipeline(2)
    sampled = last.submit_step(cached_step(1), sample=True)
    handed_on = await first.submit_step(cached_step(1), sample=False)
    assert isinstance(handed_on, IntermediateTensors)
    result = await sampled
    assert isinstance(result, ModelRunnerOutput)
    assert result.sampled_token_ids.row(0).tolist() == [2]


async def until(worker: Worker, phase: DevicePhase) -> None:
    """Wait until the device thread is in a phase."""
    async with asyncio.timeout(5), aclosing(worker.watch_status(interval=0.01)) as activities:
        async for activity in activities:
            if activity.phase is phase:
                return


async def test_end_of_generation_frees_a_waiting_device(bench: Bench) -> None:
    """EndGeneration ends a step that waits for a previous stage, and is then performed."""
    _, last = await bench.pipeline(2)
    waiting = last.submit_step(cached_step(1), sample=True)
    queued = last.submit_step(cached_step(2), sample=True)
    await until(last, DevicePhase.WAIT_INPUT)
    await asyncio.wait_for(last.end_generation(AUTHORITY, GENERATION), 5)
    with pytest.raises(StepFailed, match=f"generation 1 of epoch {EPOCH} ended"):
        await waiting
    with pytest.raises(Cancelled, match=f"generation 1 of epoch {EPOCH} ended"):
        await queued
    assert bench.runners[1].applied == []
    assert (await last.describe()).state == "WARM"


async def test_generation_begins_while_the_device_waits(bench: Bench) -> None:
    """A newer generation ends the wait and the steps behind it, and reports what the worker holds."""
    _, last = await bench.pipeline(2)
    reasons: list[str] = []
    last.on_generation_over(reasons.append)
    waiting, queued = (last.submit_step(cached_step(step), sample=True) for step in (1, 2))
    await until(last, DevicePhase.WAIT_INPUT)
    async with asyncio.timeout(5):
        report = await last.begin_generation(
            AUTHORITY, begin_request(generation=2, stage=1, num_stages=2)
        )
    with pytest.raises(StepFailed, match=f"generation 2 of epoch {EPOCH} began"):
        await waiting
    with pytest.raises(Cancelled):
        await queued
    info = await last.describe()
    assert (info.state, info.generation, info.num_loads) == ("JOINED", 2, 1)
    assert info.held_stage is not None
    assert info.held_stage.kv_id == report.kv_id
    assert reasons == [f"generation 2 of epoch {EPOCH} began"]


async def test_generation_that_cannot_be_joined_leaves_a_warm_worker(bench: Bench) -> None:
    """When the channels fail, the generation before is over and no other has begun."""
    (worker,) = await bench.pipeline(1)
    channels = bench.channels[0]

    def refuse(**place: object) -> None:
        raise TensorError("the transport failed")

    channels.begin = refuse
    with pytest.raises(TensorError):
        await worker.begin_generation(AUTHORITY, begin_request(generation=2))
    assert (await worker.describe()).state == "WARM"
    with pytest.raises(WrongState):
        await worker.submit_step(
            replace(cached_step(1), step_id=step_id(1, generation=2)), sample=True
        )
    del channels.begin
    await join([worker], generation=3)


async def test_failed_replacement_leaves_no_model(bench: Bench) -> None:
    """What was held is dropped before another slice is read, so that both need not fit."""
    worker = bench.worker()
    await warm_up(worker, load_request("."))
    bench.load_error = ModelError("a file is cut short")
    with pytest.raises(ModelError):
        await worker.load_model(AUTHORITY, load_request(".", stage=0, num_stages=2))
    info = await worker.describe()
    assert (info.state, info.held_stage, info.num_loads) == ("DEVICE_READY", None, 1)
    assert bench.states[-1] is State.DEVICE_READY


async def test_watch_tells_every_change_of_state(bench: Bench) -> None:
    """Long before the interval is over, and it ends when the worker is closed."""
    worker = bench.worker()
    async with asyncio.timeout(5), aclosing(worker.watch_status(interval=60.0)) as activities:
        assert (await anext(activities)).state == "CREATED"
        await worker.init_device(AUTHORITY)
        told = await anext(activities)
        assert (told.state, told.epoch, told.phase) == ("DEVICE_READY", EPOCH, DevicePhase.IDLE)
        await worker.close()
        with pytest.raises(WorkerLost, match="closed"):
            await anext(activities)


async def test_close_frees_a_waiting_device(bench: Bench) -> None:
    """Closing does not wait for a previous stage that sends nothing."""
    _, last = await bench.pipeline(2)
    waiting = last.submit_step(cached_step(1), sample=True)
    await until(last, DevicePhase.WAIT_INPUT)
    await asyncio.wait_for(last.close(), 5)
    with pytest.raises(StepFailed):
        await waiting
    with pytest.raises(WorkerLost, match="closed"):
        await last.submit_step(cached_step(2), sample=True)


async def test_dead_device_thread_is_told(bench: Bench) -> None:
    """When the device thread dies, the step fails and who listens learns the cause once."""
    (worker,) = await bench.pipeline(1)
    causes: asyncio.Queue[str] = asyncio.Queue()
    worker.on_lost(lambda error: causes.put_nowait(str(error)))

    def die(step: int) -> None:
        raise SystemExit(step)

    bench.runners[0].during_step = die
    with pytest.raises(WorkerLost, match="SystemExit"):
        await asyncio.wait_for(worker.submit_step(cached_step(1), sample=True), 5)
    with pytest.raises(WorkerLost):
        await worker.init_device(AUTHORITY)
    cause = await asyncio.wait_for(causes.get(), 5)
    assert "SystemExit" in cause
    worker.on_lost(lambda error: causes.put_nowait(str(error)))
    assert causes.get_nowait() == cause
    assert causes.empty()


async def test_unknown_device_is_a_configuration_error() -> None:
    """A device that is not there is refused when the worker is made."""
    with pytest.raises(ConfigError, match="tpu"):
        Worker(WorkerConfig(device="tpu"), InMemoryHub().channels("none"))
