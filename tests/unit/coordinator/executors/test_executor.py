"""The executor over scripted workers: start-up in order, steps to all ranks, losses, shutdown."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.errors import ConfigError, Fenced, ModelError, ServiceError, StepFailed, WorkerLost
from common.model_folder import ModelFolder
from common.requests import SamplingParams
from common.step import NewRequest, SchedulerOutput, StepId
from common.worker_api import PROTOCOL_VERSION, Rank
from coordinator.executors.executor import Executor
from tests.fakes.scripted_model import next_token
from tests.fakes.scripted_pipeline import scripted_pipeline
from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.step_answer import step_answer

PROMPT = (3, 1, 4, 1, 5)

FOLDER = ModelFolder(
    path=Path("/models/tiny"),
    name="tiny",
    vocab_size=256,
    num_layers=7,
    max_position_embeddings=64,
    eos_token_ids=frozenset(),
    chat_template=None,
    bos_token=None,
    eos_token=None,
    dtype="float32",
)


def config(num_stages: int, **cache: int) -> CoordinatorConfig:
    """A configuration of that many local stages."""
    return CoordinatorConfig(
        model=ModelConfig(model="tiny"),
        cache=CacheConfig(block_size=4, **cache),
        schedule=ScheduleConfig(max_num_seqs=4, max_num_batched_tokens=32),
        cluster=ClusterConfig(pp=num_stages),
    )


async def started(workers: list[ScriptedWorker]) -> Executor:
    """An executor over the workers, ready for step 1."""
    executor = await Executor.create(workers, config(len(workers)), FOLDER)
    await executor.initialize(await executor.determine_available_memory())
    return executor


def prefill(executor: Executor, number: int = 1) -> SchedulerOutput:
    """A step with the whole prompt of a new request."""
    request = NewRequest(
        handle=number,
        token_ids=np.array(PROMPT, dtype=np.int32),
        num_prompt_tokens=len(PROMPT),
        sampling=SamplingParams(temperature=0.0),
        block_ids=(np.array([2 * number - 1, 2 * number], dtype=np.int32),),
        num_computed_tokens=0,
    )
    return SchedulerOutput(
        step_id=step_id(executor, number),
        base_step=number - 1,
        new_requests=(request,),
        num_scheduled_tokens=np.array([len(PROMPT)], dtype=np.int32),
    )


def step_id(executor: Executor, number: int) -> StepId:
    """A step of the executor's generation."""
    return StepId(epoch=executor.authority.epoch, generation=executor.generation, step=number)


class SaysOfItself(ScriptedWorker):
    """A worker with some values of its description replaced."""

    def __init__(self, **values: object) -> None:
        super().__init__(address="scripted:odd")
        self._values = values

    async def describe(self):
        """The usual description, with the replacements."""
        return replace(await super().describe(), **self._values)


class LoadsNothing(SaysOfItself):
    """A worker that cannot read its parameters."""

    async def load_model(self, authority, request):
        """Always fails."""
        raise ModelError("tensor lm_head.weight is missing")


class RemembersLoad(SaysOfItself):
    """A worker that keeps what it was told to load."""

    model = ""
    dtype = ""

    async def load_model(self, authority, request):
        """Remember the model and the type."""
        self.model = request.model
        self.dtype = request.dtype
        return await super().load_model(authority, request)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
async def test_only_the_last_stage_samples(num_stages):
    """A step goes to every rank and its tokens come from the last."""
    workers = scripted_pipeline(num_stages)
    executor = await started(workers)
    output = prefill(executor)
    result = await step_answer(executor, output)
    assert result.sampled_token_ids.row(0).tolist() == [next_token(PROMPT)]
    assert all(worker.executed == [output] for worker in workers)
    await executor.shutdown()


async def test_steps_may_follow_without_waiting():
    """A second step is sent while the first is unanswered; replies keep their steps."""
    executor = await started(scripted_pipeline(2, step_seconds=0.01))
    steps = [step_answer(executor, prefill(executor, number)) for number in (1, 2)]
    results = await asyncio.gather(*steps)
    assert [result.key.step_id.step for result in results] == [1, 2]
    await executor.shutdown()


async def test_step_without_tokens_has_no_sample_phase():
    """The empty step is answered by the empty output."""
    executor = await started(scripted_pipeline(2))
    result = await step_answer(executor, SchedulerOutput(step_id=step_id(executor, 1), base_step=0))
    assert result.handles.size == 0
    await executor.shutdown()


async def test_epoch_is_above_every_reported_one():
    """A worker that saw epoch 7 lets the new coordinator claim the group with 8."""
    executor = await Executor.create([SaysOfItself(epoch=7)], config(1), FOLDER)
    assert executor.authority.epoch == 8
    await executor.shutdown()


async def test_topology_tells_layers_and_parameters():
    """Seven layers on two stages are four and three."""
    executor = await started(scripted_pipeline(2))
    first, last = executor.topology()
    assert (first.first_layer, first.end_layer, first.parameter_bytes) == (0, 4, 4000)
    assert (last.first_layer, last.end_layer, last.parameter_bytes) == (4, 7, 3000)
    assert (last.rank, last.address, last.cause) == (Rank(stage=1), "scripted:1", "")
    await executor.shutdown()


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (
            {"protocol_min": PROTOCOL_VERSION + 1, "protocol_max": PROTOCOL_VERSION + 2},
            ConfigError,
            r"stage 1 \(scripted:odd\) speaks protocol 2 to 3 .* run the same release",
        ),
    ],
)
async def test_unfit_worker_is_refused_by_rank(values, error, message):
    """Nobody is claimed when one worker cannot serve."""
    odd, fresh = SaysOfItself(**values), SaysOfItself()
    with pytest.raises(error, match=message):
        await Executor.create([fresh, odd], config(2), FOLDER)
    assert (await fresh.describe()).state == "CREATED"


