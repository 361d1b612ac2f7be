"""A replica through its generations, on scripted workers and in virtual time."""

import asyncio
from itertools import pairwise

import pytest

from common.config import ScheduleConfig
from common.errors import (
    Fenced,
    InvalidStep,
    NeedResync,
    ServiceError,
    StepFailed,
    Unavailable,
)
from common.requests import FinishReason
from common.worker_api import Authority
from coordinator.engine.streams import TokenStream
from coordinator.executors.progress import ReplicaPhase
from tests.fakes.scripted_fleet import ScriptedFleet, ScriptedService, scripted_service
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_replica import request
from tests.fakes.virtual_time import run_in_virtual_time


async def read(stream: TokenStream) -> tuple[int, ...]:
    """All tokens of a stream that ends by its length."""
    deltas = [delta async for delta in stream]
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    return tuple(token for delta in deltas for token in delta.token_ids)


async def serves(service: ScriptedService) -> bool:
    """Whether a new request gets its tokens."""
    stream = service.replica.loop.submit(request((7,), max_tokens=3, request_id="probe"))
    return await read(stream) == scripted_tokens((7,), 3)


def test_lost_worker_is_replaced_and_the_survivor_keeps_its_parameters():
    """Open requests end with rank and cause; the next generation serves; stage 0 loaded once."""

    async def run() -> None:
        async with scripted_service() as service:
            stream = service.replica.loop.submit(request((1,), max_tokens=400))
            await anext(stream)
            survivor = service.fleet.workers[0]
            service.fleet.workers[1].lose("killed by SIGKILL")
            with pytest.raises(Unavailable, match=r"^stage 1 \(scripted:1\) lost: killed by"):
                await read(stream)
            assert service.replica.status("m").phase is ReplicaPhase.WAITING
            with pytest.raises(Unavailable, match="is being rebuilt"):
                service.replica.loop.submit(request((1,), max_tokens=1))
            await service.is_serving.wait()
            assert await serves(service)
            assert service.fleet.workers[0] is survivor
            status = service.replica.status("m")
            assert [worker.num_loads for worker in status.workers] == [1, 1]
            assert (status.epoch, status.generation) == (1, 2)
            assert status.num_free_blocks == status.num_blocks == 255
            assert service.serving_changes == [True, False, True]

    run_in_virtual_time(run())


def test_status_tells_whom_a_rebuild_waits_for():
    """The lost rank stays named with its cause until the worker that takes its place answers."""

    async def run() -> None:
        async with scripted_service() as service:
            service.clock.advance(100.0)
            service.fleet.hold()
            service.fleet.workers[1].lose("killed by SIGKILL")
            await asyncio.sleep(1.0)
            waiting = service.replica.status("m")
            assert waiting.phase is ReplicaPhase.WAITING
            assert waiting.detail == "waiting for stage 1 (have 1 of 2)"
            assert not waiting.is_serving
            assert [worker.cause for worker in waiting.workers] == ["", "killed by SIGKILL"]
            (lost,) = waiting.lost_generations
            assert (lost.generation, lost.ended_at) == (1, 100.0)
            assert lost.cause == "stage 1 (scripted:1) lost: killed by SIGKILL"
            service.fleet.release()
            await service.is_serving.wait()
            serving = service.replica.status("m")
            assert (serving.phase, serving.detail) == (ReplicaPhase.SERVING, "")
            assert [worker.cause for worker in serving.workers] == ["", ""]

    run_in_virtual_time(run())


def test_lost_generations_stand_newest_first():
    """Two losses are remembered with their causes, the last one on top."""

    async def run() -> None:
        async with scripted_service() as service:
            for cause in ("first", "second"):
                service.fleet.workers[0].lose(cause)
                await asyncio.sleep(0.1)
                await service.is_serving.wait()
            lost = service.replica.status("m").lost_generations
            assert [generation.generation for generation in lost] == [2, 1]
            assert ["second" in lost[0].cause, "first" in lost[1].cause] == [True, True]

    run_in_virtual_time(run())


def test_last_step_age_counts_from_the_last_commit():
    """A service that computes nothing shows how long ago it did."""

    async def run() -> None:
        async with scripted_service() as service:
            await asyncio.sleep(1.0)
            service.clock.advance(3.5)
            assert service.replica.status("m").last_step_age == 3.5

    run_in_virtual_time(run())


