"""What does a step cost the coordinator? schedule(), commit and the step's message, without workers.

All sequences decode; their lengths differ, so that in every step some of them need a block. Run as
`python -m tests.benchmarks.scheduler_cost` from the repository's root.
"""

import time
from statistics import median

import numpy as np
from stepwire.v1 import step_pb2

from common.codecs.step_codec import decode_scheduler_output, encode_scheduler_output
from common.config import ScheduleConfig
from common.step import ModelRunnerOutput, Phase, Ragged, SchedulerOutput, StepKey
from coordinator.scheduling.scheduler import Scheduler
from tests.benchmarks.report import Row, report
from tests.fakes.scripted_replica import handles_of, request

NUM_RUNNING = (1, 32, *range(256, 2049, 256))
NUM_STEPS = 100
PROMPT_TOKENS = 128
BLOCK_SIZE = 16


def step_milliseconds(num_running: int) -> Row:
    """Median CPU milliseconds of each part of a step with num_running decodes."""
    scheduler = _decoding(num_running)
    planning: list[float] = []
    committing: list[float] = []
    coding: list[float] = []
    for _ in range(NUM_STEPS):
        started = time.thread_time()
        output = scheduler.schedule()
        planning.append(time.thread_time() - started)
        assert output is not None
        assert output.num_rows == num_running
        coding.append(_coding_seconds(output))
        result = _one_token_each(output)
        started = time.thread_time()
        scheduler.update_from_output(output, result)
        committing.append(time.thread_time() - started)
    both = [plan + commit for plan, commit in zip(planning, committing, strict=True)]
    return {
        "running": num_running,
        "schedule ms": median(planning) * 1e3,
        "commit ms": median(committing) * 1e3,
        "both ms": median(both) * 1e3,
        "both us a sequence": median(both) * 1e6 / num_running,
        "encode + decode ms": median(coding) * 1e3,
    }


def _decoding(num_running: int) -> Scheduler:
    """A scheduler whose sequences have all computed their prompts."""
    scheduler = Scheduler(
        ScheduleConfig(
            max_num_seqs=num_running, max_num_batched_tokens=1 << 20, max_waiting=num_running
        ),
        num_stages=1,
        num_blocks=num_running * 64,
        block_size=BLOCK_SIZE,
        max_model_len=1024,
        eos_token_ids=frozenset({0}),
    )
    scheduler.begin_generation(epoch=1, generation=1)
    for index in range(num_running):
        prompt = (index + 1,) * (PROMPT_TOKENS + index % BLOCK_SIZE)
        scheduler.add(request(prompt, max_tokens=800))
    output = scheduler.schedule()
    assert output is not None
    scheduler.update_from_output(output, _one_token_each(output))
    return scheduler


def _coding_seconds(output: SchedulerOutput) -> float:
    """Seconds of both ends of the wire: value to bytes, and bytes to value."""
    started = time.thread_time()
    message = encode_scheduler_output(output).SerializeToString()
    decode_scheduler_output(step_pb2.SchedulerOutput.FromString(message))
    return time.thread_time() - started


def _one_token_each(output: SchedulerOutput) -> ModelRunnerOutput:
    handles = handles_of(output)
    return ModelRunnerOutput(
        key=StepKey(step_id=output.step_id, phase=Phase.SAMPLE),
        handles=np.array(handles, dtype=np.uint64),
        sampled_token_ids=Ragged(
            np.full(len(handles), 5, dtype=np.int32),
            np.arange(len(handles) + 1, dtype=np.uint32),
        ),
    )


def main() -> None:
    """Measure from one running decode to 2,048."""
    rows = [step_milliseconds(num_running) for num_running in NUM_RUNNING]
    report("CPU milliseconds of planning, committing and coding a step of decodes alone", rows)


if __name__ == "__main__":
    main()