async def test_one_process_named_twice_is_refused():
    """Two addresses of one process would be two stages on one device."""
    workers = [SaysOfItself(incarnation="a"), SaysOfItself(incarnation="a")]
    with pytest.raises(ConfigError, match="are one process"):
        await Executor.create(workers, config(2), FOLDER)


async def test_load_error_names_the_rank_and_keeps_its_class():
    """The worker's own words arrive behind the rank's name."""
    with pytest.raises(ModelError, match=r"^stage 0 \(scripted:odd\): tensor lm_head"):
        await Executor.create([LoadsNothing()], config(1), FOLDER)


async def test_length_beyond_the_model_is_refused():
    """The message says what the model allows."""
    too_long = replace(config(1), model=ModelConfig(model="tiny", max_model_len=65))
    with pytest.raises(ConfigError, match="lower it to 64"):
        await Executor.create(scripted_pipeline(1), too_long, FOLDER)


async def test_failed_step_names_the_rank():
    """The first error of any rank ends the step, also while others still compute."""
    workers = scripted_pipeline(2)
    executor = await started(workers)
    workers[0].fail_step(1, StepFailed("out of memory"))
    with pytest.raises(StepFailed, match=r"^stage 0 \(scripted:0\): out of memory"):
        await step_answer(executor, prefill(executor))
    await executor.shutdown()


async def test_lost_worker_fails_the_step_and_is_told_once():
    """Step, callback and topology name rank and cause; who registers late is told at once."""
    workers = scripted_pipeline(2, step_seconds=60.0)
    executor = await started(workers)
    told: list[ServiceError] = []
    executor.on_lost(told.append)
    waiting = asyncio.ensure_future(step_answer(executor, prefill(executor)))
    await asyncio.sleep(0)
    workers[1].lose("killed by SIGKILL")
    with pytest.raises(WorkerLost, match=r"^stage 1 \(scripted:1\) lost: killed by SIGKILL$"):
        await waiting
    executor.on_lost(told.append)
    assert [str(error) for error in told] == ["stage 1 (scripted:1) lost: killed by SIGKILL"] * 2
    assert [rank.cause for rank in executor.topology()] == ["", "killed by SIGKILL"]
    await executor.shutdown()


async def test_worker_that_a_newer_coordinator_took_is_told_as_fenced():
    """Whether this coordinator has to go is seen by the class, also when no step was in flight."""
    workers = scripted_pipeline(2)
    executor = await started(workers)
    told: list[ServiceError] = []
    executor.on_lost(told.append)
    workers[1].lose("a coordinator with epoch 2, not 1, commands it", kind=Fenced)
    assert [type(error) for error in told] == [Fenced]
    assert str(told[0]).startswith("stage 1 (scripted:1): a coordinator with epoch 2")
    await executor.shutdown()


async def test_shutdown_releases_the_workers_that_are_left():
    """A lost rank does not keep the others from their EndGeneration; a second call is no error."""
    workers = scripted_pipeline(2)
    executor = await started(workers)
    workers[0].lose("gone")
    await executor.shutdown()
    await executor.shutdown()
    assert (await workers[1].describe()).state == "WARM"


async def test_worker_that_ends_at_shutdown_is_no_loss():
    """What a released worker does afterwards is nobody's concern."""
    workers = scripted_pipeline(1)
    executor = await started(workers)
    told: list[ServiceError] = []
    executor.on_lost(told.append)
    await executor.shutdown()
    workers[0].lose("exited with code 0")
    assert told == []


@pytest.mark.parametrize(
    ("cluster", "model"),
    [(ClusterConfig(pp=1), "/models/tiny"), (ClusterConfig(workers=("a:1",)), "tiny")],
)
async def test_remote_workers_get_the_name_and_local_ones_the_folder(cluster, model):
    """A name means the same model on another machine, a path need not."""
    worker = RemembersLoad()
    executor = await Executor.create([worker], replace(config(1), cluster=cluster), FOLDER)
    assert worker.model == model
    await executor.shutdown()


@pytest.mark.parametrize(
    ("asked", "native", "loaded"),
    [
        ("auto", ("float32", "bfloat16"), "bfloat16"),
        ("auto", ("float32",), "float32"),
        ("bfloat16", ("float32",), "bfloat16"),
    ],
)
async def test_every_rank_computes_in_one_type(asked, native, loaded):
    """By default the model's type where all ranks have instructions for it; else float32."""
    workers = [
        RemembersLoad(incarnation="a", dtypes=("float32", "bfloat16")),
        RemembersLoad(incarnation="b", dtypes=native),
    ]
    asking = replace(config(2), model=ModelConfig(model="tiny", dtype=asked))
    executor = await Executor.create(workers, asking, replace(FOLDER, dtype="bfloat16"))
    assert [worker.dtype for worker in workers] == [loaded, loaded]
    await executor.shutdown()