def test_need_resync_ends_the_generation_and_the_next_one_serves():
    """A rank that lost a step is not argued with."""

    async def run() -> None:
        async with scripted_service() as service:
            service.fleet.workers[0].fail_step(4, NeedResync("step 3 was not applied"))
            stream = service.replica.loop.submit(request((1,), max_tokens=400))
            with pytest.raises(Unavailable, match="step 3 was not applied"):
                await read(stream)
            await service.is_serving.wait()
            assert await serves(service)
            assert service.replica.status("m").generation == 2

    run_in_virtual_time(run())


def test_invalid_step_is_counted_and_its_requests_fail_as_our_bug():
    """Requests of the step get INTERNAL, others UNAVAILABLE; nobody sends the step again."""

    async def run() -> None:
        schedule = ScheduleConfig(max_num_seqs=1, max_steps_in_flight=1)
        async with scripted_service(schedule=schedule) as service:
            loop, worker = service.replica.loop, service.fleet.workers[1]
            worker.fail_step(3, InvalidStep("block 9 is out of range"))
            culprit = loop.submit(request((1,), max_tokens=400, request_id="culprit"))
            waiting = loop.submit(request((2,), max_tokens=400, request_id="waiting"))
            with pytest.raises(ServiceError, match="block 9 is out of range") as caught:
                await read(culprit)
            assert type(caught.value) is ServiceError
            with pytest.raises(Unavailable, match="block 9 is out of range"):
                await read(waiting)
            await service.is_serving.wait()
            assert await serves(service)
            assert service.replica.status("m").num_invalid_steps == 1
            tokens = [step.num_rows for step in worker.executed if step.step_id.step == 3]
            assert len(tokens) == 1, "only the next generation's step 3 has run"

    run_in_virtual_time(run())


def test_stuck_worker_is_blamed_and_discarded():
    """A worker that says it hangs is lost to the group, with phase, step and seconds."""

    async def run() -> None:
        async with scripted_service() as service:
            service.fleet.workers[1].get_stuck()
            await asyncio.sleep(1.0)
            await service.is_serving.wait()
            assert service.fleet.discarded == [1]
            (lost,) = service.replica.status("m").lost_generations
            assert lost.cause.startswith("stage 1 (scripted:1) lost: in COMPUTE of step ")

    run_in_virtual_time(run())


def test_newer_coordinator_ends_this_one():
    """A worker that another coordinator has claimed is left to it: run raises, streams have ended."""

    async def run() -> None:
        async with scripted_service() as service:
            stream = service.replica.loop.submit(request((1,), max_tokens=400))
            await anext(stream)
            newer = Authority(coordinator_id="newer", epoch=2)
            await service.fleet.workers[0].end_generation(newer, 1)
            service.fleet.workers[1].lose("its stream was taken over")
            with pytest.raises(Unavailable):
                await read(stream)
            with pytest.raises(Fenced, match=r"stage 0 .* obeys a newer coordinator, of epoch 2"):
                await service.run

    run_in_virtual_time(run())


def test_failed_rebuild_is_tried_again_in_a_new_generation():
    """A survivor that dies while the group waits is one more loss, not the end."""

    async def run() -> None:
        async with scripted_service() as service:
            service.fleet.hold()
            service.fleet.workers[1].lose("killed")
            await asyncio.sleep(0.1)
            service.fleet.workers[0].lose("killed as well")
            service.fleet.release()
            await service.is_serving.wait()
            assert await serves(service)
            assert service.replica.status("m").generation == 3

    run_in_virtual_time(run())


def test_group_that_fails_its_first_step_is_not_rebuilt_at_once():
    """The pauses grow to two seconds, and a group that works ends them."""

    async def run() -> None:
        async with scripted_service() as service:
            survivor, victim = service.fleet.workers
            victim.lose("killed")
            lost_at: list[float] = []
            for count in range(1, 8):
                survivor.fail_step(1, StepFailed("no kernel for this shape"))
                while len(service.replica.status("m").lost_generations) < count:
                    await asyncio.sleep(0.01)
                    assert not service.is_serving.is_set()
                lost_at.append(asyncio.get_running_loop().time())
            pauses = [later - earlier for earlier, later in pairwise(lost_at)]
            assert pauses == pytest.approx([0.0, 0.2, 0.4, 0.8, 1.6, 2.0], abs=0.1)
            waiting = service.replica.status("m")
            assert waiting.phase is ReplicaPhase.WAITING
            assert waiting.detail == "stage 0 (scripted:0): no kernel for this shape"
            await service.is_serving.wait()
            assert await serves(service)

    run_in_virtual_time(run())


