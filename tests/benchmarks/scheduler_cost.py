"""What does a step cost the coordinator? schedule() and commit of running decodes, without workers.

Run as `python -m tests.benchmarks.scheduler_cost` from the repository's root.
"""

import time
from statistics import median

import numpy as np

from common.config import ScheduleConfig
from common.step import ModelRunnerOutput, Phase, Ragged, SchedulerOutput, StepKey
from coordinator.scheduling.scheduler import Scheduler
from tests.benchmarks.report import Row, report
from tests.fakes.scripted_replica import handles_of, request

NUM_STEPS = 300
PROMPT_TOKENS = 128


def step_microseconds(num_running: int) -> tuple[float, float]:
    """Median CPU microseconds of schedule() and of update_from_output() at num_running decodes."""
    scheduler = Scheduler(
        ScheduleConfig(max_num_seqs=num_running, max_num_batched_tokens=1 << 20),
        num_stages=1,
        num_blocks=num_running * 64,
        block_size=16,
        max_model_len=1024,
        eos_token_ids=frozenset({0}),
    )
    scheduler.begin_generation(epoch=1, generation=1)
    for _ in range(num_running):
        scheduler.add(request((1,) * PROMPT_TOKENS, max_tokens=800))
    planning: list[float] = []
    committing: list[float] = []
    for _ in range(NUM_STEPS):
        started = time.thread_time()
        output = scheduler.schedule()
        planned = time.thread_time()
        assert output is not None
        result = _one_token_each(output)
        answered = time.thread_time()
        scheduler.update_from_output(output, result)
        planning.append(planned - started)
        committing.append(time.thread_time() - answered)
    return median(planning) * 1e6, median(committing) * 1e6


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
    """Measure 1, 32 and 256 running decodes."""
    rows: list[Row] = []
    for num_running in (1, 32, 256):
        planning, committing = step_microseconds(num_running)
        rows.append({"running": num_running, "schedule us": planning, "commit us": committing})
    report("CPU microseconds of scheduling and committing a decode step", rows)


if __name__ == "__main__":
    main()