def test_drain_ends_a_rebuild():
    """A service that is told to end does not wait for a worker that may never come back."""

    async def run() -> None:
        async with scripted_service() as service:
            service.fleet.hold()
            service.fleet.workers[1].lose("killed")
            await asyncio.sleep(0.1)
            await service.replica.drain(30.0)
            await service.run
            with pytest.raises(Unavailable):
                service.replica.loop.submit(request((1,), max_tokens=1))

    run_in_virtual_time(run())


def test_survivor_is_released_when_a_rebuild_is_given_up():
    """A worker that waits for its group would not end at SIGTERM."""

    async def run() -> None:
        async with scripted_service() as service:
            service.fleet.hold()
            service.fleet.workers[1].lose("killed")
            await asyncio.sleep(0.1)
            survivor = service.fleet.workers[0]
            assert (await survivor.describe()).state == "SERVING"
        assert (await survivor.describe()).state == "WARM"

    run_in_virtual_time(run())


def test_first_generation_that_fails_is_not_rebuilt():
    """A model whose warm-up step fails would fail for ever: the start tells instead."""

    async def run() -> None:
        with pytest.raises(Unavailable, match=r"stage 0 .*no kernel for this shape"):
            async with scripted_service(warm_up_error=StepFailed("no kernel for this shape")):
                raise AssertionError("it serves")

    run_in_virtual_time(run())


def test_status_tells_that_the_first_step_is_waited_for():
    """Workers that are loaded and have joined are not said to load."""

    async def run() -> None:
        async with scripted_service() as service:
            service.fleet.workers[1].lose("killed")
            seen: list[str] = []
            while service.serving_changes != [True, False, True]:
                seen.append(service.replica.status("m").detail)
                await asyncio.sleep(0.001)
            assert seen[-1] == "waiting for the first step to pass all stages"

    run_in_virtual_time(run())


def test_workers_of_a_start_that_failed_are_released():
    """A rank that had joined would wait for the coordinator that has given up."""

    async def run() -> None:
        fleet = ScriptedFleet(2)
        joined, other = fleet.workers
        other.peers_error = Unavailable("cannot resolve the tensor endpoint")
        with pytest.raises(Unavailable, match=r"^stage 1 .* cannot resolve"):
            async with scripted_service(fleet=fleet):
                raise AssertionError("it serves")
        assert (await joined.describe()).state == "WARM"
        assert (await other.describe()).state == "WARM"

    run_in_virtual_time(run())


@pytest.mark.parametrize("num_stages", [1, 2])
def test_books_of_scheduler_and_workers_agree(num_stages: int):
    """With preemptions, aborts and chunks, every compared step finds equal digests."""

    async def run() -> None:
        schedule = ScheduleConfig(check_state_every=1, max_num_batched_tokens=8, max_num_seqs=8)
        async with scripted_service(num_stages=num_stages, schedule=schedule) as service:
            loop = service.replica.loop
            streams = [
                loop.submit(request(tuple(range(n, 2 * n)), max_tokens=4 * n, request_id=str(n)))
                for n in range(1, 20)
            ]
            await streams.pop().aclose()
            await asyncio.gather(*map(read, streams))
            status = service.replica.status("m")
            assert status.num_state_checks > 100
            assert (status.num_state_drifts, status.generation) == (0, 1)

    run_in_virtual_time(run())


def test_drift_ends_the_generation_and_is_counted():
    """A worker whose computed count is off is named with the step, and the group is rebuilt."""

    async def run() -> None:
        async with scripted_service(schedule=ScheduleConfig(check_state_every=5)) as service:
            stream = service.replica.loop.submit(request((1,), max_tokens=400))
            await anext(stream)
            service.fleet.workers[1].forge_digests()
            with pytest.raises(Unavailable, match=r"stage 1 \(scripted:1\): requests, blocks or"):
                await read(stream)
            await service.is_serving.wait()
            status = service.replica.status("m")
            assert (status.num_state_drifts, status.generation) == (1, 2)

    run_in_virtual_time(run())
